"""Test code that goes by epochfence, without a broker.

`MemoryLedger`, `MemoryProducer` and `MemoryConsumer` *are* the `Ledger`,
`FencedProducer` and `FencedConsumer` that go into production, with stand-ins in place
of Kafka's clients: claims, barriers, receipts, commits and verdicts come from the same
code. `MemoryLog` holds the topics. All of them can be told to fail:

- `ledger.depose(leadership)`, `ledger.fail(error)`, `ledger.lose_outcome()`,
  `ledger.lose_grants()`;
- `producer.hold()`, `producer.release()`, `producer.fail_deliveries()`;
- `log.append(...)` (what anybody writes), `log.repeat(record)`, `log.truncate(...)`,
  `log.change_leader(...)`, `log.recreate(topic)`, `log.rebalance(group)`,
  `log.fail(error)`;
- `zombie(producer)`: what it held back arrives behind its successor.

`epochfence.testing.plugin` has fixtures for pytest.

Simplifications, each of which a test on a real Kafka may turn up:

- One process: everything happens in the call that causes it. Every ledger is in step
  at once, so a deposed producer raises `Deposed` with its next call; a real one may
  hand over some more messages before it hears of its successor.
- Time-outs pass at once, and nothing happens in the background: `MemoryConsumer` gives
  what there is, and its iteration ends at the logs' end. (A plain `FencedConsumer` on
  a `MemoryLedger` does wait.)
- Messages arrive in the order in which they were handed over, one by one, in the very
  call; there is no queue that is ever full. Keys choose partitions as librdkafka does
  by default; messages without a key take them in turn.
- One member a group: there are no rebalances but those that `rebalance` orders; two
  consumers with one `group.id` both get every partition, and share their commits.
- Topics have to be created; no partitions are added to them later.
- No transactions, no isolation levels, no retention and no compaction: a log begins at
  offset 0 and has no gaps. A record's timestamp is the one that was given, or none.
- Clients' settings are not checked, and have no effect, but for `group.id`,
  `auto.offset.reset`, `enable.auto.commit`, `enable.auto.offset.store`,
  `enable.partition.eof`, `on_commit` and `on_delivery`. A `Producer` cannot be given.
- No access control, no schemas, no share groups, no embedded broker.

`tests/kafka/test_testing_kit.py` of this project plays the same histories here and on
a real Kafka, and compares.
"""

from epochfence.testing.consumer import MemoryConsumer
from epochfence.testing.ledger import MemoryLedger
from epochfence.testing.log import MemoryLog
from epochfence.testing.producer import MemoryProducer
from epochfence.testing.scenes import zombie
from epochfence.testing.sink import MemorySink

__all__ = [
    "MemoryConsumer",
    "MemoryLedger",
    "MemoryLog",
    "MemoryProducer",
    "MemorySink",
    "zombie",
]
