"""Calibration data readers."""

from __future__ import annotations

import pytest
from support.models import (
    make_mlp,
    make_samples,
)

from bitwright.compat.onnxruntime import (
    CalibrationDataReader,
    quantize_static,
)


def test_a_reader_class_of_ours_works_as_the_peers_does(tmp_path):
    class Mine(CalibrationDataReader):
        def __init__(self, samples):
            self._samples = iter(samples)

        def get_next(self):
            return next(self._samples, None)

    model = make_mlp()
    quantize_static(model, tmp_path / "q.onnx", Mine(make_samples(model)))
    assert len(list(Mine(make_samples(model, 3)))) == 3
    with pytest.raises(TypeError):
        CalibrationDataReader()
