"""Running a model layer by layer: all samples together, each node once, changes seen behind."""

import tempfile

import numpy as np
import onnx_ir as ir
import pytest
from support.models import build, node

from bitwright.errors import DataError
from bitwright.graph import expose, load_model
from bitwright.run import LayerwiseRun, Session, Spool

DEPTH, WIDTH = 4, 8


def chain(seed: int = 0) -> ir.Model:
    """A residual chain of products: x + relu(x w0) + ..."""
    rng = np.random.default_rng(seed)
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n", WIDTH]))
    nodes, weights, current = [], [], x
    for layer in range(DEPTH):
        array = rng.normal(size=(WIDTH, WIDTH)).astype(np.float32)
        weight = ir.Value(name=f"w{layer}", const_value=ir.tensor(array, name=f"w{layer}"))
        weights.append(weight)
        product, active, total = (ir.Value(name=f"{kind}{layer}") for kind in ("p", "r", "s"))
        nodes += [
            ir.node("MatMul", [current, weight], outputs=[product], name=f"mm{layer}"),
            ir.node("Relu", [product], outputs=[active], name=f"relu{layer}"),
            ir.node("Add", [active, current], outputs=[total], name=f"add{layer}"),
        ]
        current = total
    current.type, current.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["n", WIDTH])
    graph = ir.Graph(
        [x], [current], nodes=nodes, initializers=weights, opset_imports={"": 21}, name="chain"
    )
    return load_model(ir.to_proto(ir.Model(graph, ir_version=10)))


def samples(count: int = 3):
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(n + 1, WIDTH)).astype(np.float32)} for n in range(count)]


STARTS = [f"mm{layer}" for layer in range(DEPTH)]


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_each_stop_sees_what_the_whole_model_computes_there(monkeypatch, cores):
    monkeypatch.setattr("bitwright.run.layerwise.count_cores", lambda: cores)
    model, data = chain(), samples(7)
    plain = [dict(sample) for sample in data]
    with LayerwiseRun(model, STARTS, data) as run:
        for layer, inputs in enumerate(run):
            assert inputs.node == f"mm{layer}"
            name = "x" if layer == 0 else f"s{layer - 1}"
            for row, known in zip(inputs.values(name), plain, strict=True):
                np.testing.assert_allclose(row, known[name], rtol=1e-5)
                weight = model.graph.initializers[f"w{layer}"].const_value.numpy()
                known[f"s{layer}"] = row + np.maximum(row @ weight, 0)


def test_a_changed_weight_is_seen_by_all_that_comes_after_and_not_by_the_model():
    model, data = chain(), samples()
    before = model.graph.initializers["w1"].const_value.numpy().copy()
    with LayerwiseRun(model, STARTS, data) as run:
        for inputs in run:
            if inputs.node == "mm1":
                entering = list(inputs.values("s0"))
                inputs.put_weight("w1", np.zeros((WIDTH, WIDTH), np.float32))
            if inputs.node == "mm2":
                for row, old in zip(inputs.values("s1"), entering, strict=True):
                    np.testing.assert_array_equal(row, old)
    np.testing.assert_array_equal(model.graph.initializers["w1"].const_value.numpy(), before)


def test_only_what_is_still_needed_is_kept():
    with LayerwiseRun(chain(), STARTS, samples()) as run:
        for layer, _ in enumerate(run):
            assert run.spool.names() == (("x",) if layer == 0 else (f"s{layer - 1}",))


def test_parts_and_whole_agree_with_the_runtime_on_the_last_stop():
    model, data = chain(), samples(1)
    with LayerwiseRun(model, ["mm3"], data) as run:
        (row,) = (next(inputs.values("s2")) for inputs in run)
    from bitwright.graph import expose

    exposed = expose(model, ["s2"])
    found = Session(exposed.model).run(data[0])[exposed.outputs["s2"]]
    np.testing.assert_allclose(row, found, rtol=1e-5)


def test_no_sample_is_an_error():
    with pytest.raises(DataError, match="at least one"):
        LayerwiseRun(chain(), STARTS, [])


def test_the_spool_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with LayerwiseRun(chain(), STARTS, samples()) as run:
        next(iter(run))
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_a_spool_gives_back_every_type_and_shape(tmp_path):
    import ml_dtypes

    arrays = [
        np.array(3.5),
        np.zeros((0, 4), np.float16),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.array([1.5, -2], ml_dtypes.bfloat16),
        np.array([True, False]),
    ]
    with Spool(tmp_path) as spool:
        for array in arrays:
            spool.append("a", array)
        for found, array in zip(spool.rows("a"), arrays, strict=True):
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, array)
        with pytest.raises(DataError, match="cannot be kept"):
            spool.append("text", np.array(["a"], object))


