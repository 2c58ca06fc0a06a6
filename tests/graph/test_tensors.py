"""Tensors whose numbers lie in files."""

import numpy as np
import onnx_ir as ir

from bitwright.graph import release_file


def test_a_file_is_let_go_of_though_somebody_still_holds_numbers_of_it(tmp_path):
    np.arange(6, dtype=np.float32).tofile(tmp_path / "w.data")
    tensor = ir.ExternalTensor(
        "w.data", 0, 24, ir.DataType.FLOAT, name="w", shape=ir.Shape([6]), base_dir=tmp_path
    )
    held = tensor.numpy()[2:]
    release_file(tensor)
    assert tensor.raw is None
    assert held.tolist() == [2, 3, 4, 5] and tensor.numpy().tolist() == [0, 1, 2, 3, 4, 5]
    del held
    release_file(tensor)
    assert tensor.raw is None
