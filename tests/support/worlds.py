"""Worlds for the judge: made by chance, repeatable by seed, realistic and nasty.

`world(seed, size)` plays leaders, zombies, losing claimants and damaged producers
against a few partitions and returns what an audit would be given: records, ledger,
table and settings, as plain dicts in the file forms that README.md shows.

Every world is valid input. The records of one partition and life stand in order of
position, whichever two of them are compared (where one has no leader epoch, the offsets
alone are); no life comes back; a life that ends has told its id; the ledger is not
below the table. What is in the records and the table may be as wrong as can be.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from support.model import as_start, counts, judge, place, topic_ids

__all__ = ["monotone", "world"]

Json = dict[str, Any]
Header = tuple[str, bytes | None]
T = TypeVar("T")

LARGEST = 2**63 - 1

CONTROLLERS = [
    "orders-writer",
    "billing.controller",
    "payments/eu-1/writer",
    "x",
    "0",
    "-/-",
    "A_b.C-d/e",
    "34/9f3a1c22d4e5b6a7",
    "claim/x/7/0123456789abcdef",
    "epochfence",
    "S" * 200,
]

FOREIGN_HEADERS = ["epoch", "x-leader-epoch", "fencing.token", "Term"]

TOPICS = ["orders", "payments", "orders-dlq", "a.b_c"]

USER_HEADERS: list[Header] = [
    ("trace", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("trace", b""),
    ("content-type", b"application/json"),
    ("empty", None),
    ("", b"no name"),
    ("Epochfence", b"1:0123456789abcdef:x"),
    ("epochfence ", b"not ours"),
    ("epoch-fence", b"7"),
    ("EPOCH", b"\x00\x00\x00\x00\x00\x00\x00\x07"),
    ("\u00e9poque", b"\xff\xfe"),
]

OUR_OTHER_HEADERS: list[Header] = [
    ("epochfence-cursor", b"4711"),
    ("epochfence-cursor", b"0/16B3748"),
    ("epochfence-cursor", None),
    ("epochfence-cursor", b"c" * 1000),
    ("epochfence-barriers", b"1:0123456789abcdef:x"),
    ("epochfence-", b""),
    ("epochfence.stamp", b"01:x"),
]


class Stamp(NamedTuple):
    """A stamp before it is encoded; the grant id means nothing with foreign ones."""

    scope: str
    epoch: int
    grant_id: str


def text(data: bytes | None) -> str | None:
    """Bytes as a record file has them."""
    return None if data is None else base64.b64encode(data).decode("ascii")


def arabic(number: int) -> bytes:
    """A number in Arabic-Indic digits, which Python's own int() would read."""
    return "".join(chr(0x660 + int(digit)) for digit in str(number)).encode()


