"""An election by a Lease of Kubernetes: whoever holds and renews it is elected."""

from __future__ import annotations

import math
import os
import re
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256

from kubernetes.client import V1Lease, V1LeaseSpec

from epochfence.elections.errors import NoAnswerError
from epochfence.elections.keeper import Keeper, now_s
from epochfence.elections.kubernetes_config import open_client
from epochfence.elections.kubernetes_lease import (
    LeaseQuestions,
    LeaseWrittenError,
    now,
)
from epochfence.elections.line import LineElection, Place
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.values import check_scope, check_timeout

_LONGEST_LEASE_S = 3600

#: Who could not renew the Lease for this part of its time gives it up: clocks do not
#: all go alike. client-go does so after 10 of 15 seconds.
_RENEWED_WITHIN = 2 / 3

#: How long a Lease that was given up says that it lasts: as client-go writes it.
_GIVEN_UP_S = 1

#: How often a Lease is given up that is written by others meanwhile.
_TRIES = 3

#: Names in Kubernetes, and how long they may be.
_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL = re.compile(rf"{_PART}\Z")
_NAME = re.compile(rf"{_PART}(\.{_PART})*\Z")
_LONGEST_LABEL, _LONGEST_NAME = 63, 253


def lease_name(scope: str) -> str:
    """The Lease of an office, where no other is given.

    `epochfence-`, the scope for people (in lower case, with `-` for whatever else than
    letters and digits), `-`, and what tells it from others: the first 16 hex digits of
    the SHA-256 of `epochfence-election/<scope>`.
    """
    digest = sha256(f"epochfence-election/{check_scope(scope)}".encode()).hexdigest()
    readable = re.sub(r"[^a-z0-9]+", "-", scope.lower()).strip("-")
    return "-".join(part for part in ("epochfence", readable, digest[:16]) if part)


class KubernetesElection(LineElection):
    """Elects by a Lease, as client-go, and so most of what runs in Kubernetes, does.

    The Lease (`coordination.k8s.io/v1`) is named `lease_name(scope)`, unless you say
    otherwise. `holderIdentity` names whoever is elected: host, process and candidacy.
    Candidates of other programs that go by client-go's rules may stand for the same
    Lease.

    - **How soon another is elected.** After `resign`, which empties `holderIdentity`:
      when the next candidate looks (`interval_s`). After a crash, a pause or a cut
      network: `lease_duration_s`, in which nobody has written the Lease. A leader that
      gets no answer finds `lost` set by two thirds of it, counted from when it asked;
      one whose Lease was taken or deleted, within a quarter of it.
    - **Clocks** of different machines need not agree. When a Lease is over is counted
      by each candidate itself, from when it first saw it as it is; no time that is
      written in the Lease is compared with a clock. So a candidate that comes anew
      waits for a dead leader's whole `lease_duration_s`: the one that the Lease tells.
    - **Who comes next** is chance: whoever looks first.
    - **Two never write the Lease one over the other**: `resourceVersion` is in each
      write, and one that is not the latest is refused.
    - **Elected, and lost, means out**: it stands again only with the next `campaign`.
    - **A refusal may pass**: of what was allowed before (by a Role that is replaced, a
      webhook, a server that starts), it is no answer for `lease_duration_s`, and a
      wrong setting only after that.

    It needs the verbs `get`, `create` and `update` on `leases` of `coordination.k8s.io`
    in the namespace, and nothing else.

    Args:
        connect: `in-cluster`, for a process in a pod; or the path of a kubeconfig file.
        scope: The office: what is led.
        context: The kubeconfig's context, where it is not the current one.
        namespace: The Lease's; else the context's, or the pod's.
        lease: Its name; else `lease_name(scope)`.
        lease_duration_s: How long a Lease is a leader's that does not renew it; whole
            seconds. Questions take two ninths of it at most.
        interval_s: How often a waiting candidate looks.

    Raises:
        MisconfiguredError: An argument is wrong.
    """

    def __init__(
        self,
        connect: str,
        scope: str,
        *,
        context: str | None = None,
        namespace: str | None = None,
        lease: str | None = None,
        lease_duration_s: int = 15,
        interval_s: float = 1.0,
    ) -> None:
        super().__init__()
        name = lease_name(scope) if lease is None else lease
        _check_name("lease", name, _NAME, _LONGEST_NAME)
        if (
            type(lease_duration_s) is not int
            or not 1 <= lease_duration_s <= _LONGEST_LEASE_S
        ):
            raise MisconfiguredError(
                "lease_duration_s", lease_duration_s, "no time that a Lease may last",
                f"Use whole seconds from 1 to {_LONGEST_LEASE_S}.",
            )  # fmt: skip
        client, own_namespace = open_client(connect, context)
        namespace = own_namespace if namespace is None else namespace
        _check_name("namespace", namespace, _LABEL, _LONGEST_LABEL)
        self._scope = scope
        self._duration_s = lease_duration_s
        self._interval_s = check_timeout(interval_s, "interval_s")
        # A renewal is tried three times at least.
        answer_s = lease_duration_s * _RENEWED_WITHIN / 3
        self._questions = LeaseQuestions(
            client, namespace, name, answer_s, patience_s=lease_duration_s
        )
        self._sighting = _Sighting(lease_duration_s)

    @property
    def transitions(self) -> int | None:
        """The Lease's `leaseTransitions` that the office was won with.

        Each winner's is higher than the one's before, as long as the Lease is there:
        whoever takes it, by client-go too, adds one. A Lease that was deleted begins at
        0 again; one restored with the cluster's data from a backup goes back; and some
        clients of other languages do not count. (The Lease's `resourceVersion` goes on
        when it was deleted, but each renewal changes it.) None while this candidate is
        not elected.
        """
        return self._won_with()

    def _join(self, on_end: Callable[[Place], None]) -> Place:
        return _LeasePlace(
            self._questions, self._sighting, self._duration_s, self._interval_s, on_end
        )

    @property
    def _name(self) -> str:
        return f"for {self._scope!r} by {self._questions.place}"


