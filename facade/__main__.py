"""The command `epochfence`, also `python -m epochfence`."""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import TextIO, cast

# As BSD's sysexits(3) has it: a fault in this program, none of its user's.
_EXIT_FAULT = 70
_EXIT_BAD_INPUT = 2
_EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    try:
        _prepare_streams()
        try:
            from epochfence.cli import app
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in ("typer", "rich", "msgspec"):
                raise
            print(
                f"epochfence: the command line needs {error.name!r}, which is not "
                f"installed. Install it with the extra 'cli': pip install "
                f"'epochfence[cli]', or in a checkout: pip install '.[cli]'",
                file=sys.stderr,
            )
            sys.exit(_EXIT_BAD_INPUT)
        app()
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)
    except OSError as error:
        # Only what writes to the standard output is left to fail here.
        print(f"epochfence: cannot write: {error.strerror or error}", file=sys.stderr)
        os._exit(_EXIT_BAD_INPUT)
    except Exception:
        traceback.print_exc()
        sys.exit(_EXIT_FAULT)


def _prepare_streams() -> None:
    """Make the standard streams fit for what others named in other alphabets."""
    for name in ("stdout", "stderr"):
        stream = cast("TextIO | None", getattr(sys, name))
        if stream is None:  # it was closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
