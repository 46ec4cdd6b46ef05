"""How this package's own Kafka clients are configured and made."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from secrets import token_hex
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, MemberDescription

from epochfence.epochs.errors import MisconfiguredError

Config = Mapping[str, Any]
T = TypeVar("T")

#: What librdkafka logs about connections; errors of ours repeat what matters.
_client_log = logging.getLogger("epochfence.client")
_client_log.addHandler(logging.NullHandler())

# One record a batch and one batch in flight: librdkafka may form batches anew
# after a leader change, and the broker would then store a record twice (librdkafka
# issue 4953). One by one, a retry is byte-equal and recognised.
_APPENDING: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "max.in.flight": 1,
    "batch.num.messages": 1,
}

_READING: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # Never start elsewhere in silence.
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
}

# Only where the user did not say.
_DEFAULTS: dict[str, Any] = {
    # By default a frozen broker, whose connections stay open, holds up a minute.
    "socket.timeout.ms": 10_000,
    "socket.connection.setup.timeout.ms": 5_000,
}
_APPENDING_DEFAULTS: dict[str, Any] = {
    "linger.ms": 0,
    # What nobody waits for any more is not sent minutes later.
    "message.timeout.ms": 30_000,
}
_READING_DEFAULTS: dict[str, Any] = {
    # The default of 1,000 ms stalls a fast reader; a short one costs no CPU.
    "fetch.queue.backoff.ms": 10,
    # Plenty to be kept busy with; the default takes four times the memory.
    "queued.max.messages.kbytes": 16_384,
}

# A producer of the user's: what was acknowledged stays, in order, once.
_WRITING: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    # Without reports of success nobody could confirm anything.
    "delivery.report.only.error": False,
}

# A producer whose transactions say all that has to be known of success.
_IN_TRANSACTIONS: dict[str, Any] = {"acks": "all", "enable.idempotence": True}

# A consumer of the user's; what it replaces, our own code carries out.
_CONSUMING: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # The client jumps over retention with no more than a log line.
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
}
_CONSUMING_DEFAULTS: dict[str, Any] = {"fetch.queue.backoff.ms": 10}

# Settings that are about reaching the cluster, whatever the client is for.
_CONNECTION = re.compile(
    r"(?:bootstrap|security|sasl|ssl|socket|broker|reconnect|connections|oauthbearer"
    r"|https|resolver|metadata|api|test)\.|(?:metadata\.broker\.list|enable\.ssl"
    r"\.certificate\.verification|enable\.sasl\.oauthbearer\.unsecure\.jwt|client"
    r"\.(?:id|rack|dns\.lookup)|debug|log_level|oauth_cb|error_cb|"
    r"allow\.auto\.create\.topics)\Z"
)

# A host, perhaps with a port, perhaps with the security protocol before it.
_ADDRESS = re.compile(
    r"(?:(?:PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?"
    r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+)(?::[0-9]{1,5})?\Z",
    re.IGNORECASE,
)

# Settings that a kind of client does not take: why, and what to do instead.
_OURS = (
    "the clients of epochfence's own do not take it",
    "Give connection settings only.",
)
_OWN_CLIENT: dict[str, tuple[str, str]] = {"group.id": _OURS, "transactional.id": _OURS}
_NOT_WRITING: dict[str, tuple[str, str]] = {
    "transactional.id": (
        "a fenced producer is not transactional",
        "Leave it out; `confirm()` says what was admitted.",
    )
}

# A candidate of an election by a group: assignments come and go one by one, and what
# one has stays with it while others come. With the newer protocol, a client that is
# cut off does not notice that its session is over.
_STANDING: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "group.protocol": "classic",
    "partition.assignment.strategy": "cooperative-sticky",
    "allow.auto.create.topics": False,
}
_STANDING_SESSION_MS = 10_000
#: Rebalances, such as that after a resignation, are heard of with heartbeats.
_STANDING_HEARTBEAT_MS = 1_000
#: How long Python may stand still while the client's own threads go on.
_STANDING_POLL_MS = 30_000
_NOT_STANDING: dict[str, tuple[str, str]] = {
    **_OWN_CLIENT,
    "group.instance.id": (
        "a static member does not leave its group: after a resignation, nobody would "
        "be elected until its session is over",
        "Leave it out.",
    ),
}

_ALIASES = {
    "bootstrap.servers": "metadata.broker.list",
    "acks": "request.required.acks",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "linger.ms": "queue.buffering.max.ms",
    "message.timeout.ms": "delivery.timeout.ms",
}


class LastError:
    """Remembers what a client last complained about, for an error's message.

    Args:
        config: Its `error_cb`, if there is one, goes on being called.
    """

    def __init__(self, config: Config | None = None) -> None:
        self.text = ""
        self._next: Callable[[KafkaError], None] | None = (config or {}).get("error_cb")

    def __call__(self, error: KafkaError) -> None:
        self.text = error.str()
        if self._next is not None:
            self._next(error)

    def clear(self) -> None:
        """All is well again: what was wrong before explains nothing later."""
        self.text = ""

    def or_else(self, text: str) -> str:
        """`text`, and the last complaint where there is one."""
        return f"{text} ({self.text})" if self.text else text


def _given(config: Config, name: str) -> tuple[str, Any] | None:
    """The setting as the user spelt it, None where it is not given."""
    for spelling in (name, _ALIASES.get(name, name)):
        if spelling in config:
            return spelling, config[spelling]
    return None


def connection_settings(config: Config) -> dict[str, Any]:
    """Those settings of a client that other clients need to reach the same cluster."""
    return {name: config[name] for name in config if _CONNECTION.match(name)}


def _merged(
    config: Config,
    forced: dict[str, Any],
    defaults: dict[str, Any],
    refused: Mapping[str, tuple[str, str]] = _OWN_CLIENT,
) -> dict[str, Any]:
    """`config` and ours; what contradicts is refused, never overridden."""
    servers = _given(config, "bootstrap.servers")
    if servers is None or not isinstance(servers[1], str) or not servers[1].strip():
        raise MisconfiguredError(
            "bootstrap.servers", None if servers is None else servers[1],
            "no broker is named",
            "Give {'bootstrap.servers': 'host:port'}.",
        )  # fmt: skip
    for address in servers[1].split(","):
        if not _ADDRESS.match(address.strip()):
            raise MisconfiguredError(
                "bootstrap.servers", servers[1], f"{address.strip()!r} is no address",
                "Use host:port, several with commas between.",
            )  # fmt: skip
    for name, (problem, remedy) in refused.items():
        if name in config:
            raise MisconfiguredError(name, config[name], problem, remedy)
    merged = dict(config)
    for name, wanted in forced.items():
        given = _given(config, name)
        if given is None:
            continue
        if _spelt(given[1]) not in _spellings(wanted):
            raise MisconfiguredError(
                given[0], given[1], f"the guarantee needs {wanted!r}",
                "Leave the setting out.",
            )  # fmt: skip
        del merged[given[0]]
    merged.update(forced)
    for name, value in {**_DEFAULTS, **defaults}.items():
        if _given(config, name) is None:
            merged[name] = value
    return merged


def _spelt(value: object) -> str:
    return str(value).strip().lower()


def _spellings(value: object) -> set[str]:
    return {_spelt(value), "-1"} if value == "all" else {_spelt(value)}


def _make(kind: Callable[..., T], config: dict[str, Any], last_error: LastError) -> T:
    """Make a client; its settings are the user's, and so are mistakes in them."""
    config["error_cb"] = last_error
    config.setdefault("logger", _client_log)
    try:
        return kind(config)
    except (KafkaException, TypeError, ValueError) as error:
        cause = error.args[0] if error.args else error
        reason = cause.str() if isinstance(cause, KafkaError) else str(error)
        named = [name for name in config if f'"{name}"' in reason]
        # Not its value: it may be a secret under a misspelt name.
        raise MisconfiguredError(
            named[0] if named else "config", ...,
            f"the Kafka client refuses it: {reason}",
            "See librdkafka's CONFIGURATION.md for its settings.",
        ) from error  # fmt: skip