def test_float_weights_between_quantized_activations_are_run_as_they_are():
    """ONNX Runtime stores such weights in 8 bits of its own choice, unless it is told not to."""
    rng = np.random.default_rng(3)

    def pair(name):
        given = [f"{name}_scale", f"{name}_zero"]
        return [
            node("QuantizeLinear", [name, *given], [f"{name}_q"]),
            node("DequantizeLinear", [f"{name}_q", *given], [f"{name}_dq"]),
        ]

    # A few large weights: one scale for all of them has no digits left for the rest.
    weight = (rng.normal(size=(8, 4, 3, 3)) * np.geomspace(1e-3, 1, 8)[:, None, None, None]).astype(
        np.float32
    )
    quantizers = {
        f"{name}_{part}": np.asarray(value)
        for name in ("x", "first")
        for part, value in (("scale", np.float32(1 / 16)), ("zero", np.uint8(128)))
    }
    model = load_model(
        build(
            [
                *pair("x"),
                node("Conv", ["x_dq", "w", "b"], ["first"], name="one"),
                *pair("first"),
                node("Conv", ["first_dq", "w2"], ["y"], name="two"),
            ],
            inputs={"x": [1, 4, 6, 6]},
            outputs={"y": [1, 2, 4, 4]},
            constants={
                **quantizers,
                "w": weight,
                "b": np.zeros(8, np.float32),
                "w2": rng.normal(size=(2, 8, 1, 1)).astype(np.float32),
            },
        )
    )
    data = [{"x": rng.normal(size=(1, 4, 6, 6)).astype(np.float32)} for _ in range(2)]
    exact = Session(expose(model, ["first_dq"]).model, level="disabled")
    optimized = Session(expose(model, ["first_dq"]).model)
    with LayerwiseRun(model, ["two"], data) as run:
        for row, sample in zip(next(iter(run)).values("first_dq"), data, strict=True):
            expected, changed = (s.run(sample)["first_dq"] for s in (exact, optimized))
            np.testing.assert_array_equal(row, expected)
            assert (changed != expected).any(), "the runtime takes weights as they are by now"


def test_a_scalar_that_passes_a_cut_stays_a_scalar():
    """Exporters compute shapes this way: a batch size without axes is made a vector later on."""
    rng = np.random.default_rng(4)
    model = load_model(
        build(
            [
                node("Shape", ["x"], ["sizes"]),
                node("Gather", ["sizes", "first"], ["batch"], axis=0),
                node("MatMul", ["x", "w"], ["p"], name="one"),
                node("Unsqueeze", ["batch", "axis"], ["length"]),
                node("Concat", ["length", "rest"], ["shape"], axis=0),
                node("Reshape", ["p", "shape"], ["r"]),
                node("MatMul", ["r", "v"], ["y"], name="two"),
            ],
            inputs={"x": ["n", 2, 8]},
            outputs={"y": None},
            constants={
                "first": np.array(0),
                "axis": np.array([0]),
                "rest": np.array([16]),
                "w": rng.normal(size=(8, 8)).astype(np.float32),
                "v": rng.normal(size=(16, 3)).astype(np.float32),
            },
        )
    )
    data = [{"x": rng.normal(size=(2, 2, 8)).astype(np.float32)}]
    with LayerwiseRun(model, ["one", "two"], data) as run:
        for inputs in run:
            if inputs.node == "one":
                (batch,) = inputs.values("batch")
                inputs.put_weight("first", np.array(0))
                assert batch.shape == () and inputs.weights["first"].shape == ()
            else:
                (row,) = inputs.values("r")
    weight = model.graph.initializers["w"].const_value.numpy()
    np.testing.assert_allclose(row, (data[0]["x"] @ weight).reshape(2, 16), rtol=1e-5, atol=1e-5)


def test_a_buffer_that_is_filled_again_for_each_sample_is_no_trap():
    data = samples(3)

    def reused():
        buffer = np.empty((1, WIDTH), np.float32)
        for sample in data:
            buffer[:] = sample["x"][:1]
            yield {"x": buffer}

    with LayerwiseRun(chain(), STARTS[:1], reused()) as run:
        found = [row for inputs in run for row in inputs.values("x")]
    np.testing.assert_array_equal(found, [sample["x"][:1] for sample in data])
