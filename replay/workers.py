"""Slices judged here, or by several processes, one slice at a time each.

Processes, since Python's threads share one processor. What they find comes back in the
form in which a checkpoint keeps it.
"""

from __future__ import annotations

import multiprocessing
import queue
import signal
from collections.abc import Callable, Sequence
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import NamedTuple

from epochfence.epochs.errors import EpochfenceError
from epochfence.replay.collecting import rarely_collected
from epochfence.replay.often import Often
from epochfence.replay.slices import Job, SliceFailed, SliceState, judge_slice
from epochfence.replay.sources import VerdictWriter
from epochfence.replay.topic_source import Slice

_TELL_EVERY_S = 0.2
_KEEP_EVERY_S = 10.0
_END_TIMEOUT_S = 10.0


class Task(NamedTuple):
    """A slice to judge, and where an earlier audit of it stopped."""

    piece: Slice
    begun: SliceState | None


class Told(NamedTuple):
    """What is told of a slice while it is judged.

    Attributes:
        partition: Which.
        records: How many records came since the last time.
        position: The offset that was come to.
        state: What was found up to there; None: not told this time.
        is_over: Whether nothing more comes of it.
        failure: Why it ends early, None where nothing is wrong.
    """

    partition: int
    records: int
    position: int
    state: SliceState | None = None
    is_over: bool = False
    failure: str | None = None


#: Told what happens; says whether to stop.
Listener = Callable[[Told], bool]


def judge_here(
    job: Job,
    task: Task,
    listener: Listener,
    *,
    keeps: bool,
    verdicts: VerdictWriter | None = None,
) -> None:
    """Judge one slice in this process.

    Args:
        job: What to judge by.
        task: The slice.
        listener: Told every moment, and at the end.
        keeps: Whether it is to be told now and then what was found so far.
        verdicts: Takes each record's verdict.
    """
    number = task.piece.partition
    is_time_to_tell, is_time_to_keep = Often(_TELL_EVERY_S), Often(_KEEP_EVERY_S)
    gathered = 0

    def after_batch(
        records: int, state: Callable[[], SliceState], position: int
    ) -> bool:
        nonlocal gathered
        gathered += records
        if not is_time_to_tell():
            return False
        found = state() if keeps and is_time_to_keep() else None
        told = Told(number, gathered, position, found)
        gathered = 0
        return listener(told)

    failure = None
    try:
        end = judge_slice(job, task.piece, task.begun, after_batch, verdicts)
    except SliceFailed as failed:
        end, failure = failed.state, failed.error.reason
    listener(Told(number, gathered, end.next_offset, end, True, failure))


def judge_by_workers(
    job: Job, tasks: Sequence[Task], listener: Listener, *, keeps: bool, workers: int
) -> None:
    """Judge slices in processes of their own.

    Args:
        job: What to judge by.
        tasks: The slices.
        listener: Told, in this process, what happens to each.
        keeps: Whether it is to be told now and then what was found so far.
        workers: How many processes.
    """
    context = multiprocessing.get_context("spawn")
    waiting: Queue[Task | None] = context.Queue()
    told: Queue[Told] = context.Queue()
    stop = context.Event()
    started = [
        context.Process(
            target=_work, args=(job, waiting, told, stop, keeps), daemon=True
        )
        for _ in range(min(workers, len(tasks)))
    ]
    for task in tasks:
        waiting.put(task)
    for process in started:
        process.start()
        waiting.put(None)
    left = {task.piece.partition for task in tasks}
    try:
        while left:
            try:
                one = told.get(timeout=_TELL_EVERY_S)
            except queue.Empty:
                if not any(process.is_alive() for process in started):
                    break
                continue
            if one.is_over:
                left.discard(one.partition)
            if listener(one):
                stop.set()
        if not stop.is_set():
            for number in left:
                reason = "the process that read it ended without a word"
                listener(Told(number, 0, -1, None, True, reason))
    finally:
        stop.set()
        for process in started:
            process.join(_END_TIMEOUT_S)
            if process.is_alive():
                process.kill()


def _work(
    job: Job,
    waiting: Queue[Task | None],
    told: Queue[Told],
    stop: Event,
    keeps: bool,
) -> None:
    """The life of a worker."""
    # Ctrl-C reaches every process of the terminal: the parent says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def listener(one: Told) -> bool:
        told.put(one)
        return stop.is_set()

    with rarely_collected():
        while not stop.is_set():
            task = waiting.get()
            if task is None:
                return
            try:
                judge_here(job, task, listener, keeps=keeps)
            except EpochfenceError as error:
                told.put(Told(task.piece.partition, 0, -1, None, True, str(error)))
