"""Fires each tick of a schedule once, whoever leads.

A tick is a message with its number, and the number is its cursor: whoever takes over
reads which tick was the last one that is admitted, and goes on behind it. Run it twice
or more, one leads; and count, each tick once, in a database:

    python scheduler.py run -b localhost:9092 --topic ticks \\
        --since 2026-12-01T00:00:00Z --every 60
    python scheduler.py count -b localhost:9092 --topic ticks --database ticks.db

Ticks that are missed, while nobody led, are fired late (`--missed all`), or but for the
latest not at all (`--missed skip`). examples/README.md says what else one has to know.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from confluent_kafka import KafkaException, Message

from command_line import (
    Stopped,
    add_kafka_options,
    add_leader_options,
    cursor_numbers,
    gapless_config,
    kafka_config,
    open_election,
    open_ledger,
    parser_of,
    positive,
    reported_errors,
    say,
    strange,
    tell_state,
    whole,
)
from epochfence import (
    LedgerUnavailable,
    MisconfiguredError,
    SinkRunner,
    SqliteSink,
    TableUnavailable,
    Tenure,
    TopicUnavailable,
    lead,
)
from epochfence.elections import Election

_CONFIRM_S = 30.0
#: So many missed ticks are fired, and confirmed, at once.
_AT_ONCE = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: The clock may be set while nothing is due.
_LONGEST_WAIT_S = 1.0


@dataclass(frozen=True)
class Schedule:
    """Which tick is due when: number 1 at the beginning, then one every so often.

    The numbers go by the clock alone, so that all candidates mean the same by them.

    Attributes:
        since: When the first tick is due.
        every_s: The time between two.
        last: The number of the last one, None where there is none.
    """

    since: datetime
    every_s: float
    last: int | None = None

    def number_at(self, now: datetime) -> int:
        """The latest tick that is due by then; 0 for none."""
        number = (now - self.since) // self.every + 1
        return max(0, number if self.last is None else min(number, self.last))

    def due(self, number: int) -> datetime:
        """When a tick is due.

        Raises:
            OverflowError: After the year 9999.
        """
        return self.since + (number - 1) * self.every

    @property
    def every(self) -> timedelta:
        """The time between two, in whole microseconds."""
        return timedelta(seconds=self.every_s)

    def cursor(self, number: int) -> str:
        """A tick's number, and what it goes by: the beginning and the step, in us."""
        step = timedelta(microseconds=1)
        return f"{number}:{(self.since - _EPOCH) // step}:{self.every // step}"

    def number_in(self, cursor: bytes) -> int:
        """The tick that a cursor names.

        Raises:
            Stopped: It goes by another schedule: its number means another time.
        """
        number, since_us, every_us = cursor_numbers(cursor, 3)
        if self.cursor(number).encode() != cursor:
            try:
                since = _EPOCH + timedelta(microseconds=since_us)
            except OverflowError:
                raise strange(cursor) from None
            raise Stopped(
                f"tick {number} was fired by another schedule: --since "
                f"{since.isoformat()} --every {every_us / 1e6:g}; by this one (--since "
                f"{self.since.isoformat()} --every {self.every_s:g}) its number means "
                f"another time, and ticks would be repeated, or left out. Go on with "
                f"the old schedule, or give the new one a topic of its own."
            )
        return number


class Scheduler:
    """Fires ticks for as long as a tenure lasts.

    Args:
        topic: Where ticks go; to its partition 0.
        schedule: When they are due.
        election: Resigned from where an outcome is not known.
        skips_missed: Whether, of several that are due, only the latest is fired.
        resume_after: The last tick that was fired, if the topic has lost it.
    """

    def __init__(
        self,
        topic: str,
        schedule: Schedule,
        election: Election,
        *,
        skips_missed: bool,
        resume_after: int | None,
    ) -> None:
        self._topic = topic
        self._schedule = schedule
        self._election = election
        self._skips_missed = skips_missed
        self._resume_after = resume_after

    def work(self, tenure: Tenure) -> None:
        """Fire ticks until the tenure is over, or the last one was fired."""
        fired = self._fired_before(tenure)
        say(f"epoch {tenure.leadership.epoch}: goes on after tick {fired}")
        try:
            while not tenure.over.is_set():
                if self._schedule.last is not None and fired >= self._schedule.last:
                    say(
                        f"tick {fired} was fired, and {self._schedule.last} is the last"
                    )
                    return
                due = self._schedule.number_at(datetime.now(timezone.utc))
                if due > fired:
                    fired = self._fire(tenure, fired, due)
                else:  # also where the clock was set back: nothing is fired twice
                    self._wait_for(tenure, fired + 1)
        except (
            KafkaException,
            TopicUnavailable,
            LedgerUnavailable,
            TableUnavailable,
        ) as error:
            # Whether a tick was fired is not known: the next leader, this process or
            # another, reads what was admitted.
            say(f"gives epoch {tenure.leadership.epoch} up: {error}")
            tenure.producer.purge()
            self._election.resign()
        tenure.wait()

    def _fired_before(self, tenure: Tenure) -> int:
        """The last tick that is admitted, 0 for none.

        Raises:
            Stopped: That cannot be known.
        """
        recovered = tenure.recovered
        assert recovered is not None  # `cursors=True` asks for it
        if (self._topic, 0) not in recovered.cursors:
            if self._resume_after is not None:
                return self._resume_after
            raise Stopped(
                f"{self._topic} has lost the last tick, by retention or compaction: "
                f"name it (--resume-after), and keep ticks longer than the longest "
                f"time in which nobody leads."
            )
        cursor = recovered.cursors[self._topic, 0]
        return 0 if cursor is None else self._schedule.number_in(cursor)

    def _fire(self, tenure: Tenure, fired: int, due: int) -> int:
        """Fire what is due, and wait for the answer; the last tick that was fired.

        Raises:
            Deposed: Another leads.
            TopicUnavailable: A delivery failed.
        """
        first = due if self._skips_missed else fired + 1
        last = min(due, first + _AT_ONCE - 1)
        for number in range(first, last + 1):
            tick = {
                "tick": number,
                "due": self._schedule.due(number).isoformat(),
                "epoch": tenure.leadership.epoch,
            }
            # The key is the tick's identity, whoever fires it: an API that is called
            # for it can tell a repetition by it.
            key = f"{tenure.leadership.scope}/{number}"
            tenure.producer.produce(
                self._topic, json.dumps(tick), key, 0,
                cursor=self._schedule.cursor(number),
            )  # fmt: skip
        receipts = tenure.producer.confirm(_CONFIRM_S)
        for failed in receipts.undelivered:
            raise TopicUnavailable(self._topic, failed.reason, failed.partition)
        if not receipts.are_all_admitted and tenure.deposed is None:
            raise TopicUnavailable(self._topic, "an unclean election took ticks", 0)
        return last

    def _wait_for(self, tenure: Tenure, number: int) -> None:
        left = self._schedule.due(number) - datetime.now(timezone.utc)
        tenure.wait(min(max(left.total_seconds(), 0.001), _LONGEST_WAIT_S))


