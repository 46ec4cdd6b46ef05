"""What the outbox relay does where something goes wrong: a real outbox, no broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException

import outbox_relay
from command_line import Stopped
from epochfence.testing import MemoryConsumer, MemoryLedger, MemoryLog, MemoryProducer
from epochfence.testing.clients import MemoryKeeper
from outbox_relay import Relay, Row, create_tables
from support.example_service import SCOPE, TOPIC, Paused, Service
from support.producing import doing
from support.waiting import wait_until

_WAIT_S = 60
_PARTITIONS = 2

NewRelay = Callable[..., Relay]


@pytest.fixture(autouse=True)
def topic(memory_log: MemoryLog) -> None:
    memory_log.create_topic(TOPIC, _PARTITIONS)


@pytest.fixture
def outbox(database: str) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        create_tables(connection, TOPIC, SCOPE, _PARTITIONS)
        yield connection


@pytest.fixture
def service(memory_ledger: MemoryLedger) -> Iterator[Service]:
    made = Service(memory_ledger)
    yield made
    made.end()


@pytest.fixture
def new_relay(database: str, service: Service) -> NewRelay:
    def make(**options: Any) -> Relay:
        given: dict[str, Any] = {"batch": 1, "interval_s": 0.01, "trusts_marks": False}
        return Relay(database, TOPIC, service.election, **{**given, **options})

    return make


def insert(outbox: psycopg.Connection[Any], *values: str) -> None:
    for value in values:
        outbox.execute("INSERT INTO outbox (key, value) VALUES ('k', %s)", [value])


def unsent(outbox: psycopg.Connection[Any]) -> list[str]:
    found = outbox.execute("SELECT value FROM outbox WHERE sent_at IS NULL ORDER BY id")
    return [value for (value,) in found.fetchall()]


def wait_until_sent(outbox: psycopg.Connection[Any]) -> None:
    wait_until(lambda: not unsent(outbox), _WAIT_S, "every row is marked")


def admitted(ledger: MemoryLedger) -> list[str]:
    consumer = MemoryConsumer(ledger, require={TOPIC: [SCOPE]})
    consumer.subscribe([TOPIC])
    return [(message.value() or b"").decode() for message in consumer]


def test_what_did_not_arrive_in_time_is_not_marked(
    memory_ledger: MemoryLedger,
    outbox: psycopg.Connection[Any],
    service: Service,
    new_relay: NewRelay,
) -> None:
    """It is for the next leader to send, and what arrives after that is a zombie's."""

    def prepare(producer: Paused) -> None:
        if len(service.producers) == 1:
            producer.hold()

    service.prepare = prepare
    insert(outbox, "a", "b")
    service.start(new_relay(batch=2).work)
    wait_until_sent(outbox)
    late = service.producers[0].release()
    assert [message.value() for message in late] == [b"a", b"b"]
    assert admitted(memory_ledger) == ["a", "b"]
    assert [one.leaderships[0].epoch for one in service.producers] == [1, 2]


def test_what_a_deposed_leader_has_sent_is_not_marked_by_it(
    memory_ledger: MemoryLedger,
    outbox: psycopg.Connection[Any],
    service: Service,
    new_relay: NewRelay,
) -> None:
    marked: list[list[str]] = []

    def depose_when_sent(producer: Paused) -> None:
        produce, confirm = producer.produce, producer.confirm

        def confirmed(*arguments: Any) -> Any:
            if len(service.producers) == 1:
                # A successor's barrier, then what was handed over.
                successor = memory_ledger.depose(producer.leaderships[0])
                with MemoryProducer(memory_ledger, successor) as other:
                    other.take_over([TOPIC])
                producer.release()
            receipts = confirm(*arguments)
            marked.append(unsent(outbox))
            return receipts

        def held(*arguments: Any, **options: Any) -> None:
            producer.hold()
            produce(*arguments, **options)
            if len(service.producers) > 1:
                producer.release()

        vars(producer).update(confirm=confirmed, produce=held)

    service.prepare = depose_when_sent
    insert(outbox, "a", "b")
    service.start(new_relay(batch=2).work)
    wait_until_sent(outbox)
    assert marked == [["a", "b"], ["a", "b"]]
    assert admitted(memory_ledger) == ["a", "b"]


@pytest.mark.parametrize("arrives", [True, False])
def test_a_failed_delivery_is_not_repeated_but_looked_for(
    memory_ledger: MemoryLedger,
    outbox: psycopg.Connection[Any],
    service: Service,
    new_relay: NewRelay,
    capsys: pytest.CaptureFixture[str],
    arrives: bool,
) -> None:
    def prepare(producer: Paused) -> None:
        if len(service.producers) == 1:
            producer.fail_deliveries(arrives=arrives)

    service.prepare = prepare
    insert(outbox, "a", "b", "c")
    service.start(new_relay().work)
    wait_until_sent(outbox)
    assert admitted(memory_ledger) == ["a", "b", "c"]
    said = capsys.readouterr().out
    assert "gives epoch 1 up: 1 of partition" in said
    assert ("1 more rows were admitted" in said) == arrives


