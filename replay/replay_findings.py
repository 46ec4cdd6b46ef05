"""What the replay of a partition says, as findings with their evidence."""

from __future__ import annotations

from collections.abc import Iterator

from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.verdicts import Reason
from epochfence.replay.histories import EpochHistory, Rejections
from epochfence.replay.partition_audit import KEPT_CAUSES, KEPT_EPOCHS, PartitionState
from epochfence.replay.places import milliseconds_between
from epochfence.replay.report import Evidence, Finding, Severity
from epochfence.replay.texts import counted, duration
from epochfence.replay.witness import Witness

_UNFENCED = "A consumer without a fence applied what lies there."


def findings_of(
    state: PartitionState,
    witness: Witness,
    settings: FenceSettings,
    read_from: int | None = None,
) -> Iterator[Finding]:
    """What an operator should know of one partition.

    Args:
        state: What was found.
        witness: Knows the holders.
        settings: What was judged by.
        read_from: Where the reading began, None where that is not known.
    """
    teller = _Teller(state, witness, settings)
    for rejections in state.rejections:
        yield teller.rejected(rejections)
    for history in state.epochs:
        has_begun = history.start is not None and not settings.stamps.is_foreign
        if (
            has_begun
            and history.barrier is None
            and _is_start(history, state, read_from)
        ):
            yield teller.without_barrier(history)
    if state.epochs_left_out:
        yield teller.left_out()


def _is_start(
    history: EpochHistory, state: PartitionState, read_from: int | None
) -> bool:
    """Whether an epoch began with the record that is taken for its start.

    The first one of a scope may as well have begun before what was read.
    """
    assert history.start is not None
    if read_from is None:
        read_from = 0 if state.first is None else state.first.offset
    return (
        read_from == 0
        or history.start.life > 0
        or any(
            one.scope == history.scope and one.epoch < history.epoch
            for one in state.starts
        )
    )


