"""Whatever happens: what the kit delivers and confirms is what the rules say."""

from __future__ import annotations

from confluent_kafka import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from epochfence import Deposed, FenceSettings, Verdict
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.messages import headers_of
from epochfence.testing import MemoryConsumer, MemoryLedger, MemoryLog, MemoryProducer

TOPIC = "t"

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("succeed"), st.booleans()),
        st.tuples(st.just("write"), st.integers(0, 3)),
        st.tuples(st.just("hold"), st.integers(0, 3)),
        st.tuples(st.just("release"), st.integers(0, 3)),
        st.tuples(st.just("made up"), st.integers(1, 5)),
        st.tuples(st.just("unstamped"), st.none()),
        st.tuples(st.just("repeat"), st.integers(0, 20)),
        st.tuples(st.just("change leader"), st.none()),
        st.tuples(st.just("read"), st.integers(1, 4)),
    ),
    max_size=30,
)


class World:
    """A ledger, a topic, its leaders, and a consumer that reads now and then."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.log.create_topic(TOPIC)
        self.ledger = MemoryLedger(self.log)
        self.leaders: list[MemoryProducer] = []
        self.delivered: list[int | None] = []
        self.rejected: dict[int | None, str] = {}
        self.consumer = self.reader(self.rejected)

    def reader(self, rejected: dict[int | None, str]) -> MemoryConsumer:
        def on_rejected(message: Message, verdict: Verdict) -> None:
            rejected[message.offset()] = verdict.reason

        consumer = MemoryConsumer(
            self.ledger,
            require={TOPIC: ["w"]},
            config={"group.id": str(id(rejected))},
            unstamped="quarantine",
            on_rejected=on_rejected,
        )
        consumer.subscribe([TOPIC])
        return consumer

    def do(self, step: str, argument: int | None) -> None:
        number = argument or 0
        if step == "succeed":
            leader = MemoryProducer(self.ledger, self.ledger.claim("w", holder="a"))
            self.leaders.append(leader)
            if argument:
                leader.take_over([TOPIC])
        elif step == "made up":
            stamp = [("epochfence", b"%d:0123456789abcdef:w" % number)]
            self.log.append(TOPIC, "x", headers=stamp)
        elif step == "unstamped":
            self.log.append(TOPIC, "x")
        elif step == "repeat":
            for record in self.log.records(TOPIC)[number : number + 1]:
                self.log.repeat(record)
        elif step == "change leader":
            self.log.change_leader(TOPIC)
        elif step == "read":
            self.delivered += [m.offset() for m in self.consumer.consume(number)]
        elif number < len(self.leaders):
            self.lead(self.leaders[number], step)

    def lead(self, leader: MemoryProducer, step: str) -> None:
        if step == "hold":
            leader.hold()
        elif step == "release":
            leader.release()
        else:
            try:
                leader.take_over([TOPIC])
                leader.produce(TOPIC, "v")
            except Deposed:
                pass

    def verdicts(self) -> dict[int | None, Verdict]:
        """By the rules alone, from everything that is there in the end."""
        fence = PartitionFence(
            TOPIC, 0, FenceSettings(["w"], unstamped="quarantine"), self.ledger.state
        )
        found: dict[int | None, Verdict] = {}
        for record in self.log.records(TOPIC):
            verdict = fence.judge(
                record.leader_epoch(),
                record.offset() or 0,
                headers_of(record),
                ledger_complete=True,
            )
            assert verdict is not None
            found[record.offset()] = verdict
        return found


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_deliveries_and_receipts_are_those_of_the_rules(
    steps: list[tuple[str, int | None]],
) -> None:
    world = World()
    for step, argument in steps:
        world.do(step, argument)
    verdicts = world.verdicts()
    admitted = [at for at, one in verdicts.items() if one.kind == "admitted"]
    rejected = {at: one.reason for at, one in verdicts.items() if one.is_rejected}
    world.delivered += [message.offset() for message in world.consumer]
    assert (world.delivered, world.rejected) == (admitted, rejected)
    late: dict[int | None, str] = {}
    assert [message.offset() for message in world.reader(late)] == admitted
    assert late == rejected
    for leader in world.leaders:
        leader.release()
        receipts = leader.confirm()
        verdicts = world.verdicts()
        for receipt in receipts:
            is_admitted = verdicts[receipt.offset].kind == "admitted"
            assert receipt.outcome == ("admitted" if is_admitted else "fenced")