def forget_frames(error: BaseException) -> None:
    """Have an error that is being handled keep nothing but itself alive.

    It is never freed if a client says meanwhile that it has failed for good: that is a
    mistake of confluent-kafka's, and its traceback would keep the frames, and they the
    clients.
    """
    error.__traceback__ = error.__context__ = None


def appending_producer(config: Config, last_error: LastError) -> Producer:
    """A producer for claims, syncs and rows: idempotent, one record a batch.

    Raises:
        MisconfiguredError: A setting contradicts that, or is unknown.
    """
    return _make(Producer, _merged(config, _APPENDING, _APPENDING_DEFAULTS), last_error)


def reading_consumer(
    config: Config,
    last_error: LastError,
    *,
    isolation: str = "read_committed",
    group: str | None = None,
) -> Consumer:
    """A consumer for `assign`, outside of any group, that reports partition ends.

    Args:
        config: Connection settings.
        last_error: Hears of what it complains about.
        isolation: Its isolation level.
        group: The group whose commits it may be asked for.

    Raises:
        MisconfiguredError: A setting contradicts that, or is unknown.
    """
    forced = {**_READING, "isolation.level": isolation}
    merged = _merged(config, forced, _READING_DEFAULTS)
    # The client insists on a group; nothing is ever committed to it.
    merged["group.id"] = group or f"epochfence-reader-{token_hex(8)}"
    return _make(Consumer, merged, last_error)


