"""The rows of the max-epoch table, read from its topic."""

from __future__ import annotations

import logging
import time

from epochfence.epochs.claims import is_sync
from epochfence.epochs.connection import Config
from epochfence.epochs.errors import TableUnavailable
from epochfence.epochs.schemas import Undecodable, UnknownFingerprint
from epochfence.epochs.starts import decode_row_key, decode_row_value
from epochfence.epochs.topic_log import ReadingStoppedError, TopicLog
from epochfence.epochs.values import EpochStart

_log = logging.getLogger(__name__)


class _Rows:
    """Collects the rows of the table topic."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.starts: dict[EpochStart, None] = {}

    def restart(self) -> None:
        self.starts = {}

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        if is_sync(key, value):
            return
        try:
            decode_row_value(value)  # first: a newer version's row stops the reader
            start = decode_row_key(key)
        except UnknownFingerprint as error:
            raise ReadingStoppedError(str(error), offset) from error
        except Undecodable as error:
            _log.warning("%s offset %d is no row: %s", self._topic, offset, error)
            return
        self.starts[start] = None

    def caught_up(self) -> None:
        pass


def read_starts(config: Config, topic: str, timeout_s: float) -> list[EpochStart]:
    """Read the table to its end, by a sync, and give its rows.

    Raises:
        TableUnavailable: It could not be read to its end in time.
    """
    rows = _Rows(topic)
    deadline = time.monotonic() + timeout_s
    log = TopicLog(config, topic, rows)
    try:
        log.read_past(log.append_sync(deadline), deadline)
    except ReadingStoppedError as error:
        raise TableUnavailable(topic, error.reason, error.offset) from error
    finally:
        log.close()
    return list(rows.starts)
