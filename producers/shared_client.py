"""One client for many producers: what they need once only, however many they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from confluent_kafka import Producer

from epochfence.epochs.connection import Config, LastError, connection_settings
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.ledger import Ledger, check_ledger
from epochfence.epochs.values import Claim, check_function, check_timeout
from epochfence.producers.acknowledgements import REPORT_REMEDY, Report
from epochfence.producers.barriers import BarrierKey, BarrierValue, BarrierWriter
from epochfence.producers.lives import Lives
from epochfence.producers.partition_watch import PartitionWatch
from epochfence.producers.taking_over import Realm, TakingOver

OnGrant = Callable[[Claim], None]
OpenProducer = Callable[[], Producer]


class SharedClient:
    """A producer's client, and beside it one of each that looks after producers.

    Args:
        config: Settings for a confluent-kafka producer, or such a producer, as for
            `FencedProducer`.
        ledger: The ledger that all who use it go by. Not closed here.
        barrier_key: As for `FencedProducer`.
        barrier_value: As for `FencedProducer`.
        remedy: What helps whoever writes to what was not taken over; None: taking it
            over.
        timeout_s: How long to wait for the cluster, in seconds.
        open_producer: Opens the client, of the settings that are given; None: the
            ledger does.

    Attributes:
        ledger: The ledger.
        producer: The client itself.
        is_own: Whether it was made here, and not given.
        remedy: As it was given.
        told: The `on_delivery` of its settings, None where there is none.
        connection: The settings by which other clients reach the same cluster.
        writer: Writes barriers.
        lives: Looks at topics.
        taking_over: Takes topics over.
        watch: Looks for partitions that are added.

    Raises:
        MisconfiguredError: A setting contradicts what is needed, or is unknown.
        LedgerUnavailable: The ledger was closed, or cannot be read.
    """

    def __init__(
        self,
        config: Config | Producer,
        ledger: Ledger,
        *,
        barrier_key: BarrierKey | None = None,
        barrier_value: BarrierValue | None = None,
        remedy: str | None = None,
        timeout_s: float = 10.0,
        open_producer: OpenProducer | None = None,
    ) -> None:
        check_ledger(ledger)
        timeout_s = check_timeout(timeout_s)
        self.ledger = ledger
        self.is_own = not isinstance(config, Producer)
        self.told: Report | None = None
        self.remedy = remedy
        self.connection = ledger.connection
        self.producer = (
            _checked(config)
            if isinstance(config, Producer)
            else self._made(config, open_producer)
        )
        clients, keeper = ledger.clients, None
        if not ledger.is_embedded:
            keeper = clients.topic_keeper(self.connection, timeout_s)
        self.lives = Lives(keeper, self.producer)
        self.writer = BarrierWriter(
            self.connection, keeper, barrier_key, barrier_value, clients
        )
        self.taking_over = TakingOver(ledger, self.writer, self.lives)
        self.watch = PartitionWatch(self.taking_over)
        self._realms: dict[str, tuple[tuple[Realm, OnGrant], ...]] = {}
        self._lock = threading.Lock()
        # A closed ledger shows no successor: nothing is written after it.
        self._unwatch = ledger.watch(self._on_grant, self._on_ledger_closed)

    def _made(self, config: Config, open_producer: OpenProducer | None) -> Producer:
        if not isinstance(config, Mapping):
            raise MisconfiguredError(
                "config", config, "a mapping of settings, or a producer, is expected",
                "Give {'bootstrap.servers': 'host:port'}.",
            )  # fmt: skip
        settings = dict(config)
        self.told = settings.pop("on_delivery", None)
        check_function("on_delivery", self.told, REPORT_REMEDY)
        if open_producer is None:
            clients = self.ledger.clients
            producer = clients.writing_producer(settings, LastError(config))
        else:
            producer = open_producer()
        self.connection = connection_settings(config)
        return producer

    # Who uses it.

    def join(self, realm: Realm, on_grant: OnGrant) -> None:
        """Have a realm told of the grants of its scopes, and of the ledger's end."""
        with self._lock:
            for held in realm.leaderships:
                others = self._realms.get(held.scope, ())
                self._realms[held.scope] = (*others, (realm, on_grant))

    def look_after(self, realm: Realm) -> None:
        """See that partitions added to a realm's whole topics get their barriers."""
        if realm.territory.whole_topics() and self.ledger.clients.can_add_partitions:
            self.watch.add(realm)

    def leave(self, realm: Realm) -> None:
        """Tell a realm no more, nor look after it. May be called again."""
        self.watch.remove(realm)
        with self._lock:
            for held in realm.leaderships:
                joined = self._realms.pop(held.scope, ())
                others = tuple(one for one in joined if one[0] is not realm)
                if others:
                    self._realms[held.scope] = others

    # On the ledger's thread.

    def _on_grant(self, claim: Claim) -> None:
        with self._lock:
            told = self._realms.get(claim.scope, ())
        for _, on_grant in told:
            on_grant(claim)

    def _on_ledger_closed(self) -> None:
        with self._lock:
            joined = [one for of_scope in self._realms.values() for one in of_scope]
        for realm, _ in joined:
            realm.territory.close()

    def close(self, *, is_forked: bool = False) -> None:
        """Look after nobody any more; the client stays. May be called again.

        Args:
            is_forked: Whether this is a forked process, where no thread is to end.
        """
        self._unwatch()
        if not is_forked:
            self.watch.close()


def _checked(producer: Producer) -> Producer:
    if type(producer).produce is not Producer.produce:
        raise MisconfiguredError(
            "config", producer, "its `produce` is another than Producer's",
            "Give a plain confluent_kafka.Producer; serialise values before.",
        )  # fmt: skip
    return producer
