"""A confluent-kafka consumer behind a fence: only admitted messages come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NoReturn

from confluent_kafka import (
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from epochfence.consumers.arguments import (
    FOREVER,
    checked_count,
    checked_flag,
    checked_names,
    checked_partitions,
    checked_timeout,
    places_to_commit,
)
from epochfence.consumers.gathering import Gathering
from epochfence.consumers.group_reader import GroupReader
from epochfence.consumers.loading import Positions
from epochfence.consumers.partition import AssignedPartition
from epochfence.consumers.rejections import OnRejected
from epochfence.consumers.settings import (
    Require,
    check_mode,
    settings_by_topic,
    split_config,
    unlisted,
)
from epochfence.consumers.turns import Turns
from epochfence.epochs.connection import Config
from epochfence.epochs.ledger import Ledger, check_ledger
from epochfence.epochs.stamps import StampReader
from epochfence.epochs.values import SinkState, check_function, check_timeout

OnPartitions = Callable[["FencedConsumer", list[TopicPartition]], None]


class FencedConsumer:
    """Reads topics as a member of a group, and keeps deposed leaders' messages away.

    The calls are those of confluent-kafka's `Consumer`, and so are the messages. What
    differs:

    - Messages of deposed leaders, and those that cannot be trusted, do not come out;
      neither do barriers. They are counted (`counts`), told to the log
      (`epochfence.consumers`) and to `on_rejected`.
    - A partition delivers once what has to be known of it is read. Where a commit
      does not say so (first rollout, offsets reset by a tool, a seek forward), that
      means reading it from its start: `progress` and the log tell how far it is.
    - Automatic commits cover what was handed over *before* the call that commits, so
      that nothing is committed which the application has not done. Commits carry
      metadata of the fence.
    - Calls raise this package's errors where the fence cannot decide. Nothing is lost
      by them: the next call goes on there.

    May be used from several threads; they take turns.

    Args:
        config: As for confluent's `Consumer`. Isolation is always read_committed.
        ledger: The ledger, which also knows the max-epoch table.
        require: For each topic, the scopes whose stamps every record must carry
            (`{partition}` in a name stands for the partition's number; `[]`: any stamp
            satisfies), or a `FenceSettings`.
        unstamped: What to do with records that lack one: see `FenceSettings`.
        authority: Who says which epochs exist: see `FenceSettings`.
        stamps: Finds the stamps; None: this package's own headers.
        max_jump: With authority `max-seen`: see `FenceSettings`.
        mode: `enforce`, or `dry-run`: everything but barriers is delivered, and
            verdicts are counted and told. For a first rollout.
        rebuild: Whether epoch starts that are missing may be found by reading the
            partition; False: `TableMissing` instead.
        on_rejected: Called with each rejected message and its verdict.
        timeout_s: How long a call may wait for the cluster, beyond its own time-out,
            where the fence needs to know something.
        positions: For whoever stores positions with the effect (see `sink_state`):
            called with a topic and a partition, it gives what was stored last, or
            None. Then commits do not say where to begin: they only serve monitors.

    Raises:
        MisconfiguredError: A setting is wrong, or contradicts the fence.
        LedgerUnavailable, TableUnavailable: They cannot be read.
    """

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        *,
        require: Require,
        unstamped: str | None = None,
        authority: str | None = None,
        stamps: StampReader | None = None,
        max_jump: int | None = None,
        mode: str = "enforce",
        rebuild: bool = True,
        on_rejected: OnRejected | None = None,
        timeout_s: float = 10.0,
        positions: Positions | None = None,
    ) -> None:
        client_config, policies = split_config(config)
        check_ledger(ledger)
        check_function("on_rejected", on_rejected)
        check_function("positions", positions)
        is_dry_run = check_mode(mode) == "dry-run"
        self._settings = settings_by_topic(
            require,
            unstamped=unstamped,
            authority=authority,
            stamps=stamps,
            max_jump=max_jump,
            is_dry_run=is_dry_run,
        )
        self._policies = policies
        self._turns = Turns()
        self._reader = GroupReader(
            client_config,
            ledger,
            self._settings,
            policies,
            is_dry_run=is_dry_run,
            may_rebuild=checked_flag("rebuild", rebuild),
            on_rejected=on_rejected,
            timeout_s=check_timeout(timeout_s),
            positions=positions,
        )

    # Which partitions.

    def subscribe(
        self,
        topics: list[str],
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Join the group, for topics (or patterns that begin with `^`).

        Args:
            topics: Each of them, or each that a pattern finds, is listed in `require`.
            on_assign: Called with this consumer and the partitions. It may `assign`
                them (or `incremental_assign`, as the group's protocol wants) at other
                offsets.
            on_revoke: The same, before they are given up.
            on_lost: The same, when they were lost: commits would fail. None:
                `on_revoke` is called.

        Raises:
            MisconfiguredError: A topic is not listed.
            KafkaException: The client refuses.
        """
        names = checked_names(topics)
        for topic in names:
            if not topic.startswith("^"):
                self._check_listed(topic)
        for name, function in (
            ("on_assign", on_assign), ("on_revoke", on_revoke), ("on_lost", on_lost),
        ):  # fmt: skip
            check_function(name, function)

        def told(
            function: OnPartitions | None,
        ) -> Callable[[list[TopicPartition]], None] | None:
            return None if function is None else lambda tps: function(self, tps)

        with self._turns:
            self._reader.subscribe(
                names, told(on_assign), told(on_revoke), told(on_lost)
            )

    def unsubscribe(self) -> None:
        """Leave the group."""
        with self._turns:
            self._reader.unsubscribe()

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions, each from its offset (none: the committed one)."""
        with self._turns:
            self._reader.assign(self._new(partitions), is_added=False)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions too."""
        with self._turns:
            self._reader.assign(self._new(partitions), is_added=True)

    def unassign(self) -> None:
        """Read none of the partitions any more."""
        with self._turns:
            self._reader.unassign(None)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions no more."""
        places = checked_partitions(partitions)
        with self._turns:
            self._reader.unassign(places)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are assigned."""
        with self._turns:
            return self._reader.raw.assignment()

    def _new(self, partitions: list[TopicPartition]) -> list[AssignedPartition]:
        return [
            AssignedPartition(
                tp.topic,
                tp.partition,
                self._check_listed(tp.topic),
                tp.offset,
            )
            for tp in checked_partitions(partitions)
        ]

    def _check_listed(self, topic: str) -> Any:
        settings = self._settings.get(topic)
        if settings is None:
            raise unlisted(topic, self._settings)
        return settings

    # Messages.

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next admitted message, or an event of the client, or None.

        Args:
            timeout: How many seconds to wait; None or negative: for ever.

        Raises:
            RuntimeError: The consumer is closed.
            EpochfenceError: The fence cannot decide; call again where it says so.
        """
        messages = self._gather(1, checked_timeout(timeout))
        return messages[0] if messages else None

    def consume(
        self, num_messages: int = 1, timeout: float | None = FOREVER
    ) -> list[Message]:
        """Admitted messages and events, once there are so many or the time is over.

        Args:
            num_messages: How many at most, up to 1,000,000.
            timeout: How many seconds to wait; None or negative: for ever.

        Raises:
            ValueError: `num_messages` is out of range.
            RuntimeError: The consumer is closed.
            EpochfenceError: The fence cannot decide; call again where it says so.
        """
        return self._gather(checked_count(num_messages), checked_timeout(timeout))

    def _gather(self, count: int, timeout_s: float) -> list[Message]:
        gathering = Gathering(self._reader, count, timeout_s)
        while True:
            # A turn is short: others, and signal handlers, get theirs.
            with self._turns:
                messages = gathering.step()
            if messages is not None:
                return messages

    def __iter__(self) -> Iterator[Message]:
        """Admitted messages, without end (until the consumer is closed)."""
        return self

    def __next__(self) -> Message:
        """The next admitted message.

        Raises:
            StopIteration: The consumer was closed.
            KafkaException: An event of the client; call again to go on.
            EpochfenceError: The fence cannot decide; call again where it says so.
        """
        while True:
            try:
                message = self.poll(1.0)
            except RuntimeError:
                if self._reader.is_closed:
                    raise StopIteration from None
                raise
            if message is None:
                continue
            error = message.error()
            if error is None:
                return message
            if error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)

    # Offsets.

    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[TopicPartition] | None:
        """Commit a message's offset, these offsets, or all that is done or stored.

        Args:
            message: Its offset plus one is committed.
            offsets: What to commit; no metadata, which is the fence's own.
            asynchronous: Whether not to wait for the answer (config `on_commit` is
                told of it).

        Returns:
            What was committed, with an error for each that was not; None where it is
            asynchronous.

        Raises:
            KafkaException: The commit failed, or there is nothing to commit.
            TopicUnavailable: A topic was deleted (and perhaps made anew), or the
                cluster does not tell its id: nothing was committed.
            MisconfiguredError: An offset carries metadata of another tool.
        """
        if message is not None and offsets is not None:
            raise ValueError("give a message or offsets, not both")
        places = places_to_commit(message, offsets)
        with self._turns:
            self._check_open()
            return self._reader.commit(places, is_asynchronous=asynchronous)

    def commit_as_given(self, offsets: list[TopicPartition]) -> list[TopicPartition]:
        """Commit offsets with the leader epochs and the metadata that they carry.

        For a sink whose positions are the group's commits, as `sink_state` told them.
        Anything else is for `commit`, which sees to both.

        Returns:
            What was committed, with an error for each that was not.

        Raises:
            KafkaException: The commit failed, or this consumer is no member now. (From
                somebody outside of it, a group without members takes any commit.)
        """
        places = checked_partitions(offsets, "offsets")
        with self._turns:
            self._check_open()
            return self._reader.commit_as_given(places)

    def store_offsets(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
    ) -> None:
        """Store offsets, to be committed by the next automatic or plain commit.

        Raises:
            MisconfiguredError: The config leaves that to the consumer.
            KafkaException: A partition is not assigned.
        """
        places = places_to_commit(message, offsets)
        if places is None:
            raise ValueError("give a message or offsets")
        with self._turns:
            self._check_open()
            self._reader.store(places)

    def committed(
        self, partitions: list[TopicPartition], timeout: float = FOREVER
    ) -> list[TopicPartition]:
        """The group's committed offsets."""
        places = checked_partitions(partitions)
        with self._turns:
            self._check_open()
            return self._reader.raw.committed(places, timeout=checked_timeout(timeout))

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Where the next message of each partition is looked for."""
        places = checked_partitions(partitions)
        with self._turns:
            self._check_open()
            return self._reader.position(places)

    def sink_state(self, partition: TopicPartition) -> SinkState | None:
        """What has to be stored with the effect of all that was handed over.

        Stored in one transaction with that effect, and given to `positions` after a
        restart, it makes each admitted message count once.

        Returns:
            The position and every epoch start that counts there; None where nothing
            was handed over yet, since what lies below is still being looked at.

        Raises:
            KafkaException: The partition is not assigned.
        """
        [place] = checked_partitions([partition], "partition")
        with self._turns:
            self._check_open()
            return self._reader.state(place)

    def seek(self, partition: TopicPartition) -> None:
        """Go on at another offset of an assigned partition.

        What lies between the records judged so far and a place further on is read,
        for the epochs that began there.

        Raises:
            KafkaException: The partition is not assigned.
        """
        [place] = checked_partitions([partition], "partition")
        with self._turns:
            self._check_open()
            self._reader.seek(place)

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Deliver nothing of partitions until they are resumed."""
        places = checked_partitions(partitions)
        with self._turns:
            self._check_open()
            self._reader.pause(places)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Deliver from partitions again."""
        places = checked_partitions(partitions)
        with self._turns:
            self._check_open()
            self._reader.resume(places)

    # What the fence did.

    @property
    def counts(self) -> dict[str, int]:
        """How many records had each verdict, by reason.

        `ok` (admitted), `unstamped-admitted` (admitted too, as `unstamped` says),
        `barrier`, and the reasons of rejected records: `stale-epoch`, `malformed`,
        `ambiguous`, `unstamped`, `ungranted`, `conflict`, `implausible`.
        """
        return dict(self._reader.rejections.counts)

    @property
    def progress(self) -> dict[tuple[str, int], tuple[int, int, int]]:
        """Partitions that are being read for the epochs that began there.

        For each (topic, partition): where that began, has come to, and will end.
        """
        return self._reader.progress

    # What the client offers besides.

    def list_topics(self, *args: Any, **kwargs: Any) -> Any:
        """As confluent's `Consumer.list_topics`."""
        with self._turns:
            return self._reader.raw.list_topics(*args, **kwargs)

    def get_watermark_offsets(self, *args: Any, **kwargs: Any) -> Any:
        """As confluent's `Consumer.get_watermark_offsets`."""
        with self._turns:
            return self._reader.raw.get_watermark_offsets(*args, **kwargs)

    def offsets_for_times(self, *args: Any, **kwargs: Any) -> Any:
        """As confluent's `Consumer.offsets_for_times`."""
        with self._turns:
            return self._reader.raw.offsets_for_times(*args, **kwargs)

    def consumer_group_metadata(self) -> Any:
        """As confluent's `Consumer.consumer_group_metadata`, of a member.

        Ask for it before a transaction begins that `send_offsets_to_transaction` is
        called in. What it is asked for later may be of a later generation, in which
        the partition belongs to another member.

        Raises:
            KafkaException: This consumer has subscribed, and is no member now. (The
                client tells of no member then, and a broker may let that pass.)
        """
        with self._turns:
            return self._reader.group_metadata()

    def memberid(self) -> str:
        """This member's id in the group."""
        with self._turns:
            return self._reader.raw.memberid()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """As confluent's `Consumer.set_sasl_credentials`."""
        with self._turns:
            self._reader.raw.set_sasl_credentials(username, password)

    # The end.

    def _check_open(self) -> None:
        if self._reader.is_closed:
            raise RuntimeError("Consumer closed")

    def close(self) -> None:
        """Commit what is done (where that is automatic), and leave the group."""
        with self._turns:
            self._reader.close(is_clean=True)

    def __enter__(self) -> FencedConsumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Where the application failed, nobody knows whether it is done with the last
        # message that it got: no automatic commit then.
        with self._turns:
            self._reader.close(is_clean=error is None)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a FencedConsumer cannot be pickled: open one in each process")
