"""Tables are read and written as the peer's, which TensorRT reads."""

from __future__ import annotations

import numpy as np
import pytest
from support.peer_overrides import both

from bitwright.compat.onnxruntime import CalibrationMethod, TensorsData, write_calibration_table

flatbuffers = pytest.importorskip("flatbuffers")
TABLES, PAIRS = both("CalTableFlatBuffers.TrtTable"), both("CalTableFlatBuffers.KeyValue")


def build(table, pair):
    """Return a buffer with two pairs."""
    builder = flatbuffers.Builder(64)
    made = []
    for name, value in (("x", "1.5"), ("y", "2.5")):
        texts = builder.CreateString(name), builder.CreateString(value)
        pair.Start(builder)
        pair.KeyValueAddKey(builder, texts[0])
        pair.AddValue(builder, texts[1])
        made.append(pair.End(builder))
    table.StartDictVector(builder, len(made))
    for offset in made:
        builder.PrependUOffsetTRelative(offset)
    vector = builder.EndVector()
    table.Start(builder)
    table.AddDict(builder, vector)
    builder.Finish(table.End(builder))
    return bytes(builder.Output())


def read(table, content):
    found = table.TrtTable.GetRootAsTrtTable(content, 0)
    pairs = [found.Dict(index) for index in range(found.DictLength())]
    return found.DictIsNone(), [(pair.Key(), pair.Value()) for pair in pairs]


def test_both_write_the_same_bytes_and_read_the_same_pairs():
    mine, theirs = (build(*modules) for modules in zip(TABLES, PAIRS, strict=True))
    assert mine == theirs
    assert read(TABLES[0], mine) == read(TABLES[1], mine)
    assert read(TABLES[0], mine) == (False, [(b"y", b"2.5"), (b"x", b"1.5")])


def test_a_written_calibration_table_is_read(tmp_path):
    ends = np.array(-8, np.float32), np.array(6, np.float32)
    write_calibration_table(TensorsData(CalibrationMethod.MinMax, {"x": ends}), tmp_path)
    content = (tmp_path / "calibration.flatbuffers").read_bytes()
    assert read(TABLES[0], content) == read(TABLES[1], content) == (False, [(b"x", b"8.0")])
