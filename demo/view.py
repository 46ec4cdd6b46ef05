"""How the demo looks: live in a terminal, line by line elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from epochfence.demo.scenario import Scenario
from epochfence.demo.stage import HOLDERS, Scene, Seen

_TOLD_LINES = 9


class Screen:
    """Shows a scene while it is played.

    Args:
        console: The standard output.
        scenario: What is played.
        is_on_cluster: Whether it is played on a cluster of the user's.
    """

    def __init__(
        self, console: Console, scenario: Scenario, *, is_on_cluster: bool = False
    ) -> None:
        self._console = console
        self._scenario = scenario
        self._is_on_cluster = is_on_cluster
        self._told = 0
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(console=console, transient=True, refresh_per_second=12)

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, scene: Scene) -> None:
        """Show what is new."""
        if self._live is None:
            for line in scene.told[self._told :]:
                self._print(Text(line))
            self._told = len(scene.told)
            return
        told = scene.told[-_TOLD_LINES:]
        told += [""] * (_TOLD_LINES - len(told))
        lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in told]
        self._live.update(
            Group(*lines, Text(), levels(scene, self._scenario), Text(), picture(scene))
        )

    def _print(self, what: RenderableType) -> None:
        # A terminal gets whole words; a file, lines as long as they are.
        self._console.print(what, soft_wrap=not self._console.is_terminal)

    def sum_up(self, scene: Scene) -> None:
        """Show what came of it, what happened, and what to try next."""
        if self._live is not None:
            # Of what was live, the lines are what is worth keeping.
            for line in scene.told:
                self._print(Text(line))
        self._print("")
        self._print(levels(scene, self._scenario))
        self._print("")
        self._print(picture(scene))
        self._print("")
        for item, seen in scene.wrong(self._scenario.right).items():
            self._print(Text(_blame(item, seen, scene, self._scenario)))
        self._print("")
        for paragraph in _conclusion(scene, self._scenario, self._is_on_cluster):
            self._print(Text(paragraph))


def levels(scene: Scene, scenario: Scenario) -> Table:
    """Both states, side by side: who set which item last."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("item", no_wrap=True)
    table.add_column("plain consumer", no_wrap=True)
    table.add_column("with epochfence", no_wrap=True)
    wrong = _wrong_by_now(scene)
    for item in scenario.items:
        plain = _cell(scene.plain.get(item))
        if item in wrong:
            plain = Text.assemble(plain, ("  WRONG", "bold red"))
        table.add_row(item, plain, _cell(scene.fenced.get(item)))
    return table


def _wrong_by_now(scene: Scene) -> set[str]:
    rejected = {one.record.offset for one in scene.rejected}
    return {item for item, seen in scene.plain.items() if seen.offset in rejected}


def _cell(seen: Seen | None) -> Text:
    if seen is None or seen.order is None:
        return Text("-")
    style = _style(seen.epoch)
    return Text.assemble(
        (f"{seen.order.level:>3}", "bold"), "  ", (f"by {seen.holder}", style)
    )


def _style(epoch: int) -> str:
    return ("cyan", "yellow")[epoch % 2]


def picture(scene: Scene) -> Text:
    """The partition, a character a record."""
    rejected = {one.record.offset for one in scene.rejected}
    end = max((seen.offset for seen in scene.log), default=-1) + 1
    ruler = "".join(f"{n:<10}" for n in range(0, end, 10))[: max(end, 1)]
    text = Text.assemble("offset  ", (ruler, "dim"), "\n", "epoch   ")
    for seen in scene.log:
        if seen.is_barrier:
            text.append("|", "bold")
        elif seen.offset in rejected:
            text.append("x", "bold red")
        else:
            text.append(str(seen.epoch % 10), _style(seen.epoch))
    text.append("\n        | barrier   1, 2 epoch of the record   x rejected", "dim")
    return text


def _blame(item: str, seen: Seen, scene: Scene, scenario: Scenario) -> str:
    """Which record made an item wrong, and why it should not have."""
    assert seen.order is not None
    began = next(
        (one.offset for one in scene.log if one.epoch > seen.epoch and one.is_barrier),
        None,
    )
    return (
        f"{item}: {seen.order.level} instead of {scenario.right[item]}, by the record "
        f"at offset {seen.offset}. {seen.holder} wrote it under epoch {seen.epoch}; "
        f"the next epoch had begun at offset {began}."
    )


def _conclusion(scene: Scene, scenario: Scenario, is_on_cluster: bool) -> list[str]:
    first, second = HOLDERS
    again = (
        "another story, with another --seed"
        if is_on_cluster
        else "the same on your own cluster, epochfence demo -b HOST:PORT"
    )
    late, wrong = len(scene.rejected), len(scene.wrong(scenario.right))
    return [
        f"What happened: {first} was stopped with messages on their way. {second} took "
        f"over; then {first} woke up, and Kafka took them: no lease and no lock can "
        f"call back what was handed over. The plain consumer applied all of it and has "
        f"{wrong} of {len(scenario.items)} items wrong. The fenced one dropped {late} "
        f"records by their epoch and has every item right.",
        f"Try next: {again} (again: --seed {scenario.seed}); or judge a topic that you "
        f"have: epochfence audit --help",
    ]


def fault_of(scene: Scene, right: Mapping[str, int]) -> str:
    """What is not as it should be, empty where all is."""
    if scene.levels(scene.fenced) != right:
        return "the fenced consumer's levels are not the right ones"
    if not scene.wrong(right):
        return "the plain consumer has every item right"
    return ""
