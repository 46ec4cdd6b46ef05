"""`epochfence demo`: the story it tells, and that nothing of it is left behind."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from epochfence.demo.scenario import ITEMS, LATE, Order, make_scenario
from epochfence.demo.stage import Rejected, Scene, Seen
from epochfence.demo.view import Screen, fault_of
from support.demo import problems, running_demo
from support.waiting import wait_until

# The story.


@given(st.integers(0, 2**32 - 1))
def test_in_every_story_the_late_writes_do_harm(seed: int) -> None:
    story = make_scenario(seed)
    assert story == make_scenario(seed)
    assert set(story.right) == set(story.corrupted) == set(story.items)
    assert len(story.items) == ITEMS
    wrong = {i for i in story.items if story.right[i] != story.corrupted[i]}
    assert wrong == {order.item for order in story.late}
    assert len(wrong) == LATE


# What is shown.


def test_a_scene() -> None:
    story = make_scenario(3)
    scene = played(story.seed)
    assert fault_of(scene, story.right) == ""
    console = Console(width=100, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        Screen(console, story).sum_up(scene)
    text = captured.get()
    assert text.count("WRONG") == LATE
    assert "|11111|222xxx22" in text
    assert problems(_with_fence_lines(text, scene), 0) == []
    for item, level in story.right.items():
        assert f"{item}" in text
        assert str(level) in text


def test_a_scene_that_is_not_as_it_should_be() -> None:
    story = make_scenario(3)
    scene = played(story.seed)
    scene.plain = dict(scene.fenced)
    assert "every item right" in fault_of(scene, story.right)
    del scene.fenced[story.items[0]]
    assert "not the right ones" in fault_of(scene, story.right)


def played(seed: int) -> Scene:
    """The scene at the end of a story."""
    story = make_scenario(seed)
    scene = Scene("nowhere")

    def write(epoch: int, orders: tuple[Order, ...], *, is_late: bool = False) -> None:
        for order in orders:
            seen = Seen(len(scene.log), epoch, f"pod-{epoch + 6}", False, order)
            scene.log.append(seen)
            scene.plain[order.item] = seen
            if is_late:
                scene.rejected.append(Rejected(seen, "stale-epoch", 2))
            else:
                scene.fenced[order.item] = seen

    for epoch, orders in ((1, story.before), (2, story.successor)):
        holder = f"pod-{epoch + 6}"
        scene.log.append(Seen(len(scene.log), epoch, holder, True, None))
        write(epoch, orders)
    write(1, story.late, is_late=True)
    write(2, story.after)
    return scene


def _with_fence_lines(text: str, scene: Scene) -> list[str]:
    told = [
        f"fence: rejects offset {one.record.offset}, stale-epoch: epoch 1 of pod-7"
        for one in scene.rejected
    ]
    return [*told, *text.splitlines()]


# The real thing, on the embedded broker.

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/cmdline").exists(), reason="processes are found by /proc"
)


def test_it_plays() -> None:
    with running_demo("--seed", "11") as demo:
        code = demo.ended()
        assert problems(demo.lines, code) == [], demo.lines
        assert demo.leaders() == []
        assert "(seed 11)" in demo.lines[0]


@needs_proc
@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        ("pod-7: leads", signal.SIGINT, 130),
        ("is stopped (SIGSTOP)", signal.SIGINT, 130),
        ("pod-8: leads", signal.SIGTERM, 128 + signal.SIGTERM),
        ("is stopped (SIGSTOP)", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_however_it_ends_no_process_is_left(
    words: str, number: signal.Signals, code: int
) -> None:
    with running_demo() as demo:
        wait_until(lambda: demo.has_said(words), 60, f"it says {words!r}")
        assert len(demo.leaders()) == 2
        demo.send(number)
        assert demo.ended() == code
        wait_until(lambda: demo.leaders() == [], 10, "no process is left")
        assert "Traceback" not in "\n".join(demo.lines)
