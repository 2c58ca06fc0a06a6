"""The judge of cases finds what it is there to find."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from fuzz import child

def say(line, code):
    print(line, file=sys.stderr, flush=True)
    return code

def spoil(words):
    Path("m.onnx").write_text("other")
    return say("error: refused.", 1)

def leave(words):
    Path(".q.onnx.tmp").touch()
    return say("error: refused.", 1)

def write(words):
    Path("q.onnx").touch()
    return say("error: refused.", 1)

def prepare(folder):
    (folder / "m.onnx").touch()
    return ["quantize", "m.onnx", "-o", "q.onnx"]

commands = {
    "refused": lambda words: say("error: refused.", 1),
    "crash": lambda words: os.kill(os.getpid(), signal.SIGSEGV),
    "escaped": lambda words: 1 / 0,
    "bug": lambda words: say("error: this is a bug in bitwright (ValueError).", 1),
    "foreign": lambda words: say("a line of somebody else", 1),
    "no_sentence": lambda words: say("error: refused", 1),
    "spoil": spoil,
    "leave": leave,
    "write": write,
}
for name, command in commands.items():
    child.main = command
    verdict = child.judge(prepare, Path(sys.argv[1]) / name, valid=False)
    print(json.dumps([name, verdict.kind, verdict.reason]))
"""

EXPECTED = {
    "refused": ("refused", "error: refused."),
    "crash": ("violation", "ended by SIGSEGV"),
    "escaped": ("violation", "ZeroDivisionError"),
    "bug": ("violation", "this is a bug"),
    "foreign": ("violation", "foreign line: a line of somebody else"),
    "no_sentence": ("violation", "no sentence: error: refused"),
    "spoil": ("violation", "an input was changed"),
    "leave": ("violation", "left ['.q.onnx.tmp']"),
    "write": ("violation", "failed and wrote ['q.onnx']"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="cases run in forked processes with limits")
def test_every_kind_of_violation_is_found(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}
    assert found.keys() == EXPECTED.keys()
    for name, (kind, reason) in EXPECTED.items():
        assert found[name][0] == kind, name
        assert reason in found[name][1]
