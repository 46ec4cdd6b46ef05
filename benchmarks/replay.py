"""How fast the engine of `epochfence audit` replays a topic, beside plain reading.

A topic of stamped messages of 100 bytes, with a takeover now and then and a zombie in
the middle of each leadership. `raw` is confluent's consumer with
`fetch.queue.backoff.ms=10`, 1,000 messages at a time, nothing looked at; the engine
judges every record, by one worker. Both from the first call to the last message, by the
clock and by the processor time of the reading thread.

`python -m benchmarks.replay` measures what memory the command takes for 1 and for 10
million records, each in a process of its own.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, TopicPartition

from benchmarks.audit import run_apart
from benchmarks.measuring import SCOPE, VALUE, Bench, Figure, broker, compare, filler
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.settings import FenceSettings
from epochfence.replay.audit import Audit
from epochfence.replay.collecting import rarely_collected
from epochfence.replay.engine import TopicAudit
from epochfence.replay.told_topics import read_told_ledger
from epochfence.replay.topic_source import TopicSource

MESSAGES = 1_000_000
EPOCHS = 10
ZOMBIE_RECORDS = 100
BATCH = 1000
TIMEOUT_S = 60.0

#: Microseconds a message: by the clock, on the processor.
Times = tuple[float, float]


def measure(servers: str, repeats: int) -> list[Figure]:
    """Measure both ways, in turns."""
    raw: list[Times] = []
    replayed: list[Times] = []
    with Bench(servers) as bench:
        fill(bench, MESSAGES)
        settings = FenceSettings([SCOPE], unstamped="quarantine")
        for _ in range(repeats):
            raw.append(_read(bench, MESSAGES))
            replayed.append(_replay(bench, settings, MESSAGES))
    return [
        compare(
            "replay",
            f"{MESSAGES:,} records by one worker, to raw, by the {by}",
            [one[part] for one in replayed],
            [one[part] for one in raw],
            unit="µs",
        )
        for part, by in ((0, "clock"), (1, "processor"))
    ]


def fill(bench: Bench, messages: int) -> None:
    """Write the messages of some leaders, each disturbed by the one before it."""
    with bench.ledger() as ledger:
        leaders = [ledger.claim(SCOPE, holder=f"pod-{n}") for n in range(EPOCHS)]
    producer = filler(bench.config)
    per_epoch = messages // EPOCHS
    for number in range(messages):
        stamp = _writer(leaders, *divmod(number, per_epoch)).stamp_value
        producer.produce(bench.topic, VALUE, headers=[("epochfence", stamp)])
        if number % BATCH == 0:
            producer.poll(0)
            if number % 1_000_000 == 0:
                producer.flush()
    producer.flush()


def _writer(leaders: Sequence[Leadership], epoch: int, number: int) -> Leadership:
    epoch = min(epoch, len(leaders) - 1)
    is_zombie = epoch > 0 and 1_000 <= number < 1_000 + ZOMBIE_RECORDS
    return leaders[epoch - 1 if is_zombie else epoch]


def _read(bench: Bench, messages: int) -> Times:
    begun, begun_on_processor = time.perf_counter(), time.thread_time()
    tuned = {
        **bench.config,
        "group.id": bench.topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.queue.backoff.ms": 10,
    }
    consumer = Consumer(tuned)
    consumer.assign([TopicPartition(bench.topic, 0, 0)])
    count = 0
    while count < messages:
        count += len(consumer.consume(BATCH, 1))
    return _times(begun, begun_on_processor, messages)


def _replay(bench: Bench, settings: FenceSettings, messages: int) -> Times:
    ledger = read_told_ledger(bench.config, bench.coordination_topic, TIMEOUT_S)
    source = TopicSource(bench.config, bench.topic, TIMEOUT_S)
    begun, begun_on_processor = time.perf_counter(), time.thread_time()
    with rarely_collected():  # as the command does
        outcome = TopicAudit(Audit(settings, ledger), source).run()
    times = _times(begun, begun_on_processor, messages)
    assert outcome.report.records == messages
    assert outcome.report.count("stale") == (EPOCHS - 1) * ZOMBIE_RECORDS
    return times


def _times(begun: float, begun_on_processor: float, messages: int) -> Times:
    by_clock = time.perf_counter() - begun
    on_processor = time.thread_time() - begun_on_processor
    return by_clock / messages * 1e6, on_processor / messages * 1e6


def main() -> None:
    """Print what memory the command takes, by the number of records."""
    parser = argparse.ArgumentParser(description="Memory of a replay, by its records.")
    parser.add_argument("-b", "--bootstrap-server", metavar="HOST:PORT")
    parser.add_argument("--records", type=int, nargs="+", metavar="N",
                        default=[1_000_000, 10_000_000])  # fmt: skip
    options = parser.parse_args()
    with broker(options.bootstrap_server) as servers:
        for records in options.records:
            with Bench(servers) as bench:
                fill(bench, records)
                command = [
                    *(sys.executable, "-m", "epochfence", "audit"),
                    *("--topic", bench.topic, "-b", servers),
                    *("--coordination-topic", bench.coordination_topic, "--quiet"),
                ]
                begun = time.monotonic()
                run = run_apart(command)
                took_s = time.monotonic() - begun
            print(
                f"{records:,} records: {run.peak_mb:.0f} MB, {took_s:.1f} s, "
                f"{run.cpu_s:.1f} s of processor time",
                flush=True,
            )


if __name__ == "__main__":
    main()