def _check_name(
    setting: str, name: object, pattern: re.Pattern[str], longest: int
) -> None:
    if isinstance(name, str) and len(name) <= longest and pattern.match(name):
        return
    raise MisconfiguredError(
        setting, name, "no name that Kubernetes takes",
        f"Use up to {longest} lower-case letters, digits and hyphens"
        f"{' (and dots between them)' if setting == 'lease' else ''}, with a letter or "
        f"a digit at either end.",
    )  # fmt: skip


class _Sighting:
    """What a candidate saw of the Lease last, and until when it is so.

    Args:
        duration_s: How long a Lease lasts that does not tell.
    """

    def __init__(self, duration_s: float) -> None:
        self._duration_s = duration_s
        self._seen: object = None
        self._until = 0.0

    def see(self, spec: V1LeaseSpec) -> None:
        """See the Lease as it was a moment ago."""
        seen = (
            spec.holder_identity, spec.lease_duration_seconds, spec.acquire_time,
            spec.renew_time, spec.lease_transitions,
        )  # fmt: skip
        if not spec.holder_identity:
            self._until = 0.0
        elif seen != self._seen:
            lasts_s = spec.lease_duration_seconds or self._duration_s
            self._until = now_s() + lasts_s
        self._seen = seen

    def left_s(self) -> float:
        """How long it is still whose it says, if nobody writes it."""
        return max(0.0, self._until - now_s())


class _LeasePlace(Place):
    """A candidacy, and soon the Lease. There is no line: who looks first is first."""

    def __init__(
        self,
        questions: LeaseQuestions,
        sighting: _Sighting,
        duration_s: int,
        interval_s: float,
        on_end: Callable[[Place], None],
    ) -> None:
        self._questions = questions
        self._sighting = sighting
        self._duration_s = duration_s
        self._interval_s = interval_s
        # Each candidacy's own: what an earlier one has written is never taken for it.
        self._identity = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"
        self._lease: V1Lease | None = None
        # A write that got no answer may have been done, too.
        self._may_hold = False
        self.number = 0
        # As long as the Lease is not its own, there is nothing that could be over.
        self.keeper = Keeper(
            self._renew, duration_s * _RENEWED_WITHIN, math.inf, lambda: on_end(self)
        )

    def is_first(self) -> bool:
        if self._lease is not None:
            return True  # since an interrupted call; the keeper knows of its end
        found = self._questions.read()
        if found is not None:
            self._sighting.see(found.spec or V1LeaseSpec())
            if not self._is_own(found) and self._sighting.left_s() > 0:
                return False
        asked_at = now_s()
        self._may_hold = True
        try:
            if found is None:
                self._lease = self._questions.create(self._taken(V1LeaseSpec(), 0))
            else:
                self._lease = self._write(found)
        except LeaseWrittenError:
            return False  # another was quicker
        self.number = self._transitions_of(self._lease)
        self.keeper.confirmed(asked_at)
        self.keeper.start()
        return True

    def _is_own(self, lease: V1Lease) -> bool:
        return lease.spec is not None and lease.spec.holder_identity == self._identity

    @staticmethod
    def _transitions_of(lease: V1Lease) -> int:
        return (lease.spec and lease.spec.lease_transitions) or 0

    def _write(self, lease: V1Lease) -> V1Lease:
        """Take the Lease, or renew it where it is its own."""
        spec = lease.spec or V1LeaseSpec()
        if self._is_own(lease):
            spec.renew_time = now()
            # Others count by it, and somebody may have edited it.
            spec.lease_duration_seconds = self._duration_s
        else:
            spec = self._taken(spec, self._transitions_of(lease) + 1)
        lease.spec = spec
        return self._questions.replace(lease)

    def _taken(self, spec: V1LeaseSpec, transitions: int) -> V1LeaseSpec:
        spec.holder_identity = self._identity
        spec.lease_duration_seconds = self._duration_s
        spec.acquire_time = spec.renew_time = now()
        spec.lease_transitions = transitions
        return spec

    def wait(self, timeout_s: float) -> None:
        until_s = self._sighting.left_s() or self._interval_s
        self.keeper.ended.wait(min(timeout_s, self._interval_s, until_s))

    def _renew(self) -> bool:
        assert self._lease is not None
        try:
            try:
                self._lease = self._write(self._lease)
            except LeaseWrittenError:
                # Perhaps by itself: a renewal whose answer did not come.
                found = self._questions.read()
                if found is None or not self._is_own(found):
                    return False
                self._lease = self._write(found)
        except (LeaseWrittenError, MisconfiguredError) as error:
            # A server that starts refuses everybody for a while. The Lease is its own
            # for the rest of its time, whatever is said meanwhile.
            raise NoAnswerError(str(error)) from error
        return True

    def leave(self) -> None:
        self.keeper.stop()
        if self._may_hold:
            # Where nothing answers, it runs out.
            with suppress(NoAnswerError, MisconfiguredError):
                self._give_up()
        self._questions.close()

    def _give_up(self) -> None:
        for _ in range(_TRIES):
            lease = self._questions.read()
            if lease is None or lease.spec is None or not self._is_own(lease):
                return
            lease.spec.holder_identity = ""
            lease.spec.lease_duration_seconds = _GIVEN_UP_S
            lease.spec.acquire_time = lease.spec.renew_time = now()
            with suppress(LeaseWrittenError):
                self._questions.replace(lease)
                return
