"""A ZipMap at the end of a model is taken off when it is read and stands in what is written."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import bitwright
from bitwright.graph import load_model, put_back_maps, save_model

PIPELINE = Path(__file__).parents[1] / "fixtures" / "sklearn_digits.onnx"


@pytest.fixture(scope="module")
def digits():
    datasets = pytest.importorskip("sklearn.datasets")
    pixels, labels = datasets.load_digits(return_X_y=True)
    return pixels[:200].astype(np.float32), labels[:200]


def answers(model, pixels):
    session = onnxruntime.InferenceSession(model)
    return session.run(None, {session.get_inputs()[0].name: pixels})


def test_a_pipeline_is_quantized_and_still_answers_with_a_map(tmp_path, digits):
    pixels, labels = digits
    out = tmp_path / "q.onnx"
    result = bitwright.quantize(PIPELINE, out, data=pixels[:64], recipe="int8")
    assert result.quantized["MatMul"] == 3
    named, maps = answers(out, pixels)
    before, floats = answers(PIPELINE, pixels)
    assert (named == labels).mean() > 0.95 and (named == before).mean() > 0.98
    assert [sorted(one) for one in maps] == [sorted(one) for one in floats]
    difference = [abs(a[key] - b[key]) for a, b in zip(maps, floats, strict=True) for key in a]
    assert max(difference) < 0.2
    assert answers(result.to_proto().SerializeToString(), pixels)[1] == maps


def test_reading_and_writing_gives_the_same_nodes_and_outputs_and_no_trace(tmp_path, digits):
    model = load_model(PIPELINE)
    assert [value.name for value in model.graph.outputs][1] == "out_activations_result"
    save_model(model, tmp_path / "same.onnx")
    again, first = onnx.load(tmp_path / "same.onnx"), onnx.load(PIPELINE)
    assert list(again.graph.output) == list(first.graph.output)
    assert sorted(n.op_type for n in again.graph.node) == sorted(
        n.op_type for n in first.graph.node
    )
    assert not [one for one in again.metadata_props if one.key.startswith("bitwright.maps")]
    assert answers(tmp_path / "same.onnx", digits[0])[1] == answers(PIPELINE, digits[0])[1]


def test_the_message_that_is_given_is_not_changed():
    proto = onnx.load(PIPELINE)
    before = proto.SerializeToString(deterministic=True)
    load_model(proto)
    assert proto.SerializeToString(deterministic=True) == before


def test_what_a_file_says_itself_about_maps_is_not_believed(tmp_path):
    proto = onnx.load(PIPELINE)
    proto.metadata_props.add(key="bitwright.maps", value="no base64!")
    save_model(load_model(proto), tmp_path / "m.onnx")
    assert onnx.load(tmp_path / "m.onnx").graph.output[1].name == "output_probability"
    assert put_back_maps(onnx.load(PIPELINE)) == onnx.load(PIPELINE)


def test_a_map_that_other_nodes_read_is_refused(builders):
    proto = onnx.load(PIPELINE)
    proto.graph.node.add(op_type="Identity", input=["output_probability"], output=["again"])
    with pytest.raises(bitwright.ModelError, match="is a map"):
        load_model(proto)