def malformed_ours(rng: random.Random, stamp: Stamp) -> bytes | None:
    """A stamp or barrier value that must not parse."""
    scope, epoch, grant = stamp.scope, stamp.epoch, stamp.grant_id
    sorts: list[bytes | str | None] = [
        None,
        "",
        ":",
        "::",
        f"{epoch}",
        f"{epoch}:",
        f"{epoch}:{grant}",
        f"{epoch}:{grant}:",
        f":{grant}:{scope}",
        f"{epoch}::{scope}",
        f"{grant}:{scope}",
        f"{epoch}:{scope}",
        f"{scope}:{epoch}:{grant}",
        f"{epoch}:{grant}:{scope}:x",
        f"0{epoch}:{grant}:{scope}",
        f"00:{grant}:{scope}",
        f"0:{grant}:{scope}",
        f"+{epoch}:{grant}:{scope}",
        f"-{epoch}:{grant}:{scope}",
        f" {epoch}:{grant}:{scope}",
        f"{epoch} :{grant}:{scope}",
        f"{epoch}: {grant}:{scope}",
        f"{epoch}:{grant}: {scope}",
        f"{epoch}:{grant}:{scope} ",
        f"{epoch}:{grant}:{scope}\n",
        f"{epoch}:{grant}:{scope}\r\n",
        f"{epoch}:{grant}:{scope}\x00",
        f"{epoch}\n:{grant}:{scope}",
        f"\ufeff{epoch}:{grant}:{scope}",
        f"1_{epoch}:{grant}:{scope}",
        f"{epoch}.0:{grant}:{scope}",
        f"{epoch}e0:{grant}:{scope}",
        f"0x{epoch:x}:{grant}:{scope}",
        arabic(epoch) + f":{grant}:{scope}".encode(),
        f"{epoch}:{grant[:-1]}A:{scope}",
        f"{epoch}:{grant[:-1]}g:{scope}",
        f"{epoch}:{grant[:-1]}:{scope}",
        f"{epoch}:{grant}0:{scope}",
        f"{epoch}:{grant[:-1]}".encode() + arabic(1) + f":{scope}".encode(),
        f"{epoch}:{grant}:{scope[:190]} writer",
        f"{epoch}:{grant}:~{scope[:190]}",
        f"{epoch}:{grant}:{scope[:190]}\u00e9",
        f"{epoch}:{grant}:".encode() + b"\xff\xfe",
        f"{epoch}:{grant}:" + "s" * 201,
        f"{epoch}:{grant}:" + "s" * 20_000,
        f"{2**63}:{grant}:{scope}",
        f"{10**19 - 1}:{grant}:{scope}",
        f"{10**19}:{grant}:{scope}",
        f"{2**64 + epoch}:{grant}:{scope}",
        "9" * 5_000 + f":{grant}:{scope}",
        f'"{epoch}:{grant}:{scope}"',
        f"{epoch};{grant};{scope}",
        epoch.to_bytes(8, "big"),
        f"{epoch}:{grant}:{scope}".encode("utf-16"),
    ]
    sort = rng.choice(sorts)
    return sort.encode() if isinstance(sort, str) else sort


def malformed_foreign(rng: random.Random, stamp: Stamp, encoding: str) -> bytes | None:
    """A foreign epoch that must not parse."""
    epoch = stamp.epoch
    sorts: list[bytes | str | None]
    if encoding == "int64be":
        sorts = [
            None,
            b"",
            b"\x00",
            (epoch & 0xFFFFFFFF).to_bytes(4, "big"),
            epoch.to_bytes(8, "big")[1:],
            epoch.to_bytes(9, "big"),
            epoch.to_bytes(8, "big") + b"\n",
            epoch.to_bytes(16, "big"),
            (-1).to_bytes(8, "big", signed=True),
            (-epoch - 1).to_bytes(8, "big", signed=True),
            (-(2**63)).to_bytes(8, "big", signed=True),
            (2**63).to_bytes(8, "big"),
            b"7",
        ]
    else:
        sorts = [
            None,
            "",
            f"0{epoch}",
            "00",
            "-0",
            f"+{epoch}",
            f"-{epoch + 1}",
            f" {epoch}",
            f"{epoch} ",
            f"{epoch}\n",
            f"1_{epoch}",
            f"{epoch}.0",
            f"{epoch}e0",
            f"0x{epoch:x}",
            f"{epoch}\x00",
            arabic(epoch),
            f"{2**63}",
            f"{10**19}",
            f"{2**64 + epoch}",
            "9" * 5_000,
            epoch.to_bytes(8, "big"),
            b"\xff",
        ]
    sort = rng.choice(sorts)
    return sort.encode() if isinstance(sort, str) else sort


class Topic:
    """A topic: its lives, and what of them is told in records."""

    def __init__(self, name: str, ids: str, leader_epochs: str, first_id: str) -> None:
        self.name = name
        self.ids = ids  # "always", "sometimes" or "never"
        self.leader_epochs = leader_epochs  # likewise
        self.lives = [first_id]


class Partition:
    """A partition: where its next record goes."""

    def __init__(self, topic: Topic, number: int, rng: random.Random) -> None:
        self.topic = topic
        self.number = number
        self.life = 0
        self.id_told = False
        self.written = 0
        self.rollout = 0
        self.leader_epoch = rng.choice([0, 0, 1, rng.randrange(50)])
        self.next_offset = rng.choice([0, 0, 0, rng.randrange(1000), 2**40])
        self.begin_life()

    def begin_life(self) -> None:
        """Forget the offsets of the life before."""
        self.highest = -1  # offset in this life
        self.highest_bare = -1  # the same, of records without leader epoch


