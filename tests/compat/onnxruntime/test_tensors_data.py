"""Ranges and the files that keep them."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime.quantization.calibrate as peer
import pytest
from support.models import (
    make_mlp,
    make_samples,
)
from support.peer_numbers import calibrate

import bitwright.compat.onnxruntime.calibrate as ours
from bitwright.compat.onnxruntime import write_calibration_table
from bitwright.errors import DataError


@pytest.mark.parametrize("method", ["MinMax", "Percentile", "Distribution"])
@pytest.mark.parametrize(("writer", "reader"), [(ours, peer), (peer, ours), (ours, ours)])
def test_files_are_exchanged_with_the_peer(tmp_path, method, writer, reader):
    model = make_mlp()
    found = calibrate(writer, tmp_path, model, method, [make_samples(model)])
    path = tmp_path / "deep" / "cache.json"
    writer.save_tensors_data(found, path, smooth_quant=True)
    assert json.loads(path.read_text())["smooth_quant"] is True
    read = reader.load_tensors_data(path)
    assert read.calibration_method == reader.CalibrationMethod[method]
    assert read.keys() == found.keys()
    for name in read.keys():  # noqa: SIM118
        for field in ("lowest", "highest"):
            mine, wanted = getattr(read[name], field), getattr(found[name], field)
            np.testing.assert_allclose(mine, wanted, rtol=1e-6)


def test_a_file_that_is_no_cache_is_refused(tmp_path):
    path = tmp_path / "cache.json"
    with pytest.raises(FileNotFoundError):
        ours.load_tensors_data(path)
    for content in ("", "[]", '{"data": 3}', "{"):
        path.write_text(content)
        with pytest.raises(DataError, match="not a calibration cache"):
            ours.load_tensors_data(path)


def test_the_calibration_table_has_three_forms(tmp_path):
    from onnxruntime.quantization.CalTableFlatBuffers.TrtTable import TrtTable

    model = make_mlp()
    found = calibrate(ours, tmp_path, model, "MinMax", [make_samples(model)])
    write_calibration_table(found.data, tmp_path)
    largest = {
        name: str(max(abs(float(data.lowest[0])), float(data.highest[0])))
        for name, data in found.items()
    }
    text = (tmp_path / "calibration.cache").read_text().splitlines()
    assert dict(line.rsplit(" ", 1) for line in text) == largest
    assert json.loads((tmp_path / "calibration.json").read_text()).keys() == largest.keys()
    table = TrtTable.GetRootAsTrtTable((tmp_path / "calibration.flatbuffers").read_bytes(), 0)
    pairs = [table.Dict(index) for index in range(table.DictLength())]
    assert {pair.Key().decode(): pair.Value().decode() for pair in pairs} == largest
