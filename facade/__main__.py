"""The command `epochfence`, also `python -m epochfence`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from epochfence.cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("typer", "rich", "msgspec"):
            raise
        sys.exit(
            f"epochfence: the command line needs {error.name!r}, which is not "
            f"installed. Install it with: pip install 'epochfence[cli]'"
        )
    app()


if __name__ == "__main__":
    main()
