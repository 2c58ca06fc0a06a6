"""Fine-tuning that is stopped and goes on, and that is spread over workers: the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.models import build, make_cnn, make_mlp, make_samples, node, normal

from bitwright import load_recipe
from bitwright.errors import DataError, ModelError, RecipeError
from bitwright.jobs.calibration import Calibration
from bitwright.jobs.opening import open_model
from bitwright.jobs.static import plan_static
from bitwright.numerics.types import INT4
from bitwright.recipe import AdaQuant, AdaRound

pytest.importorskip("torch", reason="fine-tuning needs torch")

from bitwright.jobs.fine_tuning import workers
from bitwright.jobs.fine_tuning.segment import SegmentLearner
from bitwright.jobs.fine_tuning.sequence import fine_tune

SHORT = AdaRound(iterations=12, scope="layer")


def prepared(model, samples):
    details = {"fine_tune": {"selective": False}}
    job = open_model(model, load_recipe("int8").replace(weight=INT4, emulate=details))
    plan = plan_static(job, Calibration(data=samples, holdout=False, progress=False)).plan
    return job.model, plan


@pytest.fixture(scope="module")
def cnn():
    model = make_cnn(opset=21, ir_version=10)
    samples = make_samples(model, 8)
    return *prepared(model, samples), samples


def same(first, second):
    assert first.plan == second.plan
    assert first.reports == second.reports
    assert first.constants.keys() == second.constants.keys()
    for name, array in first.constants.items():
        np.testing.assert_array_equal(array, second.constants[name])
    return True


def stop_after(monkeypatch, count):
    """Let a run be interrupted when this many segments have learned."""
    learn, done = SegmentLearner.learn, []

    def learn_some(self, *arguments):
        if len(done) == count:
            raise KeyboardInterrupt
        done.append(None)
        return learn(self, *arguments)

    monkeypatch.setattr(SegmentLearner, "learn", learn_some)
    return done


@pytest.mark.parametrize("method", [SHORT, AdaQuant(iterations=5)], ids=str)
@pytest.mark.parametrize("sequential", [True, False])
def test_an_interrupted_run_goes_on_at_the_last_finished_block(
    cnn, method, sequential, tmp_path, monkeypatch
):
    model, plan, samples = cnn
    method = type(method)(
        **{f: getattr(method, f) for f in method.__struct_fields__ if f != "sequential"},
        sequential=sequential,
    )
    whole = fine_tune(model, plan, method, samples)
    assert len(whole.reports) > 1
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            fine_tune(model, plan, method, samples, work=tmp_path)
    with monkeypatch.context() as patch:
        learned = stop_after(patch, 100)
        resumed = fine_tune(model, plan, method, samples, work=tmp_path)
    assert len(learned) == len(whole.reports) - 1
    assert same(resumed, whole)
    with monkeypatch.context() as patch:
        stop_after(patch, 0)
        assert same(fine_tune(model, plan, method, samples, work=tmp_path), whole)


@pytest.mark.slow
def test_a_killed_process_leaves_what_is_finished(tmp_path):
    work, script = tmp_path / "work", tmp_path / "run.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path[:] = {sys.path!r}
            from test_resuming import *
            model = make_cnn(opset=21, ir_version=10)
            samples = make_samples(model, 8)
            method = AdaRound(iterations=100, scope="layer")
            fine_tune(*prepared(model, samples), method, samples, work={str(work)!r})
            """
        )
    )
    # What a killed process leaves behind shall lie here.
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(tmp_path)}
    running = subprocess.Popen([sys.executable, str(script)], env=environment)
    deadline = time.monotonic() + 60
    while not list(work.glob("*.safetensors")) and running.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.wait()
    model = make_cnn(opset=21, ir_version=10)
    samples = make_samples(model, 8)
    method = AdaRound(iterations=100, scope="layer")
    ready = prepared(model, samples)
    assert same(fine_tune(*ready, method, samples, work=work), fine_tune(*ready, method, samples))