def writing_producer(config: Config, last_error: LastError) -> Producer:
    """A producer for a user's messages: idempotent, acknowledged by all.

    Raises:
        MisconfiguredError: A setting contradicts that, or is unknown.
    """
    return _make(Producer, _merged(config, _WRITING, {}, _NOT_WRITING), last_error)


def transactional_producer(
    config: Config, last_error: LastError, *, with_reports: bool = False
) -> Producer:
    """A producer that writes in transactions, under the config's `transactional.id`.

    Args:
        config: The user's settings.
        last_error: Remembers what it complains about.
        with_reports: Whether the success of each message is reported, too.

    Raises:
        MisconfiguredError: A setting contradicts that, or is unknown.
    """
    forced = _WRITING if with_reports else _IN_TRANSACTIONS
    return _make(Producer, _merged(config, forced, {}, {}), last_error)


def group_consumer(config: Config, last_error: LastError) -> Consumer:
    """A consumer in a user's group, which commits nothing by itself.

    It reports an offset outside of the log instead of going elsewhere.

    Raises:
        MisconfiguredError: A setting contradicts that, or is unknown.
    """
    merged = _merged(config, _CONSUMING, _CONSUMING_DEFAULTS, {})
    return _make(Consumer, merged, last_error)


def candidate_consumer(config: Config, group: str, last_error: LastError) -> Consumer:
    """A member of a group that elects: it is assigned partitions, and reads none.

    Raises:
        MisconfiguredError: A setting contradicts that, or is unknown.
    """
    merged = _merged(config, _STANDING, {}, _NOT_STANDING)
    session_ms = merged.setdefault("session.timeout.ms", _STANDING_SESSION_MS)
    if _spelt(session_ms).isdecimal():  # else the client says what is wrong
        time_ms = int(session_ms)
        heartbeat_ms = max(1, min(_STANDING_HEARTBEAT_MS, time_ms // 4))
        merged.setdefault("heartbeat.interval.ms", heartbeat_ms)
        merged.setdefault("max.poll.interval.ms", max(_STANDING_POLL_MS, time_ms))
    merged["group.id"] = group
    return _make(Consumer, merged, last_error)


def admin_client(config: Config, last_error: LastError) -> AdminClient:
    """An admin client.

    Raises:
        MisconfiguredError: A setting is unknown.
    """
    return _make(AdminClient, _merged(config, {}, {}), last_error)


def has_member_with(
    config: Config, group: str, topic: str, partition: int, timeout_s: float
) -> bool:
    """Whether a partition is assigned to a member of a group, as its broker has it.

    Args:
        config: Connection settings.
        group: The group.
        topic: The topic.
        partition: The partition's number.
        timeout_s: How long to wait for the answer.

    Raises:
        KafkaException: There was none.
    """
    return any(
        (tp.topic, tp.partition) == (topic, partition)
        for member in _members(config, group, timeout_s)
        for tp in member.assignment.topic_partitions
    )


def has_member(config: Config, group: str, member_id: str, timeout_s: float) -> bool:
    """Whether somebody is a member of a group, as its broker has it.

    Raises:
        KafkaException: There was no answer.
    """
    members = _members(config, group, timeout_s)
    return any(member.member_id == member_id for member in members)


def _members(config: Config, group: str, timeout_s: float) -> list[MemberDescription]:
    admin = admin_client(config, LastError(config))
    answers = admin.describe_consumer_groups([group], request_timeout=timeout_s)
    try:
        members: list[MemberDescription] = answers[group].result(timeout_s + 1).members
    except FutureTimeout as error:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error
    finally:
        del admin  # else it lives as long as the error's traceback
    return members
