"""Quantizing again in a process with another hash seed, which must give the same bytes.

The process is started once and answers one line for each model; it forks for each, as the runner.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import bitwright
from zoo.case import Case, digest_of, load_case
from zoo.preload import preload

RECIPES = {"static": None, "dynamic": "int8-dynamic", "int4-rtn": "int4-rtn"}
"""The verbs that are tried again, and their recipes."""
CALIBRATION = 4
"""Calibration samples of a verb that does not ask for more or fewer."""
HASH_SEED = "1"


def digests_of(case: Case) -> dict[str, str]:
    """Return the digest of what each recipe makes of a model; a refusal has one, too.

    What was made of it already is not made again.
    """
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, recipe in RECIPES.items():
            if name in case.digests:
                found[name] = case.digests[name]
                continue
            output = Path(folder) / f"{name}.onnx"
            try:
                options = {"data": case.calibration[:CALIBRATION], "recipe": recipe}
                options |= {"force_dynamic": True} if name == "dynamic" else {}
                options |= {"purpose": "size"} if name == "static" else {}  # as the verb does
                bitwright.quantize(case.path, output, progress=False, **options)
                content = output.read_bytes()
            except bitwright.BitwrightError as error:
                content = str(error).encode()
            found[name] = digest_of(content)
    return found


@cache
def start_other_process() -> subprocess.Popen[str]:
    """Start the other process; called by the runner before it forks, so that all share it."""
    return subprocess.Popen(
        [sys.executable, "-m", "zoo.again"],
        env={**os.environ, "PYTHONHASHSEED": HASH_SEED},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def ask_other_process(path: Path) -> dict[str, str]:
    """Return the digests that the other process finds."""
    process = start_other_process()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{path.resolve()}\n")
    process.stdin.flush()
    found: dict[str, str] = json.loads(process.stdout.readline())
    return found


def _serve() -> None:
    preload()
    for line in sys.stdin:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            continue
        print(json.dumps(digests_of(load_case(Path(line.strip())))), flush=True)
        os._exit(0)


if __name__ == "__main__":
    _serve()
