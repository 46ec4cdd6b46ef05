"""`epochfence deadletters`: look at rejected records, and send them again."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from epochfence.cli_options import (
    BootstrapServer,
    CommandConfig,
    CoordinationTopic,
    Properties,
    TableTopic,
    Timeout,
    kafka_config,
    whoami,
)
from epochfence.consumers.dead_letters import details_of, headers_to_json, to_base64
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.topics import COORDINATION_TOPIC, TABLE_TOPIC
from epochfence.letter_stores import (
    LetterStore,
    PostgresLetters,
    SqliteLetters,
    StoredLetter,
    TopicLetters,
)
from epochfence.redriving import Redriven, send_as_leader, send_unstamped
from epochfence.terminal import (
    EXIT_FAILED,
    as_utc,
    print_note,
    print_table,
    reported_errors,
    told_if_slow,
)

app = typer.Typer(
    help="Look at rejected records that were kept, and send them again.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class ListFormat(str, Enum):
    """How `deadletters list` prints."""

    table = "table"
    json = "json"


FromTopic = Annotated[
    str | None,
    typer.Option(
        "--from-topic",
        metavar="TOPIC",
        help="The dead-letter topic of a KafkaSink or a gate (needs -b).",
    ),
]
FromSqlite = Annotated[
    Path | None,
    typer.Option("--sqlite", metavar="FILE", help="The file of an SqliteSink."),
]
FromPostgres = Annotated[
    str | None,
    typer.Option(
        "--postgres",
        metavar="CONNINFO",
        help="The database of a PostgresSink; a password is better in PGPASSWORD or "
        "a password file.",
    ),
]
Schema = Annotated[
    str, typer.Option(metavar="NAME", help="With --postgres: the sink's schema.")
]
OfTopic = Annotated[
    str | None,
    typer.Option("-t", "--topic", metavar="T", help="Only those of this topic."),
]
OfPartition = Annotated[
    int | None,
    typer.Option(
        "-p", "--partition", metavar="N", min=0, help="Only this partition's."
    ),
]
OfReason = Annotated[
    str | None,
    typer.Option(
        "--reason", metavar="REASON", help="Only with this reason, as list shows it."
    ),
]
OfScope = Annotated[
    str | None,
    typer.Option("--scope", metavar="S", help="Only those of this scope."),
]


@app.command("list")
def list_letters(
    from_topic: FromTopic = None,
    sqlite: FromSqlite = None,
    postgres: FromPostgres = None,
    schema: Schema = "epochfence",
    topic: OfTopic = None,
    partition: OfPartition = None,
    reason: OfReason = None,
    scope: OfScope = None,
    redriven: Annotated[
        bool, typer.Option("--redriven", help="Those that were sent again, too.")
    ] = False,
    format: Annotated[ListFormat, typer.Option(help="How to print.")] = (
        ListFormat.table
    ),
    bootstrap_server: BootstrapServer = None,
    properties: Properties = None,
    command_config: CommandConfig = None,
    timeout_s: Timeout = 10.0,
) -> None:
    """Show dead letters: records that a fence rejected. Writes nothing.

    Each has a name, the place that it was read from: topic id:partition:leader
    epoch:offset. JSON has keys, values and headers too (as base64), a line each.

    Exit codes: 0 shown, 2 bad usage, or a store that cannot be read.

    Example: epochfence deadletters list --sqlite orders.db --reason stale-epoch
    """
    with reported_errors():
        store = _store(
            from_topic, sqlite, postgres, schema,
            bootstrap_server, properties, command_config, timeout_s,
        )  # fmt: skip
        found = _chosen(_read(store), topic, partition, reason, scope)
        shown = [one for one in found if redriven or one.redriven_at is None]
        if format is ListFormat.json:
            for one in shown:
                print(json.dumps(_to_json(one)))
        elif shown:
            _print(shown)
        hidden = len(found) - len(shown)
        if not shown and format is ListFormat.table:
            print("No dead letters." if not hidden else "No dead letters are waiting.")
        if hidden:
            print_note(f"{hidden:,} more were sent again: --redriven shows them")


@app.command()
def redrive(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Which ones, by the names of list."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All that are waiting and fit the options.")
    ] = False,
    as_leader: Annotated[
        list[str] | None,
        typer.Option(
            "--as-leader",
            metavar="SCOPE",
            help="Claim this scope, and send them under that leadership: this deposes "
            "whoever leads it now. May be repeated.",
        ),
    ] = None,
    unstamped: Annotated[
        bool,
        typer.Option(
            "--unstamped", help="Send them without a stamp: only with --to TOPIC."
        ),
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC", help="Where to. Default: the topic each was read from."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    holder: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Names the claimant. Default: user@host."),
    ] = None,
    from_topic: FromTopic = None,
    sqlite: FromSqlite = None,
    postgres: FromPostgres = None,
    schema: Schema = "epochfence",
    topic: OfTopic = None,
    partition: OfPartition = None,
    reason: OfReason = None,
    scope: OfScope = None,
    bootstrap_server: BootstrapServer = None,
    properties: Properties = None,
    command_config: CommandConfig = None,
    coordination_topic: CoordinationTopic = COORDINATION_TOPIC,
    table_topic: TableTopic = TABLE_TOPIC,
    timeout_s: Timeout = 30.0,
) -> None:
    """Send dead letters again, once you have decided that they should count.

    A stale record was overtaken by a later leader's: look at what came after it first.
    It goes to the end of its topic, with its key, value, timestamp and headers, under
    a new leadership (--as-leader), so that fences admit it; or to a topic that
    no fence judges (--unstamped --to). What was admitted, or acknowledged, is marked,
    and not sent again. (Where that marking fails, it may be.)

    Exit codes: 0 all sent, 1 some were not (or the claim was lost), 2 bad usage, or
    a store or cluster that does not answer.

    Example: epochfence deadletters redrive --sqlite orders.db --reason stale-epoch
    --all --as-leader orders-writer -b localhost:9092
    """
    interrupted = "Some may have been sent, and are not marked so."
    with reported_errors(if_interrupted=interrupted):
        _check_way(names, every, as_leader, unstamped, to)
        config = kafka_config(bootstrap_server, properties, command_config)
        store = _store(
            from_topic, sqlite, postgres, schema,
            bootstrap_server, properties, command_config, timeout_s,
        )  # fmt: skip
        waiting = [
            one
            for one in _chosen(_read(store), topic, partition, reason, scope)
            if one.redriven_at is None
        ]
        letters = _named(waiting, names) if names else waiting
        if not letters:
            print("No dead letters are waiting that fit.")
            return
        if unstamped:
            assert to is not None
            _ask(yes, f"{_summary(letters)} go to {to}, without a stamp.")
            done = send_unstamped(config, letters, to, timeout_s)
        else:
            with (
                told_if_slow(config, timeout_s),
                Ledger(
                    config,
                    coordination_topic=coordination_topic,
                    table_topic=table_topic,
                    create=False,
                    timeout_s=timeout_s,
                ) as ledger,
            ):
                scopes = as_leader or []
                if to is None:
                    _check_scopes(ledger, letters, scopes)
                _ask(
                    yes,
                    f"{_summary(letters)} go to {to or 'where they were read from'}, "
                    f"under a new leadership. {_leaders(ledger, scopes)}",
                )
                leaderships = [
                    ledger.claim(name, holder=holder or whoami()) for name in scopes
                ]
                done = send_as_leader(
                    config, ledger, leaderships, letters, to, timeout_s
                )
        _finish(store, letters, done)


def _check_scopes(
    ledger: Ledger, letters: Sequence[StoredLetter], scopes: Sequence[str]
) -> None:
    """See that a topic's readers know one of the scopes: its epochs began there."""
    ledger.table.refresh()
    begun: dict[str, set[str]] = {}
    for start in ledger.table.all_starts():
        begun.setdefault(start.topic, set()).add(start.scope)
    for topic in sorted({one.letter.topic for one in letters}):
        known = begun.get(topic, set())
        if known and known.isdisjoint(scopes):
            raise MisconfiguredError(
                "--as-leader", ", ".join(scopes),
                f"no epoch of it has begun on {topic}: who reads it would reject them "
                f"again",
                f"Give one of: {', '.join(sorted(known))}.",
            )  # fmt: skip


