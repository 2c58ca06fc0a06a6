import numpy as np
import onnx
import onnxruntime as ort
import pytest

from bitwright.demo import load_demo


@pytest.fixture(scope="module")
def demo():
    return load_demo()


def run(demo, images):
    session = ort.InferenceSession(demo.model_path, providers=["CPUExecutionProvider"])
    return session.run(None, {"image": images})[0]


def test_the_float_model_reads_97_percent_of_the_digits(demo):
    predicted = run(demo, demo.images).argmax(axis=1)
    assert np.mean(predicted == demo.labels) >= 0.97


def test_model_and_data_stay_below_one_megabyte(demo):
    folder = demo.model_path.parent
    sizes = [file.stat().st_size for file in folder.iterdir() if file.suffix in (".onnx", ".npz")]
    assert len(sizes) == 2
    assert sum(sizes) < 900_000


def test_the_arrays_are_what_the_input_takes(demo):
    for array, count in ((demo.calibration, 200), (demo.images, 450)):
        assert array.shape == (count, 1, 8, 8)
        assert array.dtype == np.float32
        assert array.min() == 0.0
        assert array.max() == 1.0
    assert demo.labels.dtype == np.int64
    assert np.bincount(demo.labels, minlength=10).min() >= 40


def test_no_calibration_image_is_a_test_image(demo):
    tests = {image.tobytes() for image in demo.images}
    assert not any(image.tobytes() in tests for image in demo.calibration)


def test_the_model_is_a_valid_unfolded_cnn_of_opset_17(demo):
    model = onnx.load(demo.model_path)
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version == 8
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]
    assert {node.op_type for node in model.graph.node} == {
        "Add",
        "BatchNormalization",
        "Conv",
        "Flatten",
        "Gemm",
        "GlobalAveragePool",
        "MaxPool",
        "Relu",
    }
    assert any(
        attribute.name == "group" and attribute.i > 1
        for node in model.graph.node
        for attribute in node.attribute
    )


def test_the_batch_dimension_is_free(demo):
    single = np.concatenate([run(demo, demo.images[i : i + 1]) for i in range(3)])
    np.testing.assert_allclose(single, run(demo, demo.images[:3]), rtol=1e-4, atol=1e-5)
