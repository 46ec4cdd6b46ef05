"""Writes a record that no client of Python would write, byte by byte.

A Produce request of version 3 with one record batch (message format 2), enough for
header names that are not UTF-8.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence


def send_batch(
    servers: str, topic: str, headers: Sequence[tuple[bytes, bytes]]
) -> None:
    """Write one record with these headers to partition 0."""
    host, port = servers.split(",")[0].rsplit(":", 1)
    batch = _batch(headers)
    request = (
        struct.pack(">hhih", 0, 3, 1, -1)  # Produce, version 3, id, no client id
        + struct.pack(">hhi", -1, -1, 10_000)  # no transaction, acks=all, time-out
        + struct.pack(">i", 1)
        + struct.pack(">h", len(topic))
        + topic.encode()
        + struct.pack(">iii", 1, 0, len(batch))
        + batch
    )
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _read(connection, 4))
        answer = _read(connection, size)
    # Correlation id, one topic, its name, one partition, its number: then the error.
    (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic) + 4 + 4)
    assert error == 0, f"the broker refused the batch: error {error}"


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        assert more, "the broker closed the connection"
        data += more
    return data


def _batch(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    body = b"\0" + _varint(0) + _varint(0) + _varint(-1) + _bytes(b"v")
    body += _varint(len(headers))
    for name, value in headers:
        body += _bytes(name) + _bytes(value)
    record = _varint(len(body)) + body
    # Attributes, last offset delta, timestamps, producer id, epoch, sequence, count.
    rest = struct.pack(">hiqqqhii", 0, 0, 0, 0, -1, -1, -1, 1) + record
    tail = struct.pack(">ib", -1, 2) + struct.pack(">I", _crc32c(rest)) + rest
    return struct.pack(">qi", 0, len(tail)) + tail


def _bytes(value: bytes) -> bytes:
    return _varint(len(value)) + value


def _varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