class Maker:
    """One world in the making."""

    def __init__(self, seed: int, size: int) -> None:
        self.rng = rng = random.Random(seed)
        self.size = size
        self.records: list[Json] = []
        self.claims: list[Json] = []
        self.pending: list[tuple[Partition, Stamp]] = []  # barriers to come
        self.settings = self.make_settings()
        self.stamp: str = self.settings["stamp"]
        self.ours = self.stamp == "epochfence"
        self.has_ledger = self.settings["authority"] == "ledger"
        self.make_topics()
        self.make_scopes()
        self.make_required()
        # Some worlds are calm, some are not.
        self.trouble = rng.choice([0.15, 0.35, 0.55])
        self.takeover_rate = rng.choice([0.01, 0.03, 0.08])
        self.recreation_rate = rng.choice([0, 0, 0, 0.004, 0.015])
        self.truncation_rate = rng.choice([0, 0, 0.1, 0.5])
        self.barrier_habit = rng.choice(["all", "all", "some", "none"])

    # --- Small dice -----------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        """True as often as asked for."""
        return self.rng.random() < probability

    def weighed(self, options: Sequence[tuple[T, float]]) -> T:
        """One of the options, by weight."""
        return self.rng.choices(
            [option for option, _ in options], [weight for _, weight in options]
        )[0]

    def hex16(self) -> str:
        """A grant id."""
        return f"{self.rng.getrandbits(64):016x}"

    def new_topic_id(self) -> str:
        """A topic id as 22 characters of URL-safe base64."""
        raw = self.rng.getrandbits(128).to_bytes(16, "big")
        return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")

    # --- The stage ------------------------------------------------------------------

    def make_settings(self) -> Json:
        """Settings of the audit; the scopes follow later."""
        rng = self.rng
        authority = "max-seen"
        kind = self.weighed(
            [("ledger", 0.5), ("ours", 0.24), ("int64be", 0.13), ("decimal", 0.13)]
        )
        if kind == "ledger":
            stamp, authority = "epochfence", "ledger"
        elif kind == "ours":
            stamp = "epochfence"
        else:
            stamp = f"{rng.choice(FOREIGN_HEADERS)}:{kind}"
        max_jump = None
        if authority == "max-seen" and self.chance(0.7):
            max_jump = rng.choice([1, 1, 2, 3, 10, 1000])
        return {
            "stamp": stamp,
            "authority": authority,
            "unstamped": rng.choice(["quarantine", "admit", "admit-until-first-stamp"]),
            "max_jump": max_jump,
            "scopes": [],
        }

    def make_topics(self) -> None:
        """Topics and partitions, not too many for the size of the world."""
        rng = self.rng
        room = max(1, self.size // 25)
        self.topics: list[Topic] = []
        self.partitions: list[Partition] = []
        names = rng.sample(TOPICS, rng.randint(1, min(3, room)))
        for name in names:
            topic = Topic(
                name,
                self.weighed([("always", 5), ("sometimes", 3), ("never", 2)]),
                self.weighed([("always", 5), ("sometimes", 3), ("never", 2)]),
                self.new_topic_id(),
            )
            self.topics.append(topic)
            count = rng.randint(1, max(1, min(4, room // len(names))))
            numbers = list(range(count))
            if self.chance(0.2):
                numbers = sorted(rng.sample(range(12), count))
            self.partitions += [Partition(topic, number, rng) for number in numbers]
        for partition in self.partitions:
            if self.chance(0.5):
                partition.rollout = rng.randrange(10)

    def make_scopes(self) -> None:
        """Who leads what: controllers everywhere, partition scopes on some topics."""
        rng = self.rng
        self.grants: dict[str, list[Stamp]] = {}
        self.losers: dict[str, list[Stamp]] = {}
        self.partition_scopes = False
        if not self.ours:
            self.controllers = ["~" + self.stamp.rsplit(":", 1)[0]]
        else:
            self.controllers = rng.sample(CONTROLLERS, rng.choice([1, 1, 2, 3]))
            self.partition_scopes = self.chance(0.4)
        for scope in self.all_scopes():
            self.grants[scope] = []
            self.losers[scope] = []
            low = 0 if not self.ours else 1
            first = rng.choice([low, 1, 1, rng.randint(2, 9), rng.randint(10, 10**6)])
            if not self.ours and self.chance(0.35):
                first = 0
            if self.chance(0.03):
                first = LARGEST - rng.randrange(1, 6)
            for _ in range(rng.choice([1, 1, 2, 3])):
                if first > LARGEST:
                    break
                self.claim(scope, first)
                first += 1

    def all_scopes(self) -> list[str]:
        """Every scope that is led in this world."""
        scopes = list(self.controllers)
        if self.partition_scopes:
            scopes += [
                f"{partition.topic.name}/{partition.number}"
                for partition in self.partitions
            ]
        return scopes

    def scopes_of(self, partition: Partition) -> list[str]:
        """The scopes that an honest record of this partition is stamped for."""
        scopes = list(self.controllers)
        if self.partition_scopes:
            scopes.append(f"{partition.topic.name}/{partition.number}")
        return scopes

    def make_required(self) -> None:
        """The scopes that every record must carry."""
        choices: list[tuple[list[str], float]] = [([], 0.45)]
        choices.append(([self.controllers[0]], 0.35))
        choices.append((list(self.controllers), 0.15))
        if self.partition_scopes:
            choices.append((self.scopes_of(self.partitions[0]), 0.1))
        if self.ours:  # with foreign stamps such a requirement is refused
            choices.append((["nobody/leads-this"], 0.01))
        self.settings["scopes"] = self.weighed(choices)

    # --- Leaderships ----------------------------------------------------------------

    def write_claim(self, stamp: Stamp, previous: int) -> None:
        """Append a claim, now and then twice."""
        claim: Json = {
            "type": "claim",
            "scope": stamp.scope,
            "epoch": stamp.epoch,
            "previous": previous,
            "grant_id": stamp.grant_id,
            "holder": self.rng.choice(["pod-7", "pod-8", "", "Zo\u00eb's laptop", "A"]),
            "claimed_at": 1_700_000_000_000 + self.rng.randrange(-(10**6), 10**6),
        }
        if self.chance(0.2):
            claim["attributes"] = self.rng.choice(
                [{}, {"zone": "eu-1"}, {"a": "", "b": ""}]
            )
        self.claims.append(claim)
        if self.chance(0.06):
            self.claims.append(dict(claim))
        if self.chance(0.03):
            self.claims.append(dict(self.rng.choice(self.claims)))

    def claim(self, scope: str, epoch: int) -> Stamp:
        """A claim that wins, and those that race it and lose."""
        rng = self.rng
        latest = self.grants[scope][-1].epoch if self.grants[scope] else 0
        if self.grants[scope] and self.chance(0.15):
            self.lose(scope, rng.randint(1, max(1, latest)), latest)
        won = Stamp(scope, epoch, self.hex16())
        self.write_claim(won, latest)
        self.grants[scope].append(won)
        if self.chance(0.5):
            self.lose(scope, epoch, latest)
        return won

    def lose(self, scope: str, epoch: int, previous: int) -> None:
        """A claim that loses, and whose claimant may write all the same."""
        lost = Stamp(scope, epoch, self.hex16())
        self.write_claim(lost, previous)
        self.losers[scope].append(lost)

    def takeover(self) -> None:
        """A new leader, with barriers or without."""
        rng = self.rng
        scope = rng.choice(self.all_scopes())
        latest = self.grants[scope][-1].epoch
        near, far = rng.randint(2, 5), rng.randint(6, 2**33)
        jump = self.weighed([(1, 90), (near, 7), (far, 1)])
        for _ in range(self.weighed([(1, 8), (2, 1), (3, 1)])):
            if latest + jump > LARGEST:
                return
            latest += jump
            jump = 1
            self.claim(scope, latest)
        if not self.ours or self.barrier_habit == "none":
            return
        for partition in self.partitions:
            if scope in self.scopes_of(partition) and (
                self.barrier_habit == "all" or self.chance(0.5)
            ):
                self.pending.append((partition, self.grants[scope][-1]))

    # --- Stamps ---------------------------------------------------------------------

    def wrong_stamp(self, scope: str) -> Stamp:
        """A stamp for a scope by somebody who should not write it."""
        rng = self.rng
        grants, losers = self.grants[scope], self.losers[scope]
        leader = grants[-1]
        sort = self.weighed(
            [
                ("zombie", 0.45 if len(grants) > 1 else 0),
                ("loser", 0.25 if losers else 0),
                ("made up", 0.15),
                ("another id", 0.1),
                ("mixed", 0.05),
            ]
        )
        if sort == "zombie":
            return rng.choice(grants[:-1][-4:])
        if sort == "loser":
            return rng.choice(losers[-3:])
        if sort == "another id":
            return Stamp(scope, rng.choice(grants[-3:]).epoch, self.hex16())
        if sort == "mixed":
            other = rng.choice(self.all_scopes())
            return Stamp(scope, leader.epoch, rng.choice(self.grants[other]).grant_id)
        return Stamp(scope, self.made_up_epoch(leader.epoch), leader.grant_id)

    def made_up_epoch(self, latest: int) -> int:
        """An epoch that nobody was granted, or not yet."""
        rng = self.rng
        limit: int | None = self.settings["max_jump"]
        low = 1 if self.ours else 0
        near = [latest + 1, latest + 1, latest + 2, latest + 5, max(low, latest - 1)]
        if self.has_ledger or limit is not None:
            far = [latest + 1001, latest + 2**32, LARGEST, LARGEST - 1]
            if limit is not None:
                far += [latest + limit, latest + limit + 1]
        else:
            # Nothing holds these back, and whoever comes after is stale.
            far = [latest + 40, LARGEST] if self.chance(0.03) else []
        return min(LARGEST, rng.choice(near + far))

    def stamps_for(self, partition: Partition) -> list[Stamp]:
        """What a producer would stamp, honest or not."""
        rng = self.rng
        stamps = [self.grants[scope][-1] for scope in self.scopes_of(partition)]
        if self.ours and self.chance(0.08):
            stamps.append(rng.choice(self.grants[rng.choice(self.all_scopes())]))
            stamps = list({stamp.scope: stamp for stamp in stamps}.values())
        if len(stamps) > 1 and self.chance(0.12):
            stamps.remove(rng.choice(stamps))
        wrong = 0
        if self.chance(self.trouble):
            wrong = self.weighed([(1, 8), (2, 2), (3, 1)])
        for _ in range(wrong):
            i = rng.randrange(len(stamps))
            stamps[i] = self.wrong_stamp(stamps[i].scope)
        if self.chance(0.3):
            rng.shuffle(stamps)
        return stamps

    def encode(self, stamp: Stamp) -> bytes:
        """The header value of a stamp."""
        if self.ours:
            return f"{stamp.epoch}:{stamp.grant_id}:{stamp.scope}".encode()
        if self.stamp.endswith(":int64be"):
            return stamp.epoch.to_bytes(8, "big", signed=True)
        return str(stamp.epoch).encode()

    def malformed(self, stamp: Stamp) -> bytes | None:
        """A damaged header value."""
        if self.ours:
            return malformed_ours(self.rng, stamp)
        return malformed_foreign(self.rng, stamp, self.stamp.rsplit(":", 1)[1])

    # --- Headers --------------------------------------------------------------------

    def fencing_headers(self, partition: Partition) -> list[Header]:
        """The headers that the fence looks at, of a record that is no good barrier."""
        rng = self.rng
        name = "epochfence" if self.ours else self.stamp.rsplit(":", 1)[0]
        stamps = self.stamps_for(partition)
        headers: list[Header] = [(name, self.encode(stamp)) for stamp in stamps]
        if partition.written < partition.rollout and self.chance(0.75):
            return []
        sort = self.weighed(
            [
                ("as it is", 1 - self.trouble / 2),
                ("none", self.trouble * 0.18),
                ("damaged", self.trouble * 0.12),
                ("twice", self.trouble * 0.11),
                ("damaged and twice", self.trouble * 0.02),
                ("barrier", self.trouble * 0.09 if self.ours else 0),
            ]
        )
        if sort == "none":
            return []
        if sort == "barrier":
            return self.odd_barrier(partition, headers)
        if sort.startswith("damaged"):
            i = rng.randrange(len(headers))
            headers[i] = (name, self.malformed(stamps[i]))
            if self.chance(0.2):
                headers.append((name, self.malformed(stamps[0])))
        if sort.endswith("twice"):
            stamp = rng.choice(stamps)
            again = rng.choice([stamp, self.wrong_stamp(stamp.scope)])
            headers.insert(rng.randint(0, len(headers)), (name, self.encode(again)))
        return headers

    def odd_barrier(self, partition: Partition, headers: list[Header]) -> list[Header]:
        """A barrier that something is wrong with, or that comes without a takeover."""
        rng = self.rng
        name = "epochfence-barrier"
        scope = rng.choice(self.scopes_of(partition))
        stamp = self.grants[scope][-1]
        good = (name, self.encode(stamp))
        sort = rng.choice(
            ["again", "wrong", "wrong", "malformed", "with stamp", "doubled", "both"]
        )
        if sort == "again":
            return [good]
        if sort == "wrong":
            return [(name, self.encode(self.wrong_stamp(scope)))]
        if sort == "malformed":
            return [(name, self.malformed(stamp))]
        if sort == "with stamp":
            return rng.choice([[good, *headers], [*headers, good]])
        if sort == "doubled":
            return [good, (name, self.encode(rng.choice(self.grants[scope])))]
        return [*headers, good, good]

    def among_user_headers(self, headers: list[Header]) -> list[Header]:
        """The same headers with others before, after and between."""
        rng = self.rng
        headers = list(headers)
        pool = USER_HEADERS + OUR_OTHER_HEADERS * 2
        if not self.ours:
            # These names mean nothing here.
            own = f"{rng.randint(0, 99)}:{self.hex16()}:orders-writer".encode()
            pool += [("epochfence", own), ("epochfence", b"damaged")] * 4
            pool += [("epochfence-barrier", own), ("epochfence-barrier", None)] * 2
        for _ in range(self.weighed([(0, 5), (1, 3), (2, 2), (5, 0.5)])):
            name, value = rng.choice(pool)
            if not self.ours and name == self.stamp.rsplit(":", 1)[0]:
                continue
            headers.insert(rng.randint(0, len(headers)), (name, value))
        return headers

    # --- Positions ------------------------------------------------------------------

    def recreate(self) -> None:
        """Delete a topic and create it again, where the old id is known to the file."""
        topic = self.rng.choice(self.topics)
        mine = [one for one in self.partitions if one.topic is topic]
        if topic.ids == "never" or not any(one.written for one in mine):
            return
        if all(one.id_told or not one.written for one in mine):
            topic.lives.append(self.new_topic_id())

    def place(self, partition: Partition) -> Json:
        """Topic id, leader epoch and offset of the next record, kept in order."""
        rng, topic = self.rng, partition.topic
        new_life = False
        behind = partition.life < len(topic.lives) - 1
        if behind and (partition.written == 0 or self.chance(0.8)):
            new_life = partition.written > 0
            partition.life = len(topic.lives) - 1
            partition.begin_life()
            partition.next_offset = rng.choice([0, 0, 0, rng.randrange(6)])
            partition.leader_epoch = rng.choice([0, 0, rng.randrange(4)])
            partition.id_told = False
        elif self.chance(0.06):
            partition.next_offset += rng.choice([1, 2, rng.randrange(100)])
        if self.chance(0.05):
            partition.leader_epoch += rng.choice([1, 1, 2, 10])
            if topic.leader_epochs != "never" and self.chance(self.truncation_rate):
                # A truncation: the log goes on at a lower offset.
                back = partition.next_offset - rng.randint(1, 15)
                partition.next_offset = max(0, partition.highest_bare + 1, back)
        offset = partition.next_offset
        partition.next_offset += 1

        # A record without leader epoch has to lie behind all offsets of its life.
        bare = topic.leader_epochs == "never" or (
            topic.leader_epochs == "sometimes" and self.chance(0.3)
        )
        bare = bare and offset > partition.highest
        if bare:
            partition.highest_bare = offset
        partition.highest = max(partition.highest, offset)

        told = topic.ids == "always" or (topic.ids == "sometimes" and self.chance(0.5))
        told = told or new_life
        partition.id_told = partition.id_told or told
        partition.written += 1
        line: Json = {"topic": topic.name, "partition": partition.number}
        self.put(line, "topic_id", topic.lives[partition.life] if told else None)
        line["offset"] = offset
        self.put(line, "leader_epoch", None if bare else partition.leader_epoch)
        return line

    def put(self, line: Json, key: str, value: object) -> None:
        """Set a key; where nothing is known, null or no such key."""
        if value is not None or self.chance(0.5):
            line[key] = value

    # --- The play -------------------------------------------------------------------

    def step(self) -> None:
        """One more record."""
        rng = self.rng
        if self.chance(self.takeover_rate):
            self.takeover()
        if self.chance(self.recreation_rate):
            self.recreate()
        is_barrier = len(self.pending) > 0 and self.chance(0.6)
        if is_barrier:
            partition, stamp = self.pending.pop(rng.randrange(len(self.pending)))
            headers: list[Header] = [("epochfence-barrier", self.encode(stamp))]
        else:
            partition = rng.choice(self.partitions)
            headers = self.fencing_headers(partition)
        record = self.place(partition)
        if self.chance(0.9):
            record["timestamp"] = 1_700_000_000_000 + rng.randrange(10**7)
        key = rng.choice([b"k1", b"k2", b"", None])
        value = rng.choice([b"v", b"{}", b"\x00\xff", b"", b"w", None])
        if is_barrier:
            key, value = rng.choice([(None, None), (b"epochfence-barrier/x", b"")])
        record["key"] = text(key)
        record["value"] = text(value)
        record["headers"] = [
            [name, text(data)] for name, data in self.among_user_headers(headers)
        ]
        self.records.append(record)

    def make(self) -> Json:
        """Play the world and hand it out."""
        while len(self.records) < self.size:
            self.step()
        ledger = self.claims if self.has_ledger else None
        return {
            "records": self.records,
            "ledger": ledger,
            "table": self.make_table(ledger),
            "settings": self.settings,
        }

    # --- The table ------------------------------------------------------------------

    def make_table(self, ledger: list[Json] | None) -> list[Json]:
        """Rows that earlier readers left: true ones, bent ones, and floors."""
        rng = self.rng
        style = self.weighed(
            [
                ("none", 0.2),
                ("true", 0.25),
                ("whole", 0.05),
                ("bent", 0.3),
                ("damaged", 0.2),
            ]
        )
        if style == "none":
            return []
        _, found = judge(self.records, ledger, [], self.settings)
        rows: list[Json] = list(found)
        if style != "whole":
            share = rng.choice([0.2, 0.5, 0.8])
            rows = [row for row in rows if self.chance(share)]
        if style == "damaged" and self.ours:
            # The log of grants was lost and written anew, say.
            for row in rows:
                if self.chance(0.6):
                    losers = self.losers[row["scope"]]
                    ids = [self.hex16(), *(stamp.grant_id for stamp in losers[-3:])]
                    row["grant_id"] = rng.choice(ids)
        if style == "bent":
            for row in rows:
                for _ in range(self.weighed([(0, 3), (1, 5), (2, 2)])):
                    self.bend(row)
            if self.records and self.chance(0.4):
                rows += [self.any_row() for _ in range(rng.randint(1, 3))]
        for partition in self.partitions:
            if self.chance(0.2):
                rows.append(self.floor(partition))
        rows += [dict(row) for row in rows if self.chance(0.05)]
        if self.chance(0.1):
            rows += self.strange_rows()
        rng.shuffle(rows)
        rows = [row for row in rows if self.is_below_ledger(row)]
        optional = ("grant_id", "topic_id", "leader_epoch")
        return [
            {
                key: value
                for key, value in row.items()
                if value is not None or key not in optional or self.chance(0.5)
            }
            for row in rows
        ]

    def is_below_ledger(self, row: Json) -> bool:
        """Whether the ledger would not be called regressed because of this row."""
        scope: str = row["scope"]
        if scope.startswith("~"):
            return bool(row["epoch"] >= 0)
        if not self.has_ledger:
            return bool(1 <= row["epoch"] <= LARGEST)
        grants = self.grants.get(scope)
        return grants is not None and 1 <= row["epoch"] <= grants[-1].epoch

    def bend(self, row: Json) -> None:
        """Make one thing about a row wrong or unknown."""
        rng = self.rng
        grants = self.grants[row["scope"]]
        bends: dict[str, Callable[[], object]] = {
            "topic_id": lambda: rng.choice([None, None, self.new_topic_id()]),
            "leader_epoch": lambda: rng.choice(
                [None, None, max(0, (row["leader_epoch"] or 0) + rng.randint(-2, 2))]
            ),
            "start_offset": lambda: max(
                0, row["start_offset"] + rng.choice([-10, -2, -1, 1, 2, 10, 10**6])
            ),
            "grant_id": lambda: (
                self.hex16() if self.ours and self.chance(0.7) else None
            ),
            "epoch": lambda: rng.choice(
                [rng.choice(grants).epoch, row["epoch"] - 1, row["epoch"] + 1]
            ),
        }
        key = rng.choice([*bends, "grant_id", "grant_id"])
        row[key] = bends[key]()

    def any_row(self) -> Json:
        """A row at, just before or just behind some record, by some grant."""
        rng = self.rng
        record = rng.choice(self.records)
        scope = rng.choice(self.all_scopes())
        stamp = rng.choice(self.grants[scope] + self.losers[scope])
        return {
            "topic": record["topic"],
            "partition": record["partition"],
            "scope": scope,
            "epoch": stamp.epoch,
            "grant_id": stamp.grant_id if self.ours else None,
            "topic_id": record.get("topic_id"),
            "leader_epoch": record.get("leader_epoch"),
            "start_offset": max(0, record["offset"] + rng.choice([-1, 0, 0, 1])),
        }

    def floor(self, partition: Partition) -> Json:
        """A row of an earlier life: an early epoch, at whatever position."""
        scope = self.rng.choice(self.scopes_of(partition))
        grants = self.grants[scope]
        stamp = self.rng.choice(grants[: 1 + len(grants) // 3])
        return {
            "topic": partition.topic.name,
            "partition": partition.number,
            "scope": scope,
            "epoch": stamp.epoch,
            "grant_id": stamp.grant_id if self.ours and self.chance(0.8) else None,
            "topic_id": self.new_topic_id(),
            "leader_epoch": self.rng.choice([None, 0, 7, 1000]),
            "start_offset": self.rng.choice([0, 5, 10**9]),
        }

    def strange_rows(self) -> list[Json]:
        """Rows that are none of this audit's business, or only just."""
        rng = self.rng
        partition = rng.choice(self.partitions)
        here: Json = {"topic": partition.topic.name, "partition": partition.number}
        scope = rng.choice(self.all_scopes())
        epoch = self.grants[scope][-1].epoch
        rest: Json = {"epoch": epoch, "grant_id": None, "start_offset": 0}
        return [
            {"topic": "elsewhere", "partition": 0, "scope": scope, **rest},
            {**here, "partition": 99, "scope": scope, **rest},
            {**here, "scope": "~somebody-else", **rest},
            {**here, "scope": "somebody-else", **rest, "epoch": max(1, epoch)},
        ]


def world(seed: int, size: int) -> Json:
    """A world of `size` records: records, ledger (or None), table and settings."""
    return Maker(seed, size).make()


def monotone(world: Json) -> bool:
    """Whether a start that counts for one record counts for all later ones.

    That is not so where a position without leader epoch meets a truncation, nor where
    a row without topic id, or of a life that is yet to come, meets a recreated topic.
    There, and only there, admitted epochs may fall as positions rise (DESIGN.md, the
    first of what must always hold).
    """
    records: list[Json] = world["records"]
    table: list[Json] = world["table"]
    counted: dict[tuple[str, int], list[int]] = {}
    for i, record in enumerate(records):
        here = place(record)
        topic_id = topic_ids(records[: i + 1])[-1]
        leader_epoch, offset = record.get("leader_epoch"), record["offset"]
        now = [
            number
            for number, row in enumerate(table)
            if place(row) == here
            and counts(as_start(row), topic_id, leader_epoch, offset)
        ]
        if any(number not in now for number in counted.get(here, [])):
            return False
        counted[here] = now
    return True