def _finish(
    store: LetterStore, letters: Sequence[StoredLetter], done: Redriven
) -> None:
    if done.arrived:
        store.mark(done.arrived)
    print(f"{len(done.arrived):,} of {len(letters):,} sent again and marked so.")
    for why, count in sorted(done.failures.items()):
        print_note(f"epochfence: {count:,} not: {why}")
    if done.error is not None:
        raise done.error
    if len(done.arrived) < len(letters):
        raise typer.Exit(EXIT_FAILED)


def _check_way(
    names: list[str] | None,
    every: bool,
    as_leader: list[str] | None,
    unstamped: bool,
    to: str | None,
) -> None:
    if bool(names) == every:
        raise MisconfiguredError(
            "NAME", ..., "it is not said which ones",
            "Give names as `epochfence deadletters list` shows them, or --all.",
        )  # fmt: skip
    if bool(as_leader) == unstamped:
        raise MisconfiguredError(
            "--as-leader", ..., "it is not said how",
            "Give --as-leader SCOPE, or --unstamped with --to TOPIC.",
        )  # fmt: skip
    if unstamped and to is None:
        raise MisconfiguredError(
            "--unstamped", True, "where it was read from, it would be rejected again",
            "Give --to TOPIC, one that no fence judges; or --as-leader SCOPE.",
        )  # fmt: skip


