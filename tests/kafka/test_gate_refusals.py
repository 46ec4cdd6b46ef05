"""`epochfence gate` where it must not begin: each mistake, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from support.auditing import run
from support.brokers import KafkaBroker
from support.gates import gate_arguments, topic_id
from support.ledgers import LedgerTopics, unnamed_topics, write_record

Refused = Callable[..., str]


@pytest.fixture(scope="module")
def topics(kafka: KafkaBroker) -> LedgerTopics:
    """One ledger serves all: nothing is ever written under it."""
    topics = unnamed_topics(kafka)
    topics.open().close()
    return topics


@pytest.fixture
def refused(topics: LedgerTopics) -> Refused:
    """Runs the command, which must refuse to; gives what it says."""

    def told(source: str, destination: str, *options: str) -> str:
        result = run(*gate_arguments(topics, source, destination, *options))
        assert result.exit_code == 2, result.output
        assert "copying " not in result.output
        assert "Traceback" not in result.output
        return " ".join(result.output.split())

    return told


class Pair(NamedTuple):
    """A source with two partitions, and a copy of it."""

    source: str
    copy: str


@pytest.fixture(scope="module")
def pair(kafka: KafkaBroker) -> Pair:
    """One that no test writes to."""
    return Pair(kafka.create_topic("orders", 2), kafka.create_topic("copy", 2))


@pytest.fixture
def copy(kafka: KafkaBroker) -> str:
    """One of a test's own."""
    return kafka.create_topic("copy", 2)


def test_the_source_itself(pair: Pair, refused: Refused) -> None:
    assert "it is the source itself" in refused(pair.source, pair.source)


def test_a_source_that_is_not_there(pair: Pair, refused: Refused) -> None:
    said = refused("there-is-no-such-topic", pair.copy)
    assert "SRC = 'there-is-no-such-topic': there is no such topic" in said


def test_a_copy_that_may_not_be_created(pair: Pair, refused: Refused) -> None:
    said = refused(pair.source, "no-copy", "--no-create")
    assert "DST = 'no-copy': there is no such topic, and --no-create is given" in said
    assert "Create it with 2 partitions" in said


def test_another_number_of_partitions(
    kafka: KafkaBroker, pair: Pair, refused: Refused
) -> None:
    said = refused(pair.source, kafka.create_topic("copy", 3))
    assert f"it has 3 partitions, and {pair.source} has 2" in said
    said = refused(pair.source, kafka.create_topic("copy", 1))
    assert "--alter --partitions" in said


def source_header(
    topics_id: str | None, partition: int = 0
) -> list[tuple[str, bytes | None]]:
    return [("epochfence-source", f"{topics_id}:{partition}:0:7".encode())]


def test_records_of_something_else(
    kafka: KafkaBroker, pair: Pair, copy: str, refused: Refused
) -> None:
    write_record(kafka, copy, b"k", b"v", partition=1)
    said = refused(pair.source, copy)
    assert "its record at 1:0 was written by something else" in said
    assert "Name a topic that does not exist, or is empty." in said


@pytest.mark.parametrize(
    "headers",
    [
        source_header("KTgZ3vR0Q0-1_abcdefghi", partition=1),
        [("epochfence-source", b"once upon a time")],
        [("epochfence-source", None)],
        [("epochfence-sourced", b"KTgZ3vR0Q0-1_abcdefghi:0:0:7")],
    ],
)
def test_a_header_that_no_gate_has_written(
    kafka: KafkaBroker,
    pair: Pair,
    copy: str,
    refused: Refused,
    headers: list[tuple[str, bytes | None]],
) -> None:
    write_record(kafka, copy, b"k", b"v", headers)
    assert "was written by something else" in refused(pair.source, copy)


def test_the_copy_of_another_topic(
    kafka: KafkaBroker, pair: Pair, copy: str, refused: Refused
) -> None:
    other = topic_id(kafka, kafka.create_topic("other"))
    write_record(kafka, copy, b"k", b"v", source_header(other))
    said = refused(pair.source, copy)
    assert f"was copied from a topic of another id ({other}; {pair.source} has" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--scope", "a b"], "this is no scope name"),
        (["--stamp", "epoch"], "HEADER:int64be or HEADER:decimal"),
        (["--stamp", "epoch:decimal", "--authority", "ledger"], "max-seen"),
        (["--unstamped", "no"], "'quarantine', 'admit', 'admit-until-first-stamp'"),
        (["--max-jump", "3"], "max-seen"),
        (["--group", ""], "a consumer needs a group"),
        (["--batch-size", "0"], "--batch-size"),
        (["--report", "-1"], "--report"),
        (["-X", "group.id=billing"], "Use --group."),
        (["-X", "isolation.level=read_uncommitted"], "'read_committed'"),
        (["-X", "acks=1"], "the guarantee needs 'all'"),
        (["-X", "enable.auto.commit=true"], "Leave it out"),
        (["-X", "no.such.setting=1"], "no.such.setting"),
        (["-X", "transaction.timeout.ms=soon"], "Use milliseconds"),
    ],
)
def test_options_that_are_wrong(
    pair: Pair, refused: Refused, options: list[str], words: str
) -> None:
    assert words in refused(pair.source, pair.copy, *options)


def test_names_that_no_topic_can_have(pair: Pair, refused: Refused) -> None:
    for names in ((pair.source, "a b"), ("a b", pair.copy)):
        assert "'a b': no topic can have this name" in refused(*names)


def test_a_broker_that_is_not_there(topics: LedgerTopics) -> None:
    arguments = gate_arguments(topics, "orders", "copy", "--timeout", "0.5")
    place = arguments.index("-b") + 1
    arguments[place] = "127.0.0.1:1"
    result = run(*arguments)
    assert result.exit_code == 2
    assert "127.0.0.1:1" in result.output
    assert "Connection refused" in result.output


def test_no_broker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EPOCHFENCE_BOOTSTRAP_SERVERS", raising=False)
    result = run("gate", "orders", "copy")
    assert result.exit_code == 2
    assert "EPOCHFENCE_BOOTSTRAP_SERVERS" in result.output
