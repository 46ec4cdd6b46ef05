"""A temporary folder whose processes die and whose files go when the tests end.

Fixtures clean up after themselves as long as pytest ends in order. For the other
case (killed, out of memory, a runner's time limit) a small shell process waits for
pytest's end, which it learns from a pipe that closes with pytest however it ends.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

_PROCESS_SUFFIX = ".process"

# "read" comes back when the pipe's other end closes. A killed Java process may write
# for a moment longer, hence the second removal.
_GUARD_SCRIPT = f"""
read -r _
for file in "$1"/*{_PROCESS_SUFFIX}; do
    [ -f "$file" ] && kill -9 "$(cat "$file")"
done
rm -rf "$1" || {{ sleep 1; rm -rf "$1"; }}
"""


class Scratch:
    """Owns a temporary folder and the processes registered in it."""

    def __init__(self, label: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"epochfence-{label}-"))
        # Its own session: a Ctrl-C at the terminal must not reach the guard.
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD_SCRIPT, "guard", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def register(self, name: str, process_id: int) -> None:
        """Have the process killed if the tests end without doing it themselves."""
        self._process_file(name).write_text(str(process_id))

    def forget(self, name: str) -> None:
        """Take a process off the list, as it has ended and its id may be reused."""
        self._process_file(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder. The processes must have ended before."""
        os.kill(self._guard.pid, signal.SIGKILL)
        self._guard.wait()
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        shutil.rmtree(self.path)

    def _process_file(self, name: str) -> Path:
        return self.path / f"{name}{_PROCESS_SUFFIX}"

    def __enter__(self) -> "Scratch":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
