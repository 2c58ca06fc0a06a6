"""Times in onnxruntime-web: what node is told and gives back, and what is said where it is not."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from support.models import make_cnn, make_samples

import bitwright
from bitwright.assess.bench import web
from bitwright.errors import MissingPackageError, ModelError, TargetError

SAMPLES = make_samples(make_cnn(), 2)
# Answers as the worker in node does; each model takes as many seconds as its file has kilobytes.
WORKER = """
import json, sys
from pathlib import Path
import numpy as np
for line in sys.stdin:
    request = json.loads(line)
    given = request.get("arguments", {})
    method = request.get("method")
    if method == "open":
        size = Path(given["model"]).stat().st_size / 1000
        inputs = [{"name": "x", "type": "tensor(float)", "shape": [1, 3, 12, 12]}]
        reply = {"seconds": 0.1, "memory_before": 5, "inputs": inputs}
        reply |= {"providers": [], "outputs": []}
        reply = {"result": reply} if REASON is None else {"error": REASON}
    elif method == "load":
        one = given["samples"][0]["x"]
        array = np.fromfile(one["file"], one["type"]).reshape(one["dims"])
        Path(KEPT).write_text(json.dumps(array.tolist()))
        reply = {"result": None}
    elif method == "burst":
        reply = {"result": [size] * (given["runs"] or 1)}
    elif method == "memory":
        reply = {"result": {"bytes": 7, "source": "test"}}
    if method:
        print(json.dumps(reply), flush=True)
"""


@pytest.fixture
def node(monkeypatch, tmp_path):
    """A stand-in for node; called with a reason it refuses models."""

    def refuse(reason):
        head = f"REASON, KEPT = {reason!r}, {str(tmp_path / 'kept.json')!r}\n"
        (tmp_path / "worker.py").write_text(head + WORKER)
        return tmp_path / "kept.json"

    monkeypatch.setattr(web, "_SCRIPT", tmp_path / "worker.py")
    monkeypatch.setattr(web.shutil, "which", lambda name: sys.executable)
    return refuse


def bench(*models, **options):
    given = {"data": SAMPLES, "runtime": "web", "runs": 5, "progress": False}
    return bitwright.bench([*models], **given | options)


def test_models_run_in_turns_on_the_samples_and_the_ratio_is_told(node):
    kept = node(None)
    quantized = bitwright.quantize(make_cnn(), data=SAMPLES, purpose="size").model
    found = bench(make_cnn(), quantized)
    first, second = found.models
    assert (len(first.times), first.peak_memory, first.profile) == (5, 7, None)
    assert second.clocks[0].ratio == pytest.approx(second.median / first.median)
    assert second.clocks[0].threads == 1 and "onnxruntime-web" in found.detail
    np.testing.assert_array_equal(np.array(json.loads(kept.read_text()), "f4"), SAMPLES[0]["x"])


def test_what_node_refuses_is_told_with_its_model(node):
    node("no such operator")
    with pytest.raises(ModelError, match="onnxruntime-web refuses 'model 1': no such operator"):
        bench(make_cnn())


def test_a_missing_package_says_what_to_install(node):
    node("Cannot find module 'onnxruntime-web'")
    with pytest.raises(MissingPackageError, match="npm install onnxruntime-web"):
        bench(make_cnn())


def test_without_node_it_says_so(monkeypatch):
    monkeypatch.setattr(web.shutil, "which", lambda name: None)
    with pytest.raises(MissingPackageError, match="node, which is not installed"):
        bench(make_cnn())


def test_threads_and_providers_are_not_for_the_web():
    with pytest.raises(TargetError, match="one thread and one provider"):
        bench(make_cnn(), threads=2)


def has_package():
    script = "require('module').createRequire(process.cwd() + '/')('onnxruntime-web')"
    node = shutil.which("node")
    return node and not subprocess.run([node, "-e", script], capture_output=True).returncode


@pytest.mark.skipif(not has_package(), reason="needs node with onnxruntime-web")
def test_it_runs_in_node():
    quantized = bitwright.quantize(make_cnn(), data=SAMPLES, purpose="size").model
    found = bench(make_cnn(), quantized)
    assert len(found.models[1].times) == 5 and found.models[0].median > 0
