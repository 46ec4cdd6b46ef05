"""What the store behind a read fence answers where something goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import pytest

from epochfence import Leadership, Ledger, LedgerUnavailable
from epochfence.testing import MemoryLedger, MemoryLog
from read_fence import MAX_ITEM_BYTES, Store
from support.local_election import LocalElection, LocalOffice
from support.waiting import wait_until

_HERE = "http://here"
_SCOPE = "w"
_MUCH = b"x" * (MAX_ITEM_BYTES + 9)
_WAIT_S = 60

NewStore = Callable[..., Store]


@pytest.fixture
def new_store(memory_log: MemoryLog, memory_ledger: MemoryLedger) -> Iterator[NewStore]:
    """Opens a store that leads."""
    memory_log.create_topic("items")
    made: list[Store] = []

    def open_store(**options: Any) -> Store:
        election = LocalElection(LocalOffice())
        store = Store(
            {}, memory_ledger, election, _SCOPE, "items",
            holder="pod", address=_HERE, **options,
        )  # fmt: skip
        made.append(store)
        store.start()
        wait_until_it_serves(store)
        return store

    yield open_store
    for store in made:
        store.close()


def wait_until_it_serves(store: Store) -> None:
    def serves() -> bool:
        return store.answer("GET", "/items/cup").status in (200, 404)

    wait_until(serves, _WAIT_S, "it serves")


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The epochs that were verified."""
    epochs: list[int] = []
    verify = Ledger.verify

    def noted(ledger: Ledger, leadership: Leadership, timeout_s: float | None) -> None:
        epochs.append(leadership.epoch)
        verify(ledger, leadership, timeout_s)

    monkeypatch.setattr(Ledger, "verify", noted)
    return epochs


def test_each_read_is_proved(new_store: NewStore, verified: list[int]) -> None:
    store = new_store()
    verified.clear()
    assert store.answer("PUT", "/items/cup", b"3").status == 204
    assert verified == []  # `confirm` has proved it
    for _ in range(3):
        assert store.answer("GET", "/items/cup") == (200, b"3", ())
    assert verified == [1, 1, 1]


def test_reads_that_may_be_stale_share_a_proof(
    new_store: NewStore, verified: list[int]
) -> None:
    store = new_store(staleness_s=3600)
    verified.clear()
    for _ in range(3):
        assert store.answer("GET", "/items/cup").status == 404
    assert verified == []  # that of the first read of all


def test_a_ledger_that_does_not_answer(
    memory_ledger: MemoryLedger, new_store: NewStore
) -> None:
    store = new_store()
    memory_ledger.fail(LedgerUnavailable("coordination", "no broker answers"))
    answer = store.answer("GET", "/items/cup")
    assert (answer.status, answer.headers) == (503, (("Retry-After", "1"),))
    assert b"no broker answers" in answer.body
    assert store.answer("GET", "/items/cup").status == 404


def test_a_write_of_which_nobody_knows(
    memory_ledger: MemoryLedger, new_store: NewStore
) -> None:
    """It was written; what is served next has been read from the topic."""
    store = new_store()
    memory_ledger.fail(LedgerUnavailable("coordination", "no broker answers"))
    answer = store.answer("PUT", "/items/cup", b"3")
    assert answer.status == 503
    assert b"it may be written, or not" in answer.body
    wait_until_it_serves(store)
    assert store.answer("GET", "/items/cup") == (200, b"3", ())
    assert memory_ledger.state.epoch_of(_SCOPE) == 2


def test_a_deposed_leader_answers_no_read(
    memory_ledger: MemoryLedger, new_store: NewStore
) -> None:
    """Although nobody has told it yet, and what it knows may still be so."""
    store = new_store()
    memory_ledger.claim(_SCOPE, holder="b", attributes={"address": "http://there"})
    there = (("Location", "http://there/items/a%20cup"),)
    assert store.answer("GET", "/items/a cup") == (307, b"", there)


def test_a_leader_that_names_no_address(
    memory_ledger: MemoryLedger, new_store: NewStore
) -> None:
    store = new_store()
    memory_ledger.claim(_SCOPE, holder="b")
    answer = store.answer("GET", "/items/cup")
    assert (answer.status, answer.body) == (503, b"nobody leads now\n")


def test_what_cannot_go_on_is_not_healthy(
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[Exception] = []
    election = LocalElection(LocalOffice())
    store = Store(
        {}, memory_ledger, election, _SCOPE, "not-there", holder="pod", address=_HERE
    )
    assert store.answer("GET", "/healthz").status == 200
    store.start(on_end=ended.append)
    wait_until(lambda: ended, _WAIT_S, "it ends")
    assert ended == [store.error]
    assert caplog.records == []  # nobody's traceback: the error says it all
    answer = store.answer("GET", "/healthz")
    assert answer.status == 503
    assert b"no such topic" in answer.body
    store.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/", b"", 404),
        ("GET", "/items/", b"", 404),
        ("POST", "/leader", b"", 404),
        ("DELETE", "/items/cup", b"", 405),
        ("PUT", "/items/cup", b"x" * (MAX_ITEM_BYTES + 1), 413),
    ],
)
def test_questions_that_make_no_sense(
    new_store: NewStore, method: str, path: str, body: bytes, status: int
) -> None:
    assert new_store().answer(method, path, body).status == status


@pytest.mark.parametrize(
    ("facts", "body", "status"),
    [
        ({"REQUEST_METHOD": "PUT"}, b"", "411 Length Required"),
        ({"REQUEST_METHOD": "PUT", "CONTENT_LENGTH": ""}, b"3", "411 Length Required"),
        ({"REQUEST_METHOD": "PUT", "CONTENT_LENGTH": "x"}, b"3", "411 Length Required"),
        ({"REQUEST_METHOD": "PUT", "CONTENT_LENGTH": "9"}, b"3", "400 Bad Request"),
        ({"REQUEST_METHOD": "PUT", "CONTENT_LENGTH": "1"}, b"3", "204 No Content"),
        ({"REQUEST_METHOD": "PUT", "CONTENT_LENGTH": "0"}, b"", "204 No Content"),
        # Python's newer versions name it otherwise.
        ({"REQUEST_METHOD": "PUT", "CONTENT_LENGTH": f"{len(_MUCH)}"}, _MUCH, "413 "),
    ],
)
def test_an_item_of_which_not_all_came(
    new_store: NewStore, facts: dict[str, str], body: bytes, status: str
) -> None:
    """A client that broke off, or did not say how much there is, writes nothing."""
    store = new_store()
    told: list[str] = []
    environ = {"PATH_INFO": "/items/cup", "wsgi.input": BytesIO(body), **facts}
    store(environ, lambda status, _: told.append(status))
    assert [told[0].startswith(status), len(told)] == [True, 1], told
    is_written = store.answer("GET", "/items/cup").status == 200
    assert is_written == status.startswith("204")
