"""`qdq_loss_debug` on models that were quantized by us and by the peer."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnxruntime
import onnxruntime.quantization as peer
import onnxruntime.quantization.qdq_loss_debug as theirs
import pytest
from support.models import Reader, make_cnn, make_samples, quantize_static_in

import bitwright.compat.onnxruntime.qdq_loss_debug as ours
from bitwright.errors import DataError, ModelError, OutputError


class Iterable(Reader):
    """The peer reads its reader as an iterator."""

    def __iter__(self):
        return iter(self._left)


@pytest.fixture(params=[False, True], ids=["per-tensor", "per-channel"])
def models(request, tmp_path):
    """Paths of a float model and its quantized twin, and samples."""
    model = make_cnn()
    samples = make_samples(model, 4)
    plain, quantized = tmp_path / "float.onnx", tmp_path / "quantized.onnx"
    onnx.save(model, plain)
    quantize_static_in(tmp_path, model, samples, per_channel=request.param)
    return plain, quantized, samples


def activations(module, path, samples, **options):
    augmented = path.with_name(f"{path.stem}-{module.__name__.split('.')[0]}.onnx")
    module.modify_model_output_intermediate_tensors(path, augmented, **options)
    return module.collect_activations(str(augmented), Iterable(samples))


def test_activations_are_the_peers(models):
    for path in models[:2]:
        mine, other = (activations(m, path, models[2]) for m in (ours, theirs))
        assert mine.keys() == other.keys()
        for name, arrays in mine.items():
            for one, two in zip(arrays, other[name], strict=True):
                np.testing.assert_array_equal(one, two)


def test_only_the_tensors_of_the_named_types(models):
    found = activations(ours, models[0], models[2], op_types_for_saving=["Gemm"])
    assert found.keys() == {"f", "y"}
    assert len(found["y"]) == 4 and found["y"][0].ndim == 1


def test_matching_and_errors_are_the_peers(models):
    plain, quantized, samples = models
    in_float, in_qdq = (activations(ours, path, samples) for path in (plain, quantized))
    mine = ours.create_activation_matching(in_qdq, in_float)
    other = theirs.create_activation_matching(in_qdq, in_float)
    assert mine.keys() == other.keys() and mine
    assert all(mine[name].keys() == other[name].keys() for name in mine)
    complete = {name: match for name, match in mine.items() if "float" in match}
    one, two = (m.compute_activation_error(complete) for m in (ours, theirs))
    for name, errors in one.items():
        for kind, value in errors.items():
            # The peer adds up squares in float32.
            assert value == pytest.approx(two[name][kind], abs=0.01)
    assert one["y"]["xmodel_err"] > 25


def test_without_float_activations_only_the_pairs_own_error(models):
    found = ours.create_activation_matching(activations(ours, models[1], models[2]))
    assert all(e.keys() == {"qdq_err"} for e in ours.compute_activation_error(found).values())


def test_weights_are_matched_and_compared(models):
    plain, quantized, _ = models
    mine = ours.create_weight_matching(plain, quantized)
    other = theirs.create_weight_matching(str(plain), str(quantized))
    # The peer loses per-channel biases along an axis that it does not name.
    assert mine.keys() == {"w1", "b1", "w2", "b2", "w3", "b3"} >= other.keys()
    for name, match in other.items():
        np.testing.assert_allclose(mine[name]["dequantized"], match["dequantized"], rtol=1e-5)
        np.testing.assert_array_equal(mine[name]["float"], match["float"])
    errors = ours.compute_weight_error(mine)
    assert all(error > 30 for error in errors.values())
    assert ours.compute_weight_error(mine, lambda a, b: 1.0)["w1"] == 1.0


def test_models_of_the_peers_work_too(tmp_path):
    model = make_cnn()
    samples = make_samples(model, 4)
    onnx.save(model, tmp_path / "float.onnx")
    peer.quantize_static(tmp_path / "float.onnx", tmp_path / "peer.onnx", Reader(samples))
    found = ours.create_weight_matching(tmp_path / "float.onnx", tmp_path / "peer.onnx")
    assert {"w1", "w2", "w3"} <= found.keys()


@pytest.mark.parametrize("shape", [(3,), (2, 4)])
def test_signal_to_noise_is_the_peers(shape):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(shape), rng.standard_normal(shape)
    for one, two in ((x, y), ([x, x], [y, x]), (x, x), (0 * x, 0 * x)):
        mine, other = (
            m.compute_signal_to_quantization_noice_ratio(one, two) for m in (ours, theirs)
        )
        assert math.isfinite(mine)
        assert mine == pytest.approx(other, abs=1e-6)


def test_session_options_are_used(models):
    plain, _, samples = models
    augmented = plain.with_name("augmented.onnx")
    ours.modify_model_output_intermediate_tensors(plain, augmented, save_as_external_data=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    found = ours.collect_activations(str(augmented), samples, session_options=options)
    assert "y" in found


def test_bad_input_is_refused_in_a_sentence(models):
    plain, _, samples = models
    with pytest.raises(ModelError, match="no saved tensors"):
        ours.collect_activations(str(plain), samples)
    with pytest.raises(OutputError):
        ours.modify_model_output_intermediate_tensors(plain, plain)
    with pytest.raises(DataError, match="1 arrays cannot be compared with 2"):
        ours.compute_signal_to_quantization_noice_ratio([np.ones(1)], [np.ones(1)] * 2)
