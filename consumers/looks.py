"""Looks at topic ids: whether a topic is still the one that is being read.

The client goes on silently at the old offset when a topic is deleted and created
again, so somebody has to ask.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from functools import partial

from epochfence.epochs.errors import TopicUnavailable
from epochfence.epochs.topics import Answer, TopicKeeper

_log = logging.getLogger(__name__)

#: A topic made anew is noticed after this time at the latest.
LOOK_EVERY_S = 1.0


class TopicMadeAnew(Exception):
    """Topics have another id than before: what is held of them is not theirs."""

    def __init__(self, topics: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(topics)))
        self.topics = topics


class TopicLooks:
    """Knows the id of each topic that is read, as of the last look.

    Args:
        keeper: Asks the cluster; None for the embedded broker, which knows no ids.
        timeout_s: How long a look may take.
    """

    def __init__(self, keeper: TopicKeeper | None, timeout_s: float) -> None:
        self._keeper = keeper
        self._timeout_s = timeout_s
        self._ids: dict[str, str] = {}
        self.renewed: set[str] = set()
        self._began_at: dict[str, float] = {}
        # Looks that began, and when; nobody has waited for the answers yet.
        self._begun: dict[str, tuple[float, Answer]] = {}

    def is_due(self, topics: Iterable[str]) -> bool:
        """Whether the last look at one of these topics is too long ago."""
        return not self.began_since(topics, time.monotonic() - LOOK_EVERY_S)

    def began_since(self, topics: Iterable[str], moment: float) -> bool:
        """Whether each topic was looked at, in a look that began after a moment."""
        return all(self._began_at.get(topic, -1.0) > moment for topic in topics)

    def doubt(self, topic: str) -> None:
        """Have the next look at a topic be due now."""
        self._began_at.pop(topic, None)
        self._begun.pop(topic, None)

    def topic_id(self, topic: str) -> str | None:
        """The id as of the last look, None where there are none."""
        return self._ids.get(topic)

    def begin(self, topics: Iterable[str]) -> None:
        """Begin a look, whose answer `look_since` will take."""
        if self._keeper is not None:
            began_at = time.monotonic()
            answers = self._keeper.ask(sorted(set(topics)))
            for topic, answer in answers.items():
                self._begun[topic] = began_at, answer

    def look_since(self, topics: Iterable[str], moment: float) -> None:
        """Look at the ids of topics, if no look at them began after a moment.

        Raises:
            TopicMadeAnew, TopicUnavailable: As `look`.
        """
        unseen = [t for t in topics if not self.began_since([t], moment)]
        self._look(unseen, moment)

    def look(self, topics: Iterable[str]) -> None:
        """Look at the ids of topics now.

        Raises:
            TopicMadeAnew: Some have another id than at the look before.
            TopicUnavailable: One does not exist, or the cluster does not answer.
        """
        self._look(topics, float("inf"))

    def _look(self, topics: Iterable[str], moment: float) -> None:
        """Look at the ids of topics, or take the answers to looks begun since."""
        changed: set[str] = set()
        failure: TopicUnavailable | None = None
        for topic in sorted(set(topics)):
            began_at, answer = time.monotonic(), None
            # Whatever comes of it: later, its answer would be older than this one.
            begun = self._begun.pop(topic, None)
            if begun is not None and begun[0] > moment:
                began_at, answer = begun
            try:
                topic_id = self._ask(topic, answer)
            except TopicUnavailable as error:
                failure = failure or error
                continue
            self._began_at[topic] = began_at
            if topic_id is None:
                continue
            before = self._ids.get(topic)
            if before is not None and before != topic_id:
                _log.warning(
                    "topic %s was made anew (id %s, before %s): it is read from its "
                    "start",
                    topic,
                    topic_id,
                    before,
                )
                changed.add(topic)
            self._ids[topic] = topic_id
        if changed:
            # First: the id is known now, and nobody would hear of it again.
            self.renewed |= changed
            raise TopicMadeAnew(frozenset(changed))
        if failure is not None:
            raise failure

    def _ask(self, topic: str, answer: Answer | None) -> str | None:
        if self._keeper is None:
            return None
        give = answer or partial(self._keeper.facts, topic)
        facts = give(self._timeout_s)
        if facts is None:
            raise TopicUnavailable(
                topic, "there is no such topic, so nothing of it is committed"
            )
        return facts.topic_id
