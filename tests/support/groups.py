"""Consumer groups from outside: who is in them, and how to be rid of a member."""

from __future__ import annotations

import socket
import struct

from confluent_kafka.admin import AdminClient

_REQUEST_TIMEOUT_S = 10


def members_of(admin: AdminClient, group: str) -> dict[str, set[int]]:
    """The partitions of each member, by its id, as the group's coordinator has them."""
    asked = admin.describe_consumer_groups([group], request_timeout=_REQUEST_TIMEOUT_S)
    described = asked[group].result(_REQUEST_TIMEOUT_S)
    return {
        member.member_id: {tp.partition for tp in member.assignment.topic_partitions}
        for member in described.members
    }


def expel(servers: str, group: str, member: str) -> None:
    """Have a group count a member no more, which is not told.

    A LeaveGroup request of version 3, in that member's name: to it, this is as if its
    session had been over.
    """
    host, port = servers.split(",")[0].rsplit(":", 1)
    request = (
        struct.pack(">hhih", 13, 3, 1, -1)  # LeaveGroup, version 3, id, no client id
        + _text(group)
        + struct.pack(">i", 1)
        + _text(member)
        + struct.pack(">h", -1)  # no static member
    )
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    # Correlation id, throttle time: then the error, and the member's own at the end.
    (error,) = struct.unpack_from(">h", answer, 4 + 4)
    (of_member,) = struct.unpack_from(">h", answer, size - 2)
    assert (error, of_member) == (0, 0), f"refused: errors {error}, {of_member}"


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
