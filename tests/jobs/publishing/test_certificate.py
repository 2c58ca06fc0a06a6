"""A variant is opened in a process of its own, run, judged, and held against the others."""

import numpy as np
import onnx
import pytest
from support.models import as_proto, build, info, make_mlp, make_samples, node

import bitwright
from bitwright.assess.clock import read_clock
from bitwright.errors import MissingPackageError, ModelError
from bitwright.jobs.publishing import certificate
from bitwright.jobs.publishing.certificate import Certificate, certify, time_in_web, why_outdone
from bitwright.jobs.publishing.variants import VARIANTS


def known(**facts):
    return Certificate(
        **{"part": "m.onnx", "variant": "q4", "file": "m_q4.onnx", "size": 1, **facts}
    )


@pytest.fixture
def result():
    model = make_mlp()
    return bitwright.quantize(model, data=make_samples(model, 16), recipe="int8")


def test_what_holds_has_its_figures(result, tmp_path):
    onnx.save(as_proto(result.model), tmp_path / "q.onnx")
    made = certify(known(), tmp_path / "q.onnx", result)
    assert made.reason is None and made.level in ("good", "fair")
    assert made.loss == result.judgement.loss and made.samples == len(result.evaluation)
    assert 0 <= made.worst_sample < made.samples


def test_what_the_runtime_does_not_open_is_found(result, tmp_path):
    model = build([node("NoSuchOp", ["x"], ["y"])], {"x": [1, 4]}, [info("y", [1, 4])])
    onnx.save(model, tmp_path / "q.onnx")
    assert "NoSuchOp" in certify(known(), tmp_path / "q.onnx", result).reason


def test_what_gives_no_numbers_is_below_the_bar_on_random_samples_too(tmp_path):
    # Half floats end at 65504, and infinity over infinity is no number.
    nodes = [
        node("Mul", ["x", "big"], ["a"]),
        node("Mul", ["a", "big"], ["b"]),
        node("Div", ["b", "b"], ["y"]),
    ]
    model = build(nodes, {"x": [1, 4]}, [info("y", [1, 4])], {"big": np.float32(1000)})
    made = bitwright.quantize(model, recipe="float16")
    data = [{"x": np.float32([[1, 2, 3, 4]])}]
    again = bitwright.apply_plan(made.plan, model, data=data)
    onnx.save(as_proto(again.model), tmp_path / "q.onnx")
    for random in (False, True):
        found = certify(known(random=random), tmp_path / "q.onnx", again)
        assert found.reason.startswith("below the bar: ")


def test_what_is_as_large_as_float_must_be_faster(result, tmp_path):
    onnx.save(as_proto(result.model), tmp_path / "q.onnx")
    made = certify(known(size=result.float_size), tmp_path / "q.onnx", result)
    assert made.reason == "it is neither smaller nor faster than the float model"


def clock(ratio):
    return read_clock([(1.0, ratio)] * 9)


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ({"size": 100}, {"size": 50}, "q8 is smaller, and loses no more"),
        ({"size": 100}, {"size": 50, "loss": 0.3}, None),
        ({"size": 50}, {"size": 100}, None),
        ({"clock": clock(2.0)}, {"clock": clock(0.5)}, "q8 is faster, and loses no more"),
        ({"size": 100, "clock": clock(0.5)}, {"size": 50, "clock": clock(2.0)}, None),
        ({}, {}, None),
    ],
)
def test_a_variant_is_outdone_by_one_that_is_better_in_all_that_counts(one, other, reason):
    first = known(**{"variant": "int8", "size": 60, "loss": 0.1, **one})
    second = known(**{"variant": "q8", "size": 60, "loss": 0.1, **other})
    assert why_outdone(first, [first, second]) == reason


def test_what_runs_on_cpus_is_not_outdone_by_what_is_for_gpus():
    first = known(variant="q8", size=100, loss=0.1)
    assert why_outdone(first, [first, known(variant="fp16", size=50, loss=0.0)]) is None


@pytest.mark.parametrize(
    ("error", "variant", "reason"),
    [
        (MissingPackageError("node is not installed."), "q4", None),
        (ModelError("onnxruntime-web refuses 'q.onnx': no kernel."), "q4", "no kernel"),
        (ModelError("onnxruntime-web refuses 'q.onnx': no kernel."), "q4f16", None),
        (ModelError("onnxruntime-web refuses 'm.onnx': no kernel."), "q4", None),
    ],
)
def test_what_a_browser_refuses_is_not_written_but_for_gpus(
    error, variant, reason, tmp_path, monkeypatch
):
    def refuse(models, how):
        assert how.runtime == "web"
        raise error

    for name in ("m.onnx", "q.onnx"):
        onnx.save(as_proto(make_mlp()), tmp_path / name)
    monkeypatch.setattr(certificate, "bench_models", refuse)
    places = tmp_path / "m.onnx", tmp_path / "q.onnx"
    found = time_in_web(known(), VARIANTS[variant], *places, [])
    assert found.web is None and (reason or "") in (found.reason or "")
    assert (found.reason is None) == (reason is None)


def test_on_cpus_the_time_in_the_loaders_own_runtime_counts():
    native, web = (read_clock([(2.0, t), (2.0, t), (2.0, t), (2.0, t)]) for t in (1.0, 4.0))
    assert known(clock=native).own_clock is native
    one = known(clock=native, web=web)
    assert one.own_clock is web and one.time.count("(") == 2 and ", wasm 2" in one.time
    assert known(variant="q4f16", web=web).own_clock is None