def run(options: argparse.Namespace) -> None:
    """Lead whenever it can, until SIGTERM or SIGINT, or the last tick."""
    scope = scope_of(options)
    config = gapless_config(options)
    with (
        closing(open_election(options, scope, options.postgres)) as election,
        open_ledger(options) as ledger,
    ):
        scheduler = Scheduler(
            options.topic,
            Schedule(options.since, options.every_s, options.last),
            election,
            skips_missed=options.missed == "skip",
            resume_after=options.resume_after,
        )
        lead(
            config, ledger, election, scope, [options.topic],
            holder=options.holder, cursors=True, on_state=tell_state,
        ).serve(scheduler.work)  # fmt: skip


def count(options: argparse.Namespace) -> None:
    """Count ticks until SIGTERM or SIGINT: the count and the position are one."""
    try:
        with closing(sqlite3.connect(options.database)) as database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS ticks"
                " (number INTEGER PRIMARY KEY, times INTEGER NOT NULL)"
            )
            database.commit()
    except sqlite3.Error as error:
        raise MisconfiguredError(
            "--database", options.database, str(error),
            "Give a file of SQLite, or a new one in a folder that may be written to.",
        ) from error  # fmt: skip
    with (
        open_ledger(options) as ledger,
        SqliteSink(options.database, count_ticks) as sink,
    ):
        config = {**kafka_config(options), "group.id": options.group}
        require = {options.topic: [scope_of(options)]}
        SinkRunner(config, ledger, sink, require=require).run([options.topic])


def count_ticks(cursor: sqlite3.Cursor, messages: Sequence[Message]) -> None:
    """Count each message, in the transaction that keeps the position."""
    cursor.executemany(
        "INSERT INTO ticks VALUES (?, 1)"
        " ON CONFLICT (number) DO UPDATE SET times = times + 1",
        [(json.loads(message.value() or b"")["tick"],) for message in messages],
    )


def scope_of(options: argparse.Namespace) -> str:
    """What is led."""
    scope: str = options.scope or f"scheduler/{options.topic}"
    return scope


def moment(text: str) -> datetime:
    """A time with its zone, for argparse."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
        if found.tzinfo is None:
            raise argparse.ArgumentTypeError(
                f"{text} lacks a zone, such as Z or +02:00"
            )
        found = found.astimezone(timezone.utc)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if found < _EPOCH:
        raise argparse.ArgumentTypeError(f"{text} is before 1970")
    return found


def main() -> None:
    """Parse the arguments, and do what they say."""
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(required=True)
    fire = commands.add_parser("run", help="fire ticks, while this process leads")
    fire.set_defaults(do=run)
    counting = commands.add_parser("count", help="count ticks in SQLite")
    counting.set_defaults(do=count)
    for command in (fire, counting):
        command.add_argument("--topic", required=True, help="where ticks go")
        command.add_argument(
            "--scope", metavar="S", help="what is led (scheduler/TOPIC)"
        )
        add_kafka_options(command)
    fire.add_argument(
        "--since", type=moment, required=True, metavar="TIME",
        help="when tick 1 is due, such as 2026-12-01T00:00:00Z",
    )  # fmt: skip
    fire.add_argument(
        "--every", type=positive, required=True, metavar="SECONDS", dest="every_s",
        help="the time between two ticks",
    )  # fmt: skip
    fire.add_argument(
        "--last", type=whole, metavar="N", help="end after this tick (never)"
    )
    fire.add_argument(
        "--missed", choices=["all", "skip"], default="all",
        help="of several ticks that are due, fire all, or the latest (%(default)s)",
    )  # fmt: skip
    fire.add_argument(
        "--resume-after", type=whole, metavar="N",
        help="the last tick that was fired, if the topic has lost it",
    )  # fmt: skip
    fire.add_argument("--postgres", metavar="CONNINFO", help="for its election")
    add_leader_options(fire, elections=["kafka", "postgres"])
    counting.add_argument("--database", required=True, metavar="FILE")
    counting.add_argument("--group", default="count-ticks", help="(%(default)s)")
    options = parser.parse_args()
    if options.do is run and options.resume_after is not None:
        try:
            Schedule(options.since, options.every_s).due(options.resume_after + 1)
        except OverflowError:
            fire.error(
                f"argument --resume-after: the tick after {options.resume_after} is "
                f"due after the year 9999"
            )
    with reported_errors():
        options.do(options)


if __name__ == "__main__":
    main()
