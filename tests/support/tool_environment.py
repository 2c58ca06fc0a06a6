"""An environment with tools that sit on ONNX Runtime's quantization tool, to run scripts in."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "peers" / "tools"
# optimum-onnx 0.1.0 takes transformers below 4.58, and Olive 0.13.0 takes those too.
REQUIREMENTS = ("optimum-onnx==0.1.0", "olive-ai==0.13.0")
GENAI = ("onnxruntime-genai==0.18.0",)


def tool_python(needs: tuple[str, ...] = REQUIREMENTS) -> Path:
    """Return the interpreter of the environment, which is made once, in the ignored `build`.

    It sees the packages that the tests run with, so only what the tools need besides is installed.
    """
    key = hashlib.sha256(" ".join((*needs, sys.version)).encode()).hexdigest()[:12]
    folder = ROOT / "build" / "tools" / key
    folder.mkdir(parents=True, exist_ok=True)
    python, stamp = folder / "bin" / "python", folder / ".installed"
    with (folder.parent / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers may want it at once
        if not stamp.exists():
            _run([sys.executable, "-m", "venv", "--clear", folder])
            site = _run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
            (Path(site.strip()) / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
            constraints = ("--constraint", ROOT / "constraints.txt")
            _run([python, "-m", "pip", "install", "--quiet", *constraints, *needs])
            stamp.touch()
    return python


def run_cases(script: str, folder: Path) -> dict[str, dict[str, dict]]:
    """Run a script's cases with ONNX Runtime's tool and with ours; return what each case gave.

    A case has the op counts of its model, its files and its error, or the classes of its exception.
    """
    found = {}
    for which in ("peer", "ours"):
        (folder / which).mkdir()
        run_script(script, which, folder / which)
        found[which] = json.loads((folder / which / "results.json").read_text())
    return found


def run_script(script: str, *words: object, needs: tuple[str, ...] = REQUIREMENTS) -> None:
    """Run a script of `peers/tools` in an environment with these packages."""
    _run([tool_python(needs), SCRIPTS / script, *words])


def _run(command: list[object]) -> str:
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "OLIVE_DISABLE_TELEMETRY": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
