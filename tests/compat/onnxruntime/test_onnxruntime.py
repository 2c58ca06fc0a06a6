"""The names of `onnxruntime.quantization`, in the package and in its modules."""

from __future__ import annotations

import importlib
import inspect
import sys

import onnxruntime.quantization as peer
import pytest

import bitwright.compat.onnxruntime as ours

# Pieces of the tool's own inside: Bitwright has other pieces.
INSIDE = {
    "": {"CudaQuantizer"},
    "calibrate": {"CalibrationDataCollector", "HistogramCollector", "apply_plot", "entropy",
                  "rel_entr", "load_model_with_shape_infer", "smooth_distribution"},
    "quant_utils": {"BiasToQuantize", "FLOAT8_DISTRIBUTIONS", "QuantizedInitializer",
                    "QuantizedValue", "apply_plot"},
    "quantize": {"TensorQuantOverridesHelper"},
    "qdq_quantizer": None,
    "onnx_quantizer": None,
    "onnx_model": set(),
}  # fmt: skip


@pytest.mark.parametrize("module", INSIDE)
def test_every_name_that_people_import_is_here(module):
    suffix = f".{module}" if module else ""
    for package in ("onnxruntime.quantization", "bitwright.compat.onnxruntime"):
        importlib.import_module(package + suffix)
    theirs, mine = (
        sys.modules[package + suffix]
        for package in ("onnxruntime.quantization", "bitwright.compat.onnxruntime")
    )
    if INSIDE[module] is None:  # one class, and all the machinery that it is made of
        wanted = {{"qdq_quantizer": "QDQQuantizer", "onnx_quantizer": "ONNXQuantizer"}[module]}
    else:
        wanted = {
            name
            for name, value in vars(theirs).items()
            if not name.startswith("_")
            and (inspect.isfunction(value) or inspect.isclass(value) or name.isupper())
            and getattr(value, "__module__", "onnxruntime.quantization").startswith(
                "onnxruntime.quantization"
            )
        } - INSIDE[module]
    assert wanted <= set(dir(mine))


# The classes behind the functions: people call the functions.
NOT_HERE = {"CudaQuantizer", "QDQQuantizer"}


def test_every_public_name_of_the_peer_is_here():
    theirs = {name for name in vars(peer) if not name.startswith("_")}
    modules = {name for name in theirs if type(getattr(peer, name)).__name__ == "module"}
    assert theirs - modules - NOT_HERE <= set(ours.__all__)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("calibrate", "TensorData TensorsData create_calibrator EntropyCalibrater CalibraterBase"),
        ("quantize", "quantize quantize_static quantize_dynamic get_qdq_config QuantConfig"),
        ("quant_utils", "QuantType QuantFormat QuantizationMode write_calibration_table"),
        ("qdq_loss_debug", "collect_activations create_weight_matching"),
    ],
)
def test_submodules_are_where_they_are_there(module, names):
    found = importlib.import_module(f"bitwright.compat.onnxruntime.{module}")
    for name in names.split():
        assert hasattr(found, name)


def test_quantize_is_the_function_and_the_module_can_still_be_imported():
    import bitwright.compat.onnxruntime.quantize  # noqa: F401

    assert callable(ours.quantize)
    assert callable(peer.quantize)
