"""`qdq_loss_debug` on models that were quantized by us and by the peer."""

from __future__ import annotations

import onnx
import onnxruntime.quantization.qdq_loss_debug as theirs
import pytest
from support.models import Reader, make_cnn, make_samples, quantize_static_in

import bitwright.compat.onnxruntime.qdq_loss_debug as ours


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