def test_a_database_that_goes_away(
    memory_ledger: MemoryLedger,
    outbox: psycopg.Connection[Any],
    service: Service,
    new_relay: NewRelay,
) -> None:
    insert(outbox, "a")
    service.start(new_relay().work)
    wait_until_sent(outbox)
    outbox.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    insert(outbox, "b")
    wait_until_sent(outbox)
    assert admitted(memory_ledger) == ["a", "b"]


def write_cursor(ledger: MemoryLedger, cursor: str) -> None:
    with MemoryProducer(ledger, ledger.claim(SCOPE, holder="other")) as other:
        other.take_over([TOPIC])
        other.produce(TOPIC, "x", partition=1, cursor=cursor)


@pytest.mark.parametrize(
    ("cursor", "told"),
    [
        ("9000000000:1:9f3a1c22-d4e5-46a7-8b1c-2d3e4f5a6b7c", "restored"),
        ("7", "not one of this program's"),
        ("7:19", "not one of this program's"),
        ("7:19:x", "not one of this program's"),
    ],
)
def test_cursors_that_are_not_of_this_outbox(
    memory_ledger: MemoryLedger,
    outbox: psycopg.Connection[Any],
    service: Service,
    new_relay: NewRelay,
    cursor: str,
    told: str,
) -> None:
    write_cursor(memory_ledger, cursor)
    insert(outbox, "a")
    service.start(new_relay().work)
    service.wait()
    assert isinstance(service.error, Stopped)
    assert told in str(service.error)
    assert unsent(outbox) == ["a"]
    assert admitted(memory_ledger) == ["x"]


def test_a_cursor_that_is_gone(
    memory_ledger: MemoryLedger,
    outbox: psycopg.Connection[Any],
    service: Service,
    new_relay: NewRelay,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MemoryKeeper, "is_compacted", doing(True))
    insert(outbox, "a")
    service.start(new_relay().work)
    service.wait()
    assert isinstance(service.error, Stopped)
    assert "--trust-marks" in str(service.error)
    assert unsent(outbox) == ["a"]
    service.start(new_relay(trusts_marks=True).work)
    wait_until_sent(outbox)
    assert admitted(memory_ledger) == ["a"]


def test_a_cursor_that_is_gone_where_every_row_is_marked(
    memory_ledger: MemoryLedger,
    outbox: psycopg.Connection[Any],
    service: Service,
    new_relay: NewRelay,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(MemoryKeeper, "is_compacted", doing(True))
    insert(outbox, "a")
    outbox.execute("UPDATE outbox SET sent_at = now()")
    service.start(new_relay().work)
    wait_until(lambda: "sends" in capsys.readouterr().out, _WAIT_S, "it goes on")
    insert(outbox, "b")
    wait_until_sent(outbox)
    assert admitted(memory_ledger) == ["b"]


def test_a_row_that_cannot_be_sent(
    memory_ledger: MemoryLedger,
    outbox: psycopg.Connection[Any],
    service: Service,
    new_relay: NewRelay,
) -> None:
    def prepare(producer: Paused) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))

        vars(producer)["produce"] = refuse

    service.prepare = prepare
    insert(outbox, "a")
    service.start(new_relay().work)
    service.wait()
    assert isinstance(service.error, Stopped)
    assert "row 1 cannot be sent: its 2 bytes" in str(service.error)
    assert "max.message.bytes of orders" in str(service.error)
    assert unsent(outbox) == ["a"]


@pytest.mark.parametrize("is_noticed_before", [False, True])
def test_a_row_that_is_too_large_for_the_topic(
    memory_ledger: MemoryLedger,
    outbox: psycopg.Connection[Any],
    service: Service,
    new_relay: NewRelay,
    is_noticed_before: bool,
) -> None:
    """The client may have failed by it while rows behind it are handed over."""

    def prepare(producer: Paused) -> None:
        producer.fail_deliveries(2, code=KafkaError.MSG_SIZE_TOO_LARGE)
        produce, handed = producer.produce, []

        def fail_at_the_third(*arguments: Any, **options: Any) -> None:
            handed.append(arguments)
            if is_noticed_before and len(handed) == 3:
                raise KafkaException(KafkaError(KafkaError._FATAL))
            produce(*arguments, **options)

        vars(producer)["produce"] = fail_at_the_third

    service.prepare = prepare
    insert(outbox, "a", "large", "c")
    service.start(new_relay(batch=3).work)
    service.wait()
    assert isinstance(service.error, Stopped)
    assert "row 2 cannot be sent" in str(service.error)
    assert "max.message.bytes" in str(service.error)
    assert unsent(outbox) == ["a", "large", "c"]


