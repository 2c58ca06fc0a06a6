"""The `bitwright` command. Nothing heavy loads before a command needs it: help is instant."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bitwright.cli.stopping import Stopping
from bitwright.cli.streams import lasting_streams
from bitwright.support.threads import limit_blas

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 only when the job was done.

    >>> main(["--version"])
    bitwright 0.1.0
    0
    """
    limit_blas()
    stopping = Stopping()
    try:
        with lasting_streams(), stopping, stopping.recognized():
            from bitwright.cli.app import run  # imports take long enough to be interrupted

            return run(arguments, stopping)
    except KeyboardInterrupt:  # of entering and leaving, too
        stopping.end()
        print(f"error: {stopping.word}.", file=sys.stderr)
        return stopping.code
