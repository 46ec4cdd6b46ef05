"""Cutting what the client gave: at its events, and where the partition changes.

Part of the hot path: nothing here happens in Python for each message of a batch whose
messages are alike and of one partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from confluent_kafka import Message

from epochfence.epochs.values import Place


class Piece(NamedTuple):
    """Messages of one partition, or events of the client, in order.

    Attributes:
        place: Topic and partition; None for events.
        messages: The messages.
        are_alike: Whether they share their headers, None: not known.
    """

    place: Place | None
    messages: list[Message]
    are_alike: bool | None = None


def cut(
    batch: list[Message],
    *,
    is_one_topic: bool = False,
    only: Place | None = None,
    are_alike: bool | None = None,
) -> Iterator[Piece]:
    """Cut a batch of the client.

    Args:
        batch: What it gave.
        is_one_topic: Whether all is known to be of one topic.
        only: The one partition that all records are known to be of.
        are_alike: Whether all share their headers, None: not known.
    """
    # An event has no headers, and no other trace: without headers it is asked for at
    # each, in the client's speed.
    is_stamped = are_alike and bool(batch[0].headers())
    if is_stamped or not any(map(Message.error, batch)):
        yield from _cut_records(batch, is_one_topic, only, are_alike)
        return
    for is_event, group in groupby(batch, lambda m: m.error() is not None):
        if is_event:
            yield Piece(None, list(group))
        else:
            yield from _cut_records(list(group), is_one_topic, only, None)


def share_headers(messages: list[Message]) -> bool:
    """Whether all carry the very same headers, or none."""
    try:
        headers = list(map(Message.headers, messages))
    except (SystemError, UnicodeDecodeError):
        return False
    return bool(headers) and headers.count(headers[0]) == len(headers)


def _cut_records(
    records: list[Message],
    is_one_topic: bool,
    only: Place | None,
    are_alike: bool | None,
) -> Iterator[Piece]:
    if not records:
        return
    if only is not None:
        yield Piece(only, records, are_alike)
        return
    partitions = list(map(Message.partition, records))
    topic = records[0].topic() or ""
    is_one = partitions.count(partitions[0]) == len(partitions)
    topics: list[str | None] = []
    if not is_one_topic:
        topics = list(map(Message.topic, records))
        is_one = is_one and topics.count(topic) == len(topics)
    if is_one:
        yield Piece((topic, partitions[0] or 0), records, are_alike)
        return
    places = zip(topics or [topic] * len(records), partitions, records, strict=True)
    for (name, number), group in groupby(places, key=itemgetter(0, 1)):
        messages = [message for _, _, message in group]
        # Parts may be alike where the whole is not.
        yield Piece((name or "", number or 0), messages, are_alike or None)
