"""A candidate, as a process: `python line_candidate.py JSON`.

It is elected, and says so. When it is told to, by a line, it says within what time it
knew that it is elected no more (None: it did not know within a moment).
"""

from __future__ import annotations

import json
import sys
import time

from support.candidate import opened, say

_WAIT_S = 60
_MOMENT_S = 5


def main() -> None:
    election = opened(json.loads(sys.argv[1]))
    say(election.campaign(_WAIT_S))
    sys.stdin.readline()
    begun = time.monotonic()
    knows = election.lost.wait(_MOMENT_S)
    say(time.monotonic() - begun if knows else None)
    election.close()


if __name__ == "__main__":
    main()