def _store(
    from_topic: str | None,
    sqlite: Path | None,
    postgres: str | None,
    schema: str,
    bootstrap_server: str | None,
    properties: list[str] | None,
    command_config: Path | None,
    timeout_s: float,
) -> LetterStore:
    given = [one for one in (from_topic, sqlite, postgres) if one is not None]
    if len(given) != 1:
        raise MisconfiguredError(
            "--from-topic", from_topic, "one place that keeps dead letters is needed",
            "Give --from-topic TOPIC, --sqlite FILE or --postgres CONNINFO.",
        )  # fmt: skip
    if sqlite is not None:
        return SqliteLetters(sqlite)
    if postgres is not None:
        return PostgresLetters(postgres, schema, timeout_s)
    assert from_topic is not None
    config = kafka_config(bootstrap_server, properties, command_config)
    return TopicLetters(config, from_topic, timeout_s)


def _read(store: LetterStore) -> list[StoredLetter]:
    letters = store.read()
    if isinstance(store, TopicLetters) and store.others:
        print_note(f"warning: {store.others:,} records of it are no dead letters")
    return letters


def _chosen(
    letters: Sequence[StoredLetter],
    topic: str | None,
    partition: int | None,
    reason: str | None,
    scope: str | None,
) -> list[StoredLetter]:
    wanted = {"topic": topic, "partition": partition, "reason": reason, "scope": scope}
    return [
        one
        for one in letters
        if all(
            value is None or getattr(one.letter, name) == value
            for name, value in wanted.items()
        )
    ]


def _named(letters: Sequence[StoredLetter], names: list[str]) -> list[StoredLetter]:
    missing = set(names) - {one.letter.name for one in letters}
    if missing:
        raise MisconfiguredError(
            "NAME", sorted(missing)[0], "no such dead letter is waiting",
            "See `epochfence deadletters list` (--redriven: those sent again).",
        )  # fmt: skip
    return [one for one in letters if one.letter.name in names]


def _summary(letters: Sequence[StoredLetter]) -> str:
    reasons = [one.letter.reason for one in letters]
    parts = ", ".join(
        f"{reasons.count(name):,} {name}" for name in sorted(set(reasons))
    )
    return f"{len(letters):,} dead letters ({parts})"


def _leaders(ledger: Ledger, scopes: Sequence[str]) -> str:
    told: list[str] = []
    for scope in scopes:
        leader = ledger.leader(scope)
        told.append(
            f"Nobody has led {scope} so far."
            if leader is None
            else f"Whoever leads {scope} (epoch {leader.epoch}, {leader.holder}) is "
            f"deposed."
        )
    return " ".join(told)


def _ask(is_agreed: bool, text: str) -> None:
    print_note(text)
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise MisconfiguredError(
            "--yes", False, "there is nobody to ask", "Give --yes to go on."
        )
    if not typer.confirm("Go on?", err=True):
        print_note("Nothing was sent.")
        raise typer.Exit(EXIT_FAILED)


def _print(letters: Sequence[StoredLetter]) -> None:
    head = (
        "name", "topic", "reason", "scope", "epoch", "current", "holder",
        "rejected at (UTC)", "key",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for one in letters:
        letter = one.letter
        rows.append(
            (
                letter.name,
                letter.topic,
                letter.reason if one.redriven_at is None else f"{letter.reason} (sent)",
                letter.scope or "",
                _number(letter.epoch),
                _number(letter.current_epoch),
                letter.holder or "",
                as_utc(letter.rejected_at),
                (letter.key or b"").decode("utf-8", "backslashreplace"),
            )
        )
    print_table(head, rows, right={"epoch", "current"})


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _to_json(one: StoredLetter) -> dict[str, Any]:
    letter = one.letter
    return {
        "name": letter.name,
        **details_of(letter),
        "key": to_base64(letter.key),
        "value": to_base64(letter.value),
        "headers": json.loads(headers_to_json(letter.headers)),
        "redriven_at": one.redriven_at,
    }