def test_a_folder_of_another_model_plan_or_data_is_refused(cnn, tmp_path):
    model, plan, samples = cnn
    fine_tune(model, plan, SHORT, samples, work=tmp_path)
    other = make_mlp(opset=21, ir_version=10)
    others = make_samples(other, 8)
    for arguments in (
        (model, plan, AdaRound(iterations=13, scope="layer"), samples),
        (model, plan, SHORT, samples[:-1]),
        (model, plan, SHORT, [{n: a + 1e-6 for n, a in s.items()} for s in samples]),
        (*prepared(other, others), SHORT, others),
    ):
        with pytest.raises(DataError, match="of another model, recipe or data; delete it"):
            fine_tune(*arguments, work=tmp_path)
    fine_tune(model, plan, SHORT, samples, work=tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(b"")
    with pytest.warns(UserWarning, match="is damaged, or of another job; that part is done again"):
        again = fine_tune(model, plan, SHORT, samples, work=tmp_path)
    assert same(again, fine_tune(model, plan, SHORT, samples))


@pytest.mark.slow
def test_the_result_does_not_depend_on_the_number_of_workers(cnn, tmp_path):
    model, plan, samples = cnn
    one, two = (
        AdaRound(iterations=12, scope="layer", sequential=False, workers=count) for count in (1, 2)
    )
    alone = fine_tune(model, plan, one, samples)
    seen = []
    spread = fine_tune(
        model, plan, two, samples, work=tmp_path, progress=lambda *numbers: seen.append(numbers)
    )
    assert same(spread, alone)
    segments = len(alone.reports)
    assert seen == [(done + 1, segments) for done in range(segments)]
    # More workers belong to the same job.
    assert same(fine_tune(model, plan, one, samples, work=tmp_path), alone)


def test_blocks_apart_read_what_plain_quantization_gives(cnn):
    model, plan, samples = cnn
    apart = fine_tune(model, plan, msgspec.structs.replace(SHORT, sequential=False), samples)
    in_turn = fine_tune(model, plan, SHORT, samples)
    first, *others = zip(apart.reports, in_turn.reports, strict=True)
    assert first[0].before == pytest.approx(first[1].before)
    assert any(one.before != other.before for one, other in others)


def test_a_weight_that_two_blocks_share_learns_in_one_of_them():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="first"),
        node("Relu", ["a"], ["b"], name="relu"),
        node("MatMul", ["b", "w"], ["y"], name="second"),
    ]
    model = build(nodes, {"x": [1, 16]}, {"y": None}, {"w": normal(16, 16, seed=1)}, opset=21)
    samples = make_samples(model, 8)
    model, plan = prepared(model, samples)
    method = AdaRound(iterations=5, scope="layer", sequential=False)
    first, second = fine_tune(model, plan, method, samples).reports
    assert first.kept
    assert second.reason == "its weights are learned in another segment"


def replace_worker(program, folder, monkeypatch):
    (folder / "worker.py").write_text(program)
    monkeypatch.setattr(workers, "_WORKER", folder / "worker.py")


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("raise ValueError('out of luck')", "failed: out of luck"),
        ("raise SystemExit(3)", r"ended with code 3; .* set fewer workers"),
    ],
)
def test_a_worker_that_fails_or_ends_says_why(cnn, tmp_path, monkeypatch, program, sentence):
    model, plan, samples = cnn
    replace_worker(program, tmp_path, monkeypatch)
    method = AdaRound(iterations=5, scope="layer", sequential=False, workers=2)
    with pytest.raises(ModelError, match=sentence):
        fine_tune(model, plan, method, samples)


def test_workers_end_when_the_run_is_interrupted(cnn, tmp_path, monkeypatch):
    model, plan, samples = cnn
    crews = []

    def interrupt(self, most):
        crews.append(self)
        raise KeyboardInterrupt

    replace_worker("import time; time.sleep(100)", tmp_path, monkeypatch)
    monkeypatch.setattr(workers.SegmentWorkers, "_collect", interrupt)
    method = AdaRound(iterations=5, scope="layer", sequential=False, workers=2)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fine_tune(model, plan, method, samples)
    assert time.monotonic() - start < 30
    assert not any(process.is_alive for process in crews[0]._processes)
    assert not crews[0]._scratch.path.exists()


def test_workers_are_for_blocks_that_do_not_wait():
    with pytest.raises(RecipeError, match="set sequential=False with workers"):
        AdaRound(workers=2)
    with pytest.raises(RecipeError, match="workers of fine_tune must be at least 1"):
        AdaRound(workers=0, sequential=False)
    assert (
        json.loads(
            load_recipe(
                {"fine_tune": {"method": "adaquant", "sequential": False, "workers": None}}
            ).to_json()
        )["fine_tune"]["workers"]
        is None
    )
