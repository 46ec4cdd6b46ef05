"""A process is killed with a transaction open: all of it is there, or nothing."""

from __future__ import annotations

import multiprocessing

import psycopg
import pytest

from epochfence import PostgresSink, SinkBatch, SinkState
from support.postgres_proxy import AFTER, BEFORE, CuttingProxy
from support.postgres_victim import FUNCTION, MARK, START, UPSERT, write
from support.sinks import apply_postgres, at, message

# From a process that has imported everything, a victim comes in a moment.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["epochfence.consumers.postgres_sink"])

COMMIT = "COMMIT\0"

#: In the order of a transaction, by what the statement holds.
STEPS = {
    FUNCTION: {
        "begin": "BEGIN",
        "limit": "SET LOCAL",
        "lock": "FOR UPDATE",
        "insert": "INSERT INTO applied",
        "position": "excluded.next_offset",
        "starts": "EXCEPT",
        "commit": COMMIT,
    },
    # Before and after these, it goes as with a function.
    UPSERT: {
        "stage": "CREATE TEMPORARY TABLE",
        "copy": "COPY",
        "delete": "DELETE FROM",
        "drop": "DROP TABLE",
        "insert": 'INSERT INTO "applied"',
        "commit": COMMIT,
    },
}


def applied(database: str) -> list[tuple[int, bytes | None]]:
    with psycopg.connect(database) as connection:
        return connection.execute(
            "SELECT position, value FROM applied ORDER BY position"
        ).fetchall()


@pytest.mark.parametrize(
    ("kind", "text", "when"),
    [
        pytest.param(kind, text, when, id=f"{kind}, {when} {name}")
        for kind, steps in STEPS.items()
        for name, text in steps.items()
        for when in (BEFORE, AFTER)
    ],
)
def test_killed_at_each_step(database: str, kind: str, text: str, when: str) -> None:
    kept = (3 if kind == UPSERT else 2, b"kept")
    with PostgresSink(database, apply_postgres) as sink:
        sink.write([SinkBatch("orders", 0, [message(*kept)], None, at(3), [])])
    with CuttingProxy(database) as proxy:
        victim = PROCESSES.Process(target=write, args=(proxy.conninfo, kind))
        proxy.cut(text, when, mark=MARK, then=victim.kill)
        victim.start()
        victim.join(60)
        assert victim.exitcode == -9
        victim.close()
    with PostgresSink(database, apply_postgres) as sink:
        if (text, when) == (COMMIT, AFTER):
            assert sink.load("orders", 0) == SinkState(at(5), (START,))
            deleted = [] if kind == UPSERT else [kept, (3, None)]
            assert applied(database) == [*deleted, (4, b"a")]
            return
        assert sink.load("orders", 0) == SinkState(at(3))
        assert applied(database) == [kept]
        # Nothing holds a lock any more.
        sink.write([SinkBatch("orders", 0, [message(4, b"b")], at(3), at(5), [])])
    assert applied(database) == [kept, (4, b"b")]
