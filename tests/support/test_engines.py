import pickle
import sys

import numpy as np
import pytest
from onnx import TensorProto, helper

from bitwright.errors import ArgumentError, DataError, MissingPackageError
from bitwright.graph import load_model
from bitwright.numerics.positions import PositionGrid
from bitwright.observe import LOCAL, LocalEngine, Observation, RayEngine, observe, open_engine


def relu_model():
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def samples(count):
    rng = np.random.default_rng(2)
    return [{"x": rng.normal(size=(3, 5)).astype(np.float32)} for _ in range(count)]


def test_the_local_engine_is_the_default():
    data = samples(4)
    chosen = observe(relu_model(), ["x", "y"], data, engine=LocalEngine())
    assert chosen == observe(relu_model(), ["x", "y"], data)


def test_the_workers_of_this_process_do_it_one_after_another():
    done = []
    with LocalEngine().connect(), LOCAL.open(lambda base: lambda x: base + x, 10) as workers:
        assert list(workers.map([1, 2])) == [11, 12]
    with LOCAL.open(lambda: lambda samples: (2 * x for x in samples)) as workers:
        assert list(workers.stream([1, 2])) == [2, 4]
    with LOCAL.open(lambda: sum) as workers:
        assert workers.reduce([1, 2, 3], max, on_done=done.append) == 6 and done == [1, 2, 3]
        assert workers.reduce([], max) is None


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'bitwright\[ray\]'"):
        observe(relu_model(), ["y"], samples(1), engine=RayEngine())


def test_no_workers_is_an_error():
    with pytest.raises(DataError, match="at least one worker"):
        RayEngine(workers=0)


def test_engines_have_names():
    assert open_engine(None) is LOCAL and open_engine("local") is LOCAL
    assert open_engine("ray") == RayEngine()
    assert open_engine("ray://auto") == RayEngine(address="auto")
    assert open_engine("ray://head:10001") == RayEngine(address="ray://head:10001")
    assert open_engine(LocalEngine()) == LocalEngine()
    with pytest.raises(ArgumentError, match="write local, ray, or ray://host:port"):
        open_engine("head:6379")


def test_means_of_shards_are_those_of_one_pass_to_the_bit():
    data = samples(23)
    options = {"means": {"x": 1, "y": 1}, "detail": "extremes"}
    whole = observe(relu_model(), ["x", "y"], data, **options)
    parts = [observe(relu_model(), ["x", "y"], data[i : i + 2], **options) for i in range(0, 23, 2)]
    while len(parts) > 1:
        parts = [
            one if other is None else pickle.loads(pickle.dumps(one | other))
            for one, other in zip(parts[::2], [*parts[1::2], None], strict=False)
        ]
    assert parts[0] == whole


def test_shards_in_other_processes_merge_to_the_same_votes():
    data = samples(9)
    grids = {"x": [PositionGrid(-127, 127, True)], "y": [PositionGrid(0, 255, False)]}
    whole = observe(relu_model(), ["x", "y"], data, per_batch=grids, detail="extremes")
    merged = Observation()
    for start in range(0, 9, 4):
        shard = data[start : start + 4]
        part = observe(relu_model(), ["x", "y"], shard, per_batch=grids, detail="extremes")
        merged |= pickle.loads(pickle.dumps(part))
    assert merged == whole
    assert whole.sketches["x"].votes[grids["x"][0]].total() == 9


@pytest.mark.slow
def test_a_cluster_gives_the_same_as_a_local_pass():
    ray = pytest.importorskip("ray", reason="ray is not installed")
    data = samples(11)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        options = {
            "means": {"x": 1},
            "per_channel": {"y": 1},
            "per_batch": {"x": [PositionGrid(-127, 127, True)]},
        }
        spread = observe(
            relu_model(), ["x", "y"], iter(data), engine=RayEngine(workers=2, shard=2), **options
        )
        assert spread == observe(relu_model(), ["x", "y"], data, **options)
        with pytest.raises(DataError, match="not a single sample"):
            observe(relu_model(), ["x"], [], engine=RayEngine(workers=1))
        direct = observe(load_model(relu_model()), ["y"], data, engine=RayEngine(workers=1))
        assert direct == observe(relu_model(), ["y"], data)
        wrong = [{"x": np.ones((1, 5), np.int32)}]
        with pytest.raises(DataError, match="only float tensors"):
            observe(relu_model(), ["x"], wrong, engine=RayEngine(workers=1))
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_a_cluster_that_was_started_for_one_pass_is_stopped():
    ray = pytest.importorskip("ray", reason="ray is not installed")
    observe(relu_model(), ["y"], samples(2), engine=RayEngine(workers=1))
    assert not ray.is_initialized()