def test_a_client_that_had_failed_before(
    memory_ledger: MemoryLedger,
    outbox: psycopg.Connection[Any],
    service: Service,
    new_relay: NewRelay,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def prepare(producer: Paused) -> None:
        if len(service.producers) == 1:
            failed = KafkaException(KafkaError(KafkaError._FATAL))
            vars(producer)["produce"] = doing(failed)

    service.prepare = prepare
    insert(outbox, "a")
    service.start(new_relay().work)
    wait_until_sent(outbox)
    assert admitted(memory_ledger) == ["a"]
    assert "gives epoch 1 up" in capsys.readouterr().out


def test_a_topic_with_fewer_partitions_than_the_table(
    memory_log: MemoryLog,
    outbox: psycopg.Connection[Any],
    service: Service,
    new_relay: NewRelay,
) -> None:
    memory_log.recreate(TOPIC, 1)
    outbox.execute(
        "INSERT INTO outbox (key, value)"
        " SELECT n::text, 'v' FROM generate_series(1, 9) AS n"
    )
    service.start(new_relay(batch=9).work)
    service.wait()
    assert isinstance(service.error, Stopped)
    assert "has 1" in str(service.error)


def relayed(
    outbox: psycopg.Connection[Any], service: Service, relay: Relay, *values: str
) -> None:
    """Have a relay send rows, and end."""
    insert(outbox, *values)
    service.start(relay.work)
    wait_until_sent(outbox)
    service.end()


def stopped(service: Service, relay: Relay) -> str:
    """What a relay ends with."""
    service.start(relay.work)
    service.wait()
    assert isinstance(service.error, Stopped)
    return str(service.error)


@pytest.fixture
def successor(memory_ledger: MemoryLedger) -> Iterator[Service]:
    """Who leads next: `serve` is called once."""
    made = Service(memory_ledger)
    yield made
    made.end()


def test_rows_that_have_the_numbers_of_others_which_were_sent(
    memory_ledger: MemoryLedger,
    outbox: psycopg.Connection[Any],
    service: Service,
    successor: Service,
    new_relay: NewRelay,
) -> None:
    """The database was restored; since then it has given places anew."""
    relayed(outbox, service, new_relay(), "a", "b")
    (old,) = outbox.execute("SELECT token::text FROM outbox WHERE id = 2").fetchall()
    outbox.execute(
        "UPDATE outbox SET value = 'c', token = gen_random_uuid(), sent_at = NULL"
        " WHERE id = 2"
    )
    (new,) = outbox.execute("SELECT token::text FROM outbox WHERE id = 2").fetchall()
    told = stopped(successor, new_relay())
    assert f"row 2 with the token {old[0]}" in told
    assert f"row 2 in this database has the token {new[0]}" in told
    assert "a new topic" in told
    assert unsent(outbox) == ["c"]
    assert admitted(memory_ledger) == ["a", "b"]


def test_a_row_that_is_replaced_between_the_check_and_the_mark(
    outbox: psycopg.Connection[Any],
    service: Service,
    successor: Service,
    new_relay: NewRelay,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The database goes back just then: what takes the row's place is not marked."""
    relayed(outbox, service, new_relay(), "a")
    checked = Relay._check_row  # pyright: ignore[reportPrivateUsage]

    def check(relay: Relay, *arguments: Any) -> None:
        checked(relay, *arguments)
        outbox.execute("UPDATE outbox SET token = gen_random_uuid(), sent_at = NULL")

    monkeypatch.setattr(Relay, "_check_row", check)

    def nothing(*_: Any) -> list[Row]:
        return []

    monkeypatch.setattr(Relay, "_unsent", nothing)
    said: list[str] = []
    monkeypatch.setattr(outbox_relay, "say", said.append)
    successor.start(new_relay().work)
    wait_until(lambda: said, _WAIT_S, "it has marked what it would")
    assert "sends what is not marked yet" in said[0]
    assert unsent(outbox) == ["a"]


def test_the_last_row_that_was_sent_is_missing_and_others_before_it_are_not_marked(
    memory_ledger: MemoryLedger,
    outbox: psycopg.Connection[Any],
    service: Service,
    successor: Service,
    new_relay: NewRelay,
) -> None:
    relayed(outbox, service, new_relay(), "a", "b")
    outbox.execute("DELETE FROM outbox WHERE id = 2")
    outbox.execute("UPDATE outbox SET value = 'c', sent_at = NULL")
    told = stopped(successor, new_relay())
    assert "is row 2 with the token" in told
    assert "1 rows before it are not marked" in told
    assert unsent(outbox) == ["c"]
    assert admitted(memory_ledger) == ["a", "b"]


def test_rows_that_are_marked_may_be_deleted(
    memory_ledger: MemoryLedger,
    outbox: psycopg.Connection[Any],
    service: Service,
    successor: Service,
    new_relay: NewRelay,
) -> None:
    relayed(outbox, service, new_relay(), "a", "b")
    outbox.execute("DELETE FROM outbox")
    relayed(outbox, successor, new_relay(), "c")
    assert admitted(memory_ledger) == ["a", "b", "c"]


def test_a_row_that_took_the_place_of_another_is_not_marked_as_that(
    memory_ledger: MemoryLedger,
    outbox: psycopg.Connection[Any],
    service: Service,
    new_relay: NewRelay,
) -> None:
    """The database went back while the relay waited for the answer."""

    def prepare(producer: Paused) -> None:
        confirm = producer.confirm

        def confirmed(*arguments: Any) -> Any:
            outbox.execute("UPDATE outbox SET value = 'b', token = gen_random_uuid()")
            vars(producer)["confirm"] = confirm
            return confirm(*arguments)

        vars(producer)["confirm"] = confirmed

    service.prepare = prepare
    insert(outbox, "a")
    service.start(new_relay().work)
    wait_until_sent(outbox)
    assert admitted(memory_ledger) == ["a", "b"]


def test_a_table_whose_rows_go_elsewhere(
    outbox: psycopg.Connection[Any], service: Service, new_relay: NewRelay
) -> None:
    """A relay of another topic, or scope, would lead beside the one that there is."""
    outbox.execute("UPDATE outbox_relay SET topic = 'others'")
    insert(outbox, "a")
    told = stopped(service, new_relay())
    assert "goes to the topic others under the scope w" in told
    assert unsent(outbox) == ["a"]


@pytest.fixture
def wait_for_looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Waits until relays have looked some more times what holds rows up."""
    look = Relay._look_what_holds_up  # pyright: ignore[reportPrivateUsage]
    looks: list[None] = []

    def counted(relay: Relay, connection: psycopg.Connection[Any]) -> None:
        look(relay, connection)
        looks.append(None)

    monkeypatch.setattr(Relay, "_look_what_holds_up", counted)

    def wait() -> None:
        enough = len(looks) + 5
        wait_until(lambda: len(looks) >= enough, _WAIT_S, "it looks")

    return wait


def test_a_transaction_that_holds_no_rows_up(
    database: str,
    service: Service,
    new_relay: NewRelay,
    capsys: pytest.CaptureFixture[str],
    outbox: psycopg.Connection[Any],
    wait_for_looks: Callable[[], None],
) -> None:
    with closing(psycopg.connect(database)) as slow:
        slow.execute("SELECT pg_current_xact_id()")
        service.start(new_relay(patience_s=0.0).work)
        wait_for_looks()
    assert "warning: " not in capsys.readouterr().out


def test_rows_behind_an_open_transaction(
    database: str,
    outbox: psycopg.Connection[Any],
    service: Service,
    new_relay: NewRelay,
    capsys: pytest.CaptureFixture[str],
    wait_for_looks: Callable[[], None],
) -> None:
    with closing(psycopg.connect(database)) as slow:
        slow.execute("SELECT pg_current_xact_id()")
        insert(outbox, "a")
        service.start(new_relay(patience_s=0.1).work)
        said: list[str] = []

        def is_told() -> bool:
            said.append(capsys.readouterr().out)
            return "warning: " in said[-1]

        wait_until(is_told, _WAIT_S, "it warns")
        assert f"transaction of process {slow.info.backend_pid}," in said[-1]
        assert " s old: " in said[-1]
        wait_for_looks()
        assert capsys.readouterr().out == ""  # it is told once
        assert unsent(outbox) == ["a"]
        slow.rollback()
    wait_until_sent(outbox)
    assert "warning: " not in capsys.readouterr().out


def test_rows_behind_a_prepared_transaction(
    database: str,
    outbox: psycopg.Connection[Any],
    service: Service,
    new_relay: NewRelay,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (allowed,) = outbox.execute("SHOW max_prepared_transactions").fetchall()
    if allowed[0] == "0":
        pytest.skip("this server prepares no transactions")
    with closing(psycopg.connect(database)) as slow:
        slow.execute("SELECT pg_current_xact_id()")
        slow.execute("PREPARE TRANSACTION 'gone home'")
    try:
        insert(outbox, "a")
        service.start(new_relay(patience_s=0.1).work)
        told = "the prepared transaction 'gone home'"
        wait_until(lambda: told in capsys.readouterr().out, _WAIT_S, "it warns")
    finally:
        outbox.execute("ROLLBACK PREPARED 'gone home'")
    wait_until_sent(outbox)
