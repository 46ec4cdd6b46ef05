"""Sends the rows of an outbox in PostgreSQL to Kafka, each once, whoever leads.

An application writes what happened, and the message that tells of it, in one
transaction: the message is a row of the table `outbox`. This relay sends the rows to a
topic. Run it twice or more, one leads:

    python outbox_relay.py create-table --postgres CONNINFO \\
        --topic orders --partitions 4
    python outbox_relay.py run --postgres CONNINFO -b localhost:9092

    INSERT INTO outbox (key, value) VALUES ('order-7', '{"state": "paid"}');

Whoever reads `orders` through a fence gets each row once, each partition's in order,
whatever happens to the relays: killed, stopped for an hour and woken up again, cut off.
examples/README.md says why, and what it takes.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException

try:
    import psycopg
    from psycopg import sql
except ImportError as error:
    print(
        f"error: psycopg cannot be used ({error}). "
        f"Install it: pip install 'epochfence[postgres]'",
        file=sys.stderr,
    )
    sys.exit(2)

from command_line import (
    Stopped,
    add_kafka_options,
    add_leader_options,
    counted,
    gapless_config,
    number_of,
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
    Receipts,
    TableUnavailable,
    Tenure,
    TopicUnavailable,
    lead,
)
from epochfence.elections import Election

# The place of a row is (xid, id): the transaction that wrote it, and its number in it.
# A database that goes back to an older state gives both again, to other rows; it never
# gives a `token` again.
# `partition` goes by the key, and is kept with the row: two relays, or two versions of
# this program, cannot send a row different ways.
TABLE = """
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    key text NOT NULL,
    value text NOT NULL,
    token uuid NOT NULL DEFAULT gen_random_uuid(),
    partition int NOT NULL GENERATED ALWAYS AS
        (('x' || left(md5(key), 7))::bit(28)::int % {partitions}) STORED,
    sent_at timestamptz
);
CREATE INDEX outbox_unsent ON outbox (xid, id) WHERE sent_at IS NULL;
CREATE TABLE outbox_relay (
    is_all boolean PRIMARY KEY DEFAULT true CHECK (is_all),
    topic text NOT NULL,
    scope text NOT NULL
);
INSERT INTO outbox_relay (topic, scope) VALUES ({topic}, {scope});
"""

# Two relays with other topics, or other scopes, would both lead, and each mark what the
# other has not sent: so the table says which, and no relay is asked.
TOPIC_AND_SCOPE = "SELECT topic, scope FROM outbox_relay"

# Every transaction below `pg_snapshot_xmin` has ended, and whatever begins from now on
# is above it. So no row can appear among those that were sent, or before them: rows
# become visible here in the order of their places. (By `id` alone they do not: number 7
# may be committed after number 8 was sent.)
SETTLED = "xid < pg_snapshot_xmin(pg_current_snapshot())"

UNSENT = f"""
SELECT xid::text || ':' || id || ':' || token, id, token, key, value, partition
FROM outbox
WHERE sent_at IS NULL AND {SETTLED}
ORDER BY xid, id LIMIT %s
"""

MARK = """
UPDATE outbox SET sent_at = now()
WHERE id = ANY(%s) AND token = ANY(%s) AND sent_at IS NULL
"""

TOKEN = "SELECT token::text FROM outbox WHERE id = %s"

UP_TO = "partition = %s AND sent_at IS NULL AND (xid, id) <= (%s::text::xid8, %s)"

COUNT_UP_TO = f"SELECT count(*) FROM outbox WHERE {UP_TO}"

MARK_UP_TO = f"""
UPDATE outbox SET sent_at = now() WHERE {UP_TO}
AND EXISTS (SELECT FROM outbox WHERE id = %s AND token = %s::uuid)
"""

IS_SETTLED = "SELECT %s::text::xid8 < pg_snapshot_xmin(pg_current_snapshot())"

IN_DOUBT = f"""
SELECT count(*) FROM outbox WHERE partition = %s AND sent_at IS NULL AND {SETTLED}
"""

# The transaction behind which rows wait, if any do. Of other users' it may not be told
# how old they are.
HELD_UP = """
SELECT xid::text, who, extract(epoch FROM now() - began)::float
FROM (
    SELECT transaction AS xid, prepared AS began,
        format('the prepared transaction %L of the database %I: COMMIT PREPARED it, '
               'or ROLLBACK PREPARED', gid, database) AS who
    FROM pg_prepared_xacts
    UNION ALL
    SELECT backend_xid, xact_start,
        format('the open transaction of process %s, of the database %I: end it, or '
               'SELECT pg_terminate_backend(%s)', pid, datname, pid)
    FROM pg_stat_activity
) AS transactions
WHERE xid = pg_snapshot_xmin(pg_current_snapshot())::xid AND EXISTS (
    SELECT FROM outbox
    WHERE sent_at IS NULL AND xid >= pg_snapshot_xmin(pg_current_snapshot())
)
"""

_CURSOR = re.compile(r"([0-9]+):([0-9]+):([0-9a-f-]{36})")
_DATABASE_S = 10
_CONFIRM_S = 30.0
_REMEDY = (
    "The database was restored or failed over to an older state, or is another one: "
    "which rows were sent is not known, and none is marked. Compare the rows that are "
    "not marked with the topic, and mark those that are there; then name a new topic "
    "in the table outbox_relay (topic, and scope), and start the relays anew."
)


class UnknownOutcomeError(Exception):
    """Whether rows were sent is not known: only another tenure can find out."""


class Row(NamedTuple):
    """A row to be sent."""

    cursor: str
    id: int
    token: UUID
    key: str
    value: str
    partition: int

    @property
    def size(self) -> int:
        """Its bytes, without what Kafka and the stamp add."""
        return len(self.key.encode()) + len(self.value.encode())


class Relay:
    """Sends rows for as long as a tenure lasts.

    Args:
        conninfo: The database.
        topic: Where rows are sent.
        election: Resigned from where an outcome is not known.
        batch: How many rows are handed over, confirmed and marked at once.
        interval_s: How often to look for rows where there were none.
        trusts_marks: Whether to go by the marks alone where cursors are gone.
        patience_s: How long rows may wait behind a transaction until it says so.
    """

    def __init__(
        self,
        conninfo: str,
        topic: str,
        election: Election,
        *,
        batch: int,
        interval_s: float,
        trusts_marks: bool,
        patience_s: float = 10.0,
    ) -> None:
        self._conninfo = conninfo
        self._topic = topic
        self._election = election
        self._batch = batch
        self._interval_s = interval_s
        self._trusts_marks = trusts_marks
        self._patience_s = patience_s
        #: The transaction behind which rows wait, since when, and if it was told.
        self._held_up: tuple[str, float, bool] | None = None

    def work(self, tenure: Tenure) -> None:
        """Send rows until the tenure is over, or until an outcome is not known."""
        try:
            with connected(self._conninfo) as connection:
                self._resume(connection, tenure)
                say(f"epoch {tenure.leadership.epoch}: sends what is not marked yet")
                while not tenure.over.is_set():
                    rows = self._unsent(connection)
                    if not rows:
                        self._look_what_holds_up(connection)
                        tenure.wait(self._interval_s)
                    elif not self._send(connection, tenure, rows):
                        break
        except (
            UnknownOutcomeError,
            TopicUnavailable,
            LedgerUnavailable,
            TableUnavailable,
            psycopg.OperationalError,
            KafkaException,  # the client has failed: a row was refused, perhaps
        ) as error:
            # To send again what may have been sent would be to send it twice. The next
            # leader, this process or another, reads what was admitted, and goes on.
            say(f"gives epoch {tenure.leadership.epoch} up: {error}")
            tenure.producer.purge()
            self._election.resign()
        tenure.wait()

    def _resume(self, connection: psycopg.Connection[Any], tenure: Tenure) -> None:
        """Mark what was admitted before this tenure: it is not sent again.

        Raises:
            Stopped: That cannot be known.
        """
        recovered = tenure.recovered
        assert recovered is not None  # `cursors=True` asks for it
        told = topic_and_scope(connection)
        if told != (self._topic, tenure.leadership.scope):
            raise Stopped(
                f"the table outbox goes to the topic {told[0]} under the scope "
                f"{told[1]} by now: start this relay anew"
            )
        for (_, partition), cursor in sorted(recovered.cursors.items()):
            if cursor is None:
                continue
            found = _CURSOR.fullmatch(cursor.decode("utf-8", "replace"))
            if found is None:
                raise strange(cursor)
            xid, number, token = int(found[1]), int(found[2]), found[3]
            settled = connection.execute(IS_SETTLED, [str(xid)]).fetchone()
            if settled is None or not settled[0]:
                raise Stopped(
                    f"partition {partition} of {self._topic} was sent rows up to "
                    f"{xid}:{number}, which this database has not come to. {_REMEDY}"
                )
            up_to = [partition, str(xid), number]
            self._check_row(connection, up_to, token)
            marked = connection.execute(MARK_UP_TO, [*up_to, number, token])
            if marked.rowcount:
                say(f"partition {partition}: {marked.rowcount} more rows were admitted")
        for _, partition in sorted(recovered.unknown):
            found = connection.execute(IN_DOUBT, [partition]).fetchone()
            if found and found[0] and not self._trusts_marks:
                raise Stopped(
                    f"partition {partition} of {self._topic} has lost the cursor of "
                    f"what was last sent, by retention or compaction; {found[0]} rows "
                    f"that are not marked may have been sent. Mark those that were, or "
                    f"have all of them sent (again): --trust-marks"
                )

    def _check_row(
        self, connection: psycopg.Connection[Any], up_to: list[Any], token: str
    ) -> None:
        """Return if the row that was sent last is the one that is there.

        Or if it was deleted, and whatever was before it is marked, as it was.

        Raises:
            Stopped: The rows are not those that were sent.
        """
        partition, _, number = up_to
        last_sent = (
            f"the last row that partition {partition} of {self._topic} was sent is row "
            f"{number} with the token {token}"
        )
        found = connection.execute(TOKEN, [number]).fetchone()
        if found is None:
            before = connection.execute(COUNT_UP_TO, up_to).fetchone()
            if before and before[0]:
                raise Stopped(
                    f"{last_sent}; it is not there, and {before[0]} rows before it are "
                    f"not marked. {_REMEDY}"
                )
        elif found[0] != token:
            raise Stopped(
                f"{last_sent}; row {number} in this database has the token {found[0]}. "
                f"{_REMEDY}"
            )

    def _look_what_holds_up(self, connection: psycopg.Connection[Any]) -> None:
        """Say, once, which transaction rows have been waiting behind for long."""
        found = connection.execute(HELD_UP).fetchone()
        if found is None:
            self._held_up = None
            return
        xid, who, age_s = found
        if self._held_up is None or self._held_up[0] != xid:
            self._held_up = (xid, time.monotonic(), False)
        _, since_s, is_told = self._held_up
        if not is_told and time.monotonic() - since_s >= self._patience_s:
            age = "of unknown age" if age_s is None else f"{age_s:.0f} s old"
            say(f"warning: rows wait behind a transaction, {age}: {who}")
            self._held_up = (xid, since_s, True)

    def _unsent(self, connection: psycopg.Connection[Any]) -> list[Row]:
        found = connection.execute(UNSENT, [self._batch]).fetchall()
        return [Row(*columns) for columns in found]

    def _send(
        self,
        connection: psycopg.Connection[Any],
        tenure: Tenure,
        rows: Sequence[Row],
    ) -> bool:
        """Hand rows over, wait for the answer, mark them; whether to go on.

        Raises:
            Deposed: Another leads.
            UnknownOutcomeError: A delivery failed: nothing may be sent behind it.
            Stopped: A row cannot be sent.
        """
        handed: list[Row] = []
        failed: UnknownOutcomeError | None = None
        for row in rows:
            try:
                if not self._hand_over(tenure, row):
                    break
            except UnknownOutcomeError as error:
                failed = error  # by which row, the answer tells
                break
            handed.append(row)
        if not handed and failed is None:
            return False
        receipts = tenure.producer.confirm(_CONFIRM_S)
        if receipts.undelivered:
            self._check_sizes(receipts, handed)
            raise UnknownOutcomeError(_failures(receipts))
        if failed is not None:
            raise failed
        if not receipts.are_all_admitted:
            say(f"epoch {tenure.leadership.epoch}: {counted(receipts.counts)}")
            if tenure.deposed is None:
                raise UnknownOutcomeError("an unclean election took messages")
            return False
        ids, tokens = [row.id for row in handed], [row.token for row in handed]
        connection.execute(MARK, [ids, tokens])
        say(f"epoch {tenure.leadership.epoch}: {len(handed)} rows admitted")
        return True

    def _hand_over(self, tenure: Tenure, row: Row) -> bool:
        """Hand a row over; False where the tenure is over before."""
        if (self._topic, row.partition) not in tenure.barriers:
            raise Stopped(
                f"row {row.id} belongs to partition {row.partition}, and {self._topic} "
                f"has {len(tenure.barriers)}. Give the topic as many as the table was "
                f"created for."
            )
        while not tenure.over.is_set():
            try:
                try:
                    tenure.producer.produce(
                        self._topic,
                        row.value,
                        row.key,
                        row.partition,
                        cursor=row.cursor,
                    )
                    return True
                except BufferError:
                    tenure.producer.poll(0.1)
            except KafkaException as error:
                raise self._refused(row, error.args[0]) from error
        return False

    def _refused(self, row: Row, cause: KafkaError) -> Exception:
        """What to raise where the client does not take a row."""
        if cause.fatal() or cause.code() == KafkaError._FATAL:
            return UnknownOutcomeError(cause.str())  # an earlier delivery has failed
        if cause.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return Stopped(
                f"row {row.id} cannot be sent: its {row.size:,} bytes are more than "
                f"the client takes. Have it take more (-X message.max.bytes=N), and "
                f"the topic (max.message.bytes of {self._topic}); or make it smaller."
            )
        return Stopped(f"row {row.id} cannot be sent: {cause.str()}")

    def _check_sizes(self, receipts: Receipts, handed: Sequence[Row]) -> None:
        """See that nothing was too large for the topic.

        Raises:
            Stopped: Something was. It would be, whoever sends it.
        """
        for failed in receipts.undelivered:
            rows = [row for row in handed if row.partition == failed.partition]
            if failed.error != "MSG_SIZE_TOO_LARGE" or not rows:
                continue
            largest = max(rows, key=lambda row: row.size)
            raise Stopped(
                f"row {largest.id} cannot be sent: {self._topic}, partition "
                f"{failed.partition}, has refused {failed.messages} messages as too "
                f"large, and this row is the largest of them, with {largest.size:,} "
                f"bytes. Raise max.message.bytes of the topic, or make the row "
                f"smaller; where the row is small, send less at once (-X batch.size=N)."
            )


def _failures(receipts: Receipts) -> str:
    return "; ".join(
        f"{one.messages} of partition {one.partition} not delivered: {one.reason}"
        for one in receipts.undelivered
    )


@contextmanager
def connected(conninfo: str) -> Generator[psycopg.Connection[Any], None, None]:
    """A connection to the primary on which each statement is a transaction."""
    with closing(
        psycopg.connect(
            conninfo,
            autocommit=True,
            connect_timeout=_DATABASE_S,
            tcp_user_timeout=_DATABASE_S * 1000,
            target_session_attrs="read-write",
        )
    ) as connection:
        connection.execute("SET statement_timeout = '10s'")
        yield connection


def create_tables(
    connection: psycopg.Connection[Any], topic: str, scope: str | None, partitions: int
) -> None:
    """Create the table, and the one that says where its rows go."""
    given = {
        "topic": topic,
        "scope": scope or f"outbox/{topic}",
        "partitions": partitions,
    }
    literals = {name: sql.Literal(value) for name, value in given.items()}
    connection.execute(sql.SQL(TABLE).format(**literals))


def topic_and_scope(connection: psycopg.Connection[Any]) -> tuple[str, str]:
    """Where the table's rows go, and what is led to send them.

    Raises:
        Stopped: Nobody has said.
    """
    found = connection.execute(TOPIC_AND_SCOPE).fetchone()
    if found is None:
        raise Stopped("the table outbox_relay is empty: it has the topic and the scope")
    topic, scope = found
    return topic, scope


def create_table(options: argparse.Namespace) -> None:
    """Create the table `outbox`, and `outbox_relay`, once."""
    with connected(options.postgres) as connection:
        create_tables(connection, options.topic, options.scope, options.partitions)
    say(f"created: outbox, for {options.topic} and its {options.partitions} partitions")


def run(options: argparse.Namespace) -> None:
    """Lead whenever it can, until SIGTERM or SIGINT."""
    with connected(options.postgres) as connection:
        connection.execute("SELECT xid, token, sent_at FROM outbox LIMIT 0")
        topic, scope = topic_and_scope(connection)
    config = gapless_config(options)
    with (
        closing(open_election(options, scope, options.postgres)) as election,
        open_ledger(options) as ledger,
    ):
        relay = Relay(
            options.postgres,
            topic,
            election,
            batch=options.batch,
            interval_s=options.interval_s,
            trusts_marks=options.trust_marks,
        )
        lead(
            config, ledger, election, scope, [topic],
            holder=options.holder, cursors=True, on_state=tell_state,
        ).serve(relay.work)  # fmt: skip


def main() -> None:
    """Parse the arguments, and do what they say."""
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(required=True)
    create = commands.add_parser("create-table", help="create the table outbox")
    create.set_defaults(do=create_table)
    create.add_argument(
        "--partitions", type=partitions, required=True, metavar="N",
        help="of the topic; a key stays in its partition for good",
    )  # fmt: skip
    relay = commands.add_parser("run", help="send rows, while this process leads")
    relay.set_defaults(do=run)
    for command in (create, relay):
        command.add_argument(
            "--postgres", required=True, metavar="CONNINFO",
            help="such as postgresql://user@host/database",
        )  # fmt: skip
    create.add_argument("--topic", required=True, help="where rows are sent")
    create.add_argument("--scope", metavar="S", help="what is led (outbox/TOPIC)")
    relay.add_argument(
        "--batch", type=whole, default=500, metavar="N",
        help="rows that are sent, confirmed and marked at once (%(default)s)",
    )  # fmt: skip
    relay.add_argument(
        "--interval", type=positive, default=0.2, metavar="SECONDS", dest="interval_s",
        help="how often to look for rows where there were none (%(default)s)",
    )  # fmt: skip
    relay.add_argument(
        "--trust-marks", action="store_true",
        help="where the last cursor is gone, send what is not marked: maybe again",
    )  # fmt: skip
    add_kafka_options(relay)
    add_leader_options(relay, elections=["postgres", "kafka"])
    options = parser.parse_args()
    with reported_errors(), _reported_database_errors():
        options.do(options)


def partitions(text: str) -> int:
    """A number of partitions, for argparse."""
    return number_of(text, 100_000)


@contextmanager
def _reported_database_errors() -> Generator[None, None, None]:
    try:
        yield
    except psycopg.errors.UndefinedTable:
        raise Stopped("there is no table outbox: create it (create-table)") from None
    except psycopg.errors.UndefinedColumn as error:
        raise Stopped(
            f"the table outbox is not one that create-table has made: "
            f"{error.diag.message_primary}"
        ) from None
    except psycopg.errors.DuplicateTable:
        raise Stopped("there is a table outbox already") from None
    except psycopg.Error as error:
        raise Stopped(f"PostgreSQL: {error}") from error


if __name__ == "__main__":
    main()
