"""`python -m bitwright.compat run`: an unchanged script, with Bitwright in its tool's place."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

from bitwright.compat.paths import REPLACEMENTS, install_as
from bitwright.compat.running import print_answers, run_script
from bitwright.compat.side_by_side import record_run, run_beside_peer
from bitwright.errors import BitwrightError
from bitwright.support.wording import printable


def main(words: list[str]) -> int:
    """Run a script and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bitwright.compat",
        description="Run a script made for another tool with Bitwright, without changing it.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a script with our modules in its tool's place")
    add = run.add_argument
    add("--as", dest="names", action="append", metavar="PACKAGE", choices=[*REPLACEMENTS, "none"])
    add("--side-by-side", action="store_true", help="run it with the tool itself, too, and compare")
    add("--record", type=Path, help=argparse.SUPPRESS)  # the folder of a run that is compared
    add("-m", dest="module", action="store_true", help="script names a module, as for python -m")
    add("script", help="the script, or the module")
    add("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    options = parser.parse_args(words)
    if not options.module and not Path(options.script).is_file():
        parser.error(f"there is no file {options.script!r}.")
    try:
        if options.side_by_side:
            return run_beside_peer(words)
        names = options.names or [*REPLACEMENTS]
        install_as(*(name for name in names if "none" not in names))
    except BitwrightError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 1
    with record_run(options.record) if options.record else nullcontext():
        try:
            return run_script(options.script, options.arguments, is_module=options.module)
        finally:
            if "none" not in names and not options.module:
                print_answers(names, options.script)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
