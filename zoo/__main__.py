"""Run the zoo, or make its table: `python -m zoo run`, `table`, `store`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from zoo.journal import RESULTS, Journal, source_version

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="zoo", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="try verbs on architectures; goes on where it stopped")
    run.add_argument("--work", type=Path, default=ROOT / "build" / "zoo")
    run.add_argument("--libraries", nargs="*", default=None)
    run.add_argument("--only", nargs="*", default=[], help="patterns of architectures' names")
    run.add_argument("--verbs", nargs="*", default=["main", "heavy"])
    run.add_argument("--exporters", nargs="*", default=["torchscript", "dynamo"])
    run.add_argument("--single", action="store_true", help="one export of each architecture")
    run.add_argument("--keep", action="store_true", help="what other sources passed need not run")
    run.add_argument("--again", action="store_true", help="forget what is known of these verbs")
    run.add_argument("--part", default="0/1", help="i/n: only each n-th architecture, from i")
    table = commands.add_parser(
        "table", help="write results.md and the records behind it into the folder of the zoo"
    )
    table.add_argument("--work", type=Path, default=ROOT / "build" / "zoo")
    keep = commands.add_parser("store", help="keep exported models small, for the tests")
    keep.add_argument("models", nargs="+", type=Path, help="files below the folder `models`")
    keep.add_argument("--into", type=Path, default=ROOT / "tests" / "zoo" / "graphs")
    options = parser.parse_args()
    if options.command == "store":
        from zoo.stored import store

        for path in options.models:
            name = "-".join(path.parts[path.parts.index("models") + 1 :])
            store(path, options.into / f"{name}.gz")
        return
    journal = Journal(options.work / "journal.jsonl", FOLDER / RESULTS)
    if options.command == "table":
        from zoo.table import write_results

        write_results(list(journal.records.values()), FOLDER)
        return
    _run(options, journal)


def _run(options: argparse.Namespace, journal: Journal) -> None:
    import bitwright
    from zoo.again import start_other_process
    from zoo.catalog import FILES, LIBRARIES, run_library
    from zoo.preload import preload
    from zoo.runner import Runner
    from zoo.verbs import find_verbs

    verbs = find_verbs(options.verbs)
    if options.again:
        names = {verb.name for verb in verbs}
        journal.records = {k: r for k, r in journal.records.items() if r.verb not in names}
    runner = Runner(
        journal,
        options.work,
        verbs,
        source_version(Path(bitwright.__file__).parent),
        keep=options.keep,
        exporters=options.exporters,
        single=options.single,
    )
    libraries = options.libraries or list(LIBRARIES)
    preload(() if FILES.issuperset(libraries) else options.exporters)
    if any(verb.name == "same-bytes" for verb in verbs):
        start_other_process()
    index, _, count = options.part.partition("/")
    for library in libraries:
        # A process each: what one library imports stays away from the next.
        child = os.fork()
        if not child:
            run_library(library, runner, options.only, (int(index), int(count)))
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