class _Teller:
    def __init__(
        self,
        state: PartitionState,
        witness: Witness,
        settings: FenceSettings,
    ) -> None:
        self._state = state
        self._witness = witness
        self._where = f"{state.topic}[{state.partition}]"
        self._stamp = settings.stamps.name

    def rejected(self, one: Rejections) -> Finding:
        """Records that were rejected for the same cause."""
        severity, code, text, remedy = self._tell(one)
        return Finding(
            severity=severity,
            code=code,
            text=text,
            topic=self._state.topic,
            partition=self._state.partition,
            scope=one.scope,
            epoch=one.epoch,
            records=one.records,
            evidence=tuple(self._evidence(one)),
            remedy=remedy,
        )

    def without_barrier(self, one: EpochHistory) -> Finding:
        """An epoch that began with a message, not with a barrier."""
        assert one.start is not None
        return Finding(
            severity="notice",
            code="no-barrier",
            text=f"{self._witness.who(one.scope, one.epoch, one.grant_id)} has no "
            f"barrier on {self._where}: it began with a message at offset "
            f"{one.start.offset}. What its predecessor wrote before that was admitted.",
            topic=self._state.topic,
            partition=self._state.partition,
            scope=one.scope,
            epoch=one.epoch,
            records=1,
            evidence=(
                self._witness.record(
                    "began here",
                    self._state,
                    one.start,
                    (one.scope, one.epoch, one.grant_id),
                ),
            ),
            remedy="Take the topic over before writing to it: take_over().",
        )

    def left_out(self) -> Finding:
        """There are more epochs than are told apart."""
        return Finding(
            severity="notice",
            code="epochs-left-out",
            text=f"{self._where} has more than {KEPT_EPOCHS:,} epochs: later ones were "
            f"judged like all others, and are not listed one by one.",
            topic=self._state.topic,
            partition=self._state.partition,
            remedy="Audit a range of it for what is listed of them.",
        )

    def _tell(self, one: Rejections) -> tuple[Severity, str, str, str]:
        records = counted(one.records, "record")
        span = (
            f"at offset {one.first.offset}"
            if one.first.offset == one.last.offset
            else f"at offsets {one.first.offset} to {one.last.offset}"
        )
        there = f"{records} in {self._where}, {span}"
        if one.scope is None or one.epoch is None:
            return self._tell_unread(one.reason, there)
        who = self._witness.who(one.scope, one.epoch, one.grant_id)
        now = self._witness.who(one.scope, one.current_epoch or 0, one.against_grant_id)
        if one.reason == "stale-epoch":
            lasting = milliseconds_between(one.against, one.last)
            until = (
                ""
                if lasting is None or lasting < 0
                else f", until {duration(lasting)} after it"
            )
            began = "" if one.against is None else f" at offset {one.against.offset}"
            return (
                "warning", "stale-writes",
                f"{who} went on writing after {now} had begun{began}{until}: {there}. "
                f"{_UNFENCED}",
                "Compare what such consumers hold with a fenced replay, and see why "
                "that process wrote on.",
            )  # fmt: skip
        if one.reason == "conflict":
            return (
                "critical", "conflicting-grants",
                f"Two grants of epoch {one.epoch} of scope {one.scope!r}: {there} cite "
                f"one that the ledger holds, and another had begun there. The log of "
                f"grants was damaged or replaced.",
                "Stop the leaders of this scope, find out what happened to the "
                "coordination topic, and claim anew above both (at_least).",
            )  # fmt: skip
        if one.reason == "implausible":
            return (
                "warning", "implausible-epoch",
                f"Epoch {one.epoch} of scope {one.scope!r} is too far above epoch "
                f"{one.current_epoch}, which was current: {there}.",
                "If the jump is real, raise --max-jump.",
            )  # fmt: skip
        if one.reason == "unstamped":
            return self._tell_unread(one.reason, there)
        return (
            "warning", "ungranted-writes",
            f"{there} cite {self._cited(one)}. {_UNFENCED}",
            "Find out who writes there: the stamp is made up or corrupted, or a "
            "candidate that lost writes all the same.",
        )  # fmt: skip

    def _cited(self, one: Rejections) -> str:
        """What an ungranted stamp cites, by what the ledger says of it."""
        assert one.scope is not None
        assert one.epoch is not None
        cited = f"epoch {one.epoch} of scope {one.scope!r}, grant {one.grant_id}"
        holder = self._witness.holder(one.scope, one.epoch, one.grant_id)
        if holder is not None:
            return f"{cited}: a claim of {holder!r} that lost"
        return f"{cited}, which was granted to nobody"

    def _tell_unread(
        self, reason: Reason, there: str
    ) -> tuple[Severity, str, str, str]:
        texts: dict[Reason, tuple[str, str]] = {
            "malformed": (
                f"{there} carry a header {self._stamp!r} that cannot be read.",
                "Find out who writes them: stamps are written by the producer alone.",
            ),
            "ambiguous": (
                f"{there} are stamped more than once with the same scope.",
                "Find out who writes them: perhaps something copies headers.",
            ),
            "unstamped": (
                f"{there} lack a stamp that is required.",
                "Find out who writes without a fenced producer. If that is as it "
                "should be: --unstamped admit, or admit-until-first-stamp.",
            ),
        }
        if reason in texts:
            text, remedy = texts[reason]
            return "warning", f"{reason}-records", f"{text} {_UNFENCED}", remedy
        return (
            "warning", f"more-{reason}-records",
            f"{there} were rejected as {reason}, beside {KEPT_CAUSES:,} other causes "
            f"that are listed one by one. {_UNFENCED}",
            "--verdicts FILE names each of them.",
        )  # fmt: skip

    def _evidence(self, one: Rejections) -> Iterator[Evidence]:
        """The record that the first of them contradicts, and the first of them."""
        if one.against is not None and one.scope is not None:
            began = (one.scope, one.current_epoch, one.against_grant_id)
            yield self._witness.record("began here", self._state, one.against, began)
        cited = (one.scope, one.epoch, one.grant_id)
        yield self._witness.record("rejected", self._state, one.first, cited)
