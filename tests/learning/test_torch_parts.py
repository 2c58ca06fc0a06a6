"""Parts of models in torch, and what is between them."""

import numpy as np
import onnx_ir as ir
import pytest

torch = pytest.importorskip("torch")

from bitwright.errors import DataError  # noqa: E402
from bitwright.learning.torch_parts import DeviceSpool, TorchParts  # noqa: E402


def part(op_type, weight):
    x, y = ir.Value(name="x"), ir.Value(name="y")
    w = ir.Value(name="w", const_value=weight)
    node = ir.node(op_type, [x, w], outputs=[y])
    graph = ir.Graph([x], [y], nodes=[node], initializers=[w], opset_imports={"": 21})
    return ir.Model(graph, ir_version=10)


def test_constants_are_those_of_the_part():
    matrix = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    x = np.eye(4, dtype=np.float32)
    made = ir.tensor_adapters.TorchTensor(torch.from_numpy(2 * matrix))
    lazy = ir.LazyTensor(lambda: made, dtype=ir.DataType.FLOAT, shape=ir.Shape((4, 3)), name="w")
    for weight, expected in ((ir.tensor(matrix), matrix), (lazy, 2 * matrix)):
        run = TorchParts("cpu").open(part("MatMul", weight))
        np.testing.assert_allclose(run({"x": x})["y"].numpy(), expected)


def test_what_torch_has_not_is_left_to_others():
    assert TorchParts("cpu").open(part("NonMaxSuppression", ir.tensor(np.zeros(1)))) is None


def test_a_spool_gives_back_what_it_was_given():
    spool = TorchParts("cpu").make_spool()
    rows = [np.arange(3, dtype=np.float32), np.arange(2, dtype=np.float32)]
    for row in rows:
        spool.append("x", row)
    spool.append("ids", np.array([1, 2]))
    assert [row.tolist() for row in spool.rows("x")] == [row.tolist() for row in rows]
    assert spool.sample(["ids"], 0)["ids"].tolist() == [1, 2]
    assert spool.data_type("x") == ir.DataType.FLOAT and spool.data_type("ids") == ir.DataType.INT64
    assert "x" in spool and spool.names() == ("x", "ids")
    spool.drop("x")
    assert "x" not in spool
    spool.close()
    assert spool.names() == ()


def test_what_cannot_be_kept_or_shared_is_refused(tmp_path):
    spool = DeviceSpool("cpu")
    with pytest.raises(DataError, match="'words' holds"):
        spool.append("words", np.array(["a"]))
    spool.append("x", np.zeros(1))
    with pytest.raises(DataError, match="no file to share"):
        spool.share("x", tmp_path / "x")
