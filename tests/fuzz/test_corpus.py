"""Inputs that broke something once do not break it again."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="cases run in forked processes with limits")
@pytest.mark.slow
def test_past_failures_are_done_or_refused():
    run = subprocess.run(
        [sys.executable, "-m", "fuzz", "replay"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert not run.stdout.startswith("0 cases")
