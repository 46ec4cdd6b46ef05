"""The options of `epochfence audit` that compare a topic beyond the fence."""

from __future__ import annotations

from typing import Annotated

import typer

from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.topics import COORDINATION_TOPIC, TABLE_TOPIC
from epochfence.replay.checking import Wanted
from epochfence.replay.stored_sinks import SinkAddress, SinkTable

TableTopicToCompare = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="With --topic: the topic of the max-epoch table. It is compared with the "
        "data, and its rows of what was not read are taken as known. Default: "
        + TABLE_TOPIC
        + ", where it exists and --coordination-topic is the default as well.",
        show_default=False,
    ),
]
SinkOption = Annotated[
    str | None,
    typer.Option(
        metavar="SINK",
        help="With --topic: compare what a sink has stored: sqlite:PATH or "
        "postgresql://... It is only read.",
    ),
]
SinkSchema = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="With --sink postgresql://...: the schema of the sink's own tables. "
        "Default: epochfence.",
        show_default=False,
    ),
]
SinkTableName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="With --sink: compare the rows of this table, too: one for each key of "
        "the topic, that of its last admitted message; a null value deletes.",
    ),
]
SinkKey = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="The column that has the messages' keys as they are."
    ),
]
SinkValue = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="The column that has the messages' values as they are."
    ),
]
GroupToCompare = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="NAME",
        help="With --topic: tell how many rejected records lie below the commits of a "
        "consumer group: what it applied if it has no fence, or ran dry.",
    ),
]


def compared_with(
    coordination_topic: str | None,
    table_topic: str | None,
    group: str | None,
    sink: str | None,
    sink_schema: str | None,
    sink_table: tuple[str | None, str | None, str | None],
    partitions: list[int] | None,
) -> Wanted:
    """What the options say to compare a topic with.

    Raises:
        MisconfiguredError: One of them is wrong, or lacks another.
    """
    is_table_named = table_topic is not None
    if table_topic is None and coordination_topic in (None, COORDINATION_TOPIC):
        table_topic = TABLE_TOPIC
    options = ("--sink-table", "--sink-key", "--sink-value")
    names: dict[str, str | None] = dict(zip(options, sink_table, strict=True))
    given = [name for name, value in names.items() if value is not None]
    missing = [name for name, value in names.items() if not value]
    if sink is None and (given or sink_schema is not None):
        raise MisconfiguredError(
            given[0] if given else "--sink-schema", ..., "no sink is named",
            "Give --sink sqlite:PATH or --sink postgresql://...",
        )  # fmt: skip
    table = None
    if given:
        if missing:
            raise MisconfiguredError(
                given[0], names[given[0]], f"it goes together with "
                f"{' and '.join(missing)}",
                "Name the table, the column of its keys and that of its values.",
            )  # fmt: skip
        if partitions:
            raise MisconfiguredError(
                "--partition", partitions, "a sink's rows come from all partitions",
                "Leave it out, or leave out --sink-table.",
            )  # fmt: skip
        name, key, value = sink_table
        table = SinkTable(name or "", key or "", value or "")
        if not all(table.name.split(".")):
            raise MisconfiguredError(
                "--sink-table", name, "no name of a table", "Use table or schema.table."
            )
    address = None if sink is None else SinkAddress.parse(sink, sink_schema)
    return Wanted(table_topic, is_table_named, address, table, group)
