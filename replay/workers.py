"""Slices judged here, or by several processes, one slice at a time each.

Processes, since Python's threads share one processor. What they find comes back in the
form in which a checkpoint keeps it.

Each has a pipe of its own, and nothing is shared: a process that is killed in the
middle of a word holds no lock that another one waits for, and its pipe ends.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import NamedTuple, cast

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


class _Worker:
    """A process that judges, and the slice that it is at.

    Args:
        job: What to judge by.
        keeps: Whether it tells now and then what it found so far.
    """

    def __init__(self, job: Job, *, keeps: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.task: Task | None = None
        self._process: SpawnProcess = context.Process(
            target=_work, args=(job, theirs, keeps), daemon=True
        )
        with _signals_held_back():
            self._process.start()
        theirs.close()  # so that the pipe ends when the process does

    def give(self, task: Task | None) -> None:
        """Give it a slice; None: it may stop, in the middle of one too."""
        self.task = task or self.task
        # To a dead one it cannot be said: that is told where its words are waited for.
        with suppress(OSError):
            self.pipe.send(task)

    def listen(self) -> Told | None:
        """What it says next; None: it is dead."""
        try:
            return cast(Told, self.pipe.recv())
        except (EOFError, OSError):
            return None

    def end(self) -> None:
        """See that it has ended."""
        self._process.join(_END_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
        self.pipe.close()


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
    waiting = deque(tasks)
    started: list[_Worker] = []
    try:
        for _ in range(min(workers, len(tasks))):
            worker = _Worker(job, keeps=keeps)
            started.append(worker)
            worker.give(waiting.popleft())
        is_stopped = _hear(started, waiting, listener)
        if not is_stopped:
            for task in waiting:
                _tell_dead(task, listener)
    finally:
        for worker in started:
            worker.give(None)
        for worker in started:
            worker.end()


def _hear(started: Iterable[_Worker], waiting: deque[Task], listener: Listener) -> bool:
    """Listen until nothing more comes; give whether it was stopped."""
    is_stopped = False
    busy = {worker.pipe: worker for worker in started}
    while busy:
        for pipe in wait([*busy]):
            worker = busy[cast("Connection[object, object]", pipe)]
            told = worker.listen()
            if told is None:
                del busy[worker.pipe]
                if worker.task is not None:
                    _tell_dead(worker.task, listener)
                continue
            must_stop = listener(told)
            if must_stop and not is_stopped:
                is_stopped = True
                waiting.clear()
                for other in busy.values():
                    other.give(None)
            if told.is_over:
                worker.task = None
                if waiting:
                    worker.give(waiting.popleft())
                else:
                    del busy[worker.pipe]
    return is_stopped


def _tell_dead(task: Task, listener: Listener) -> None:
    reason = "the process that read it ended without a word"
    listener(Told(task.piece.partition, 0, -1, None, True, reason))


@contextmanager
def _signals_held_back() -> Generator[None, None, None]:
    """Hold Ctrl-C back, and for good in a process that is started meanwhile.

    Ctrl-C reaches every process of the terminal, and SIGTERM every one of a service:
    the parent says when to stop.
    """
    held_back = [signal.SIGINT, signal.SIGTERM]
    # Started along with the first process, it would let the signals through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held_back)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(job: Job, pipe: Connection, keeps: bool) -> None:
    """The life of a worker: slice after slice, until it is told that there is none."""

    def listener(one: Told) -> bool:
        try:
            pipe.send(one)
            # While it is at a slice, all that can come is the word to stop, or the
            # end of the pipe.
            return pipe.poll()
        except OSError:
            return True  # the parent is dead

    with rarely_collected():
        while True:
            task = cast("Task | None", _received(pipe))
            if task is None:
                return
            try:
                judge_here(job, task, listener, keeps=keeps)
            except EpochfenceError as error:
                listener(Told(task.piece.partition, 0, -1, None, True, str(error)))


def _received(pipe: Connection) -> object:
    try:
        return pipe.recv()
    except (EOFError, OSError):
        return None
