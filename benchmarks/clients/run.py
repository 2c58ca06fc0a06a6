"""Scripts in the style of other tools' users, unchanged, with the tool itself and with Bitwright.

    pip install --no-deps --target peers/nncf nncf          one folder each, and what they import
    python benchmarks/clients/run.py --peers peers          all, about ten minutes on two cores
    python benchmarks/clients/run.py --peers peers nncf     scripts whose name holds a word

Each script runs under `python -m bitwright.compat run --side-by-side`, in a folder with two models
and samples. `--page docs/reference/clients.md` writes the table of all into the page.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

import bitwright

HERE = Path(__file__).parent
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
HEAD = (
    "| script | model | dB, tool | dB, Bitwright | kB, tool | kB, Bitwright "
    "| speed, tool | speed, Bitwright |\n|---|---|---|---|---|---|---|---|\n"
)
TEXT = """
<ir_version: 10, opset_import: ["": 21]>
text (float[1, 16, 64] x) => (float[1, 16, 64] y) {
    normal = LayerNormalization <axis = -1> (x, gain)
    up = MatMul(normal, up_weight)
    bent = Relu(up)
    down = MatMul(bent, down_weight)
    y = Add(x, down)
}
"""


def main() -> int:
    """Run the scripts and print, or write, what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, help="a folder with one package in each folder")
    parser.add_argument("--page", type=Path, help="a page whose table is written anew")
    parser.add_argument("words", nargs="*", help="parts of the names of scripts")
    options = parser.parse_args()
    scripts = [path for path in sorted(HERE.glob("*.py")) if path.name != "run.py"]
    chosen = [s for s in scripts if not options.words or any(w in s.name for w in options.words)]
    table = HEAD + "".join(row for script in chosen for row in run(script, options.peers))
    print(table)
    if options.page is not None:
        before, rest = options.page.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        options.page.write_text(before + BEGIN + table + END + after, encoding="utf-8")
    return 0


def run(script: Path, peers: Path | None) -> list[str]:
    """Return the rows of a script: one for each model that it wrote."""
    folders = [] if peers is None else sorted(map(str, peers.absolute().iterdir()))
    paths = [os.environ.get("PYTHONPATH", ""), *folders]
    command = [sys.executable, "-m", "bitwright.compat", "run", "--side-by-side", script.name]
    with tempfile.TemporaryDirectory() as folder:
        furnish(Path(folder))
        shutil.copy(script, folder)
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            capture_output=True,
            text=True,
            check=False,
        )
        rows = read_rows(done.stderr, folder)
    if done.returncode or not rows:
        sys.stderr.write(done.stdout[-2000:] + done.stderr[-4000:])
        whose = "Bitwright" if done.returncode else "the tool itself"
        return [f"| `{script.name}` | {whose} ends with an error | | | | | | |\n"]
    return [f"| `{script.name}` | `{name}` | {' | '.join(cells)} |\n" for name, cells in rows]


def furnish(folder: Path) -> None:
    """Put the models and samples that the scripts read into a folder."""
    demo = bitwright.load_demo()
    np.save(folder / "calibration.npy", demo.calibration[:64])
    shutil.copy(demo.model_path, folder / "model.onnx")
    fixed = onnx.load(demo.model_path)
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    fixed.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(fixed, folder / "fixed.onnx")
    text, random = onnx.parser.parse_model(TEXT), np.random.default_rng(0)
    shapes = {"gain": (64,), "up_weight": (64, 256), "down_weight": (256, 64)}
    for name, shape in shapes.items():
        values = (random.standard_normal(shape) * 0.1).astype(np.float32)
        text.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    for number, node in enumerate(text.graph.node):
        node.name = f"node_{number}"
    onnx.save(text, folder / "text.onnx")


def read_rows(told: str, folder: str) -> list[tuple[str, list[str]]]:
    """Return the cells of each model, from what `--side-by-side` printed."""
    rows: dict[str, dict[str, list[str]]] = {}
    name = ""
    for line in told.splitlines():
        if line.startswith(str(Path(folder).absolute())) and line.endswith(".onnx"):
            name = Path(line).name
            rows[name] = {}
        found = re.match(r"  (bytes|dB|speed).{18,}?\s{2,}(\S.*?)\s{2,}(\S.*)$", line)
        if found and name:
            rows[name][found[1]] = [found[2], found[3]]
    shown = []
    for name, cells in rows.items():
        sizes = [f"{int(size) / 1000:.0f}" for size in cells.get("bytes", ())]
        speeds = [speed.replace("x ", "× ") for speed in cells.get("speed", ["", ""])]
        shown.append((name, [*cells.get("dB", ["", ""]), *sizes, *speeds]))
    return shown


if __name__ == "__main__":
    sys.exit(main())
