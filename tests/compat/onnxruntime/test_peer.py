"""What is not here is the peer's own, the very same object, loaded when it is first used."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys

import pytest

from bitwright.compat.onnxruntime.peer import OURS, PEER, peer

HANDED_ON = (
    "CalTableFlatBuffers.KeyValue",
    "CalTableFlatBuffers.TrtTable",
    "base_quantizer",
    "execution_providers.qnn.mixed_precision_overrides_utils",
    "neural_compressor.onnx_model",
    "neural_compressor.util",
    "operators.conv",
    "operators.qdq_base_operator",
    "registry",
    "tensor_quant_overrides",
)
NAMES = (
    ("calibrate", "TensorData"),
    ("calibrate", "entropy"),
    ("fusions", "Fusion"),
    ("matmul_nbits_quantizer", "DefaultWeightOnlyQuantizer"),
    ("matmul_nbits_quantizer", "is_divisible"),
    ("qdq_loss_debug", "collect_activations"),
    ("qdq_quantizer", "QDQTensorQuantParams"),
    ("quant_utils", "__producer__"),
    ("quant_utils", "compute_scale_zp"),
    ("quantize", "StaticQuantConfig"),
)


def ours(module):
    return importlib.import_module(f"{OURS}.{module}")


@pytest.mark.parametrize("module", HANDED_ON)
def test_a_module_without_a_file_here_is_the_peers(module):
    assert ours(module) is importlib.import_module(f"{PEER}.{module}")


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_name_that_a_module_does_not_define_is_the_peers(module, name):
    assert getattr(ours(module), name) is getattr(peer(module), name)
    assert name.startswith("_") or name in dir(ours(module))


@pytest.mark.parametrize(
    ("module", "name", "home"),
    [
        ("quantize", "QDQQuantizer", "qdq_quantizer"),
        ("quantize", "create_calibrator", "calibrate"),
        ("matmul_nbits_quantizer", "CalibrationDataReader", "calibrate"),
        ("quantize", "QuantType", "quant_utils"),
    ],
)
def test_what_the_peer_has_from_another_module_is_ours_where_we_have_it(module, name, home):
    found = getattr(ours(module), name)
    assert found is getattr(ours(home), name)
    assert found.__module__.startswith(OURS)


def test_a_name_that_nobody_has_is_an_attribute_error_that_says_so():
    with pytest.raises(AttributeError, match=r"has no 'compute_scal'.*installed onnxruntime"):
        ours("quant_utils").compute_scal  # noqa: B018
    with pytest.raises(ImportError, match="compute_scal"):
        exec(f"from {OURS}.quant_utils import compute_scal")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        ours("no_such_module")


def test_an_import_of_a_star_takes_what_the_peers_does():
    mine, theirs = {}, {}
    exec(f"from {OURS}.quant_utils import *", mine)
    exec(f"from {PEER}.quant_utils import *", theirs)
    assert theirs.keys() <= mine.keys()
    assert mine["write_calibration_table"].__module__.startswith(OURS)


def test_the_logging_of_the_process_stays_as_it_is():
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    peer("matmul_nbits_quantizer")
    assert (root.level, root.handlers) == before


def run(program):
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_it_is_the_installed_one_under_an_alias_too():
    run(
        "from bitwright.compat import install_as\n"
        "install_as('onnxruntime.quantization')\n"
        "from onnxruntime.quantization.registry import QDQRegistry\n"
        "from onnxruntime.quantization.operators.conv import QDQConv\n"
        "from bitwright.compat.onnxruntime.peer import peer\n"
        "import onnxruntime\n"
        "assert QDQRegistry is peer('registry').QDQRegistry\n"
        "assert QDQRegistry['Conv'] is QDQConv\n"
        "assert 'bitwright' not in peer('registry').__file__\n"
        "assert onnxruntime.quantization.__name__ == 'bitwright.compat.onnxruntime'\n"
    )


def test_a_registry_that_was_changed_before_the_alias_is_the_same():
    run(
        "from onnxruntime.quantization.registry import QDQRegistry as before\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "import bitwright.compat.onnxruntime as tool\n"
        "from bitwright.compat import install_as\n"
        "install_as('onnxruntime.quantization')\n"
        "from bitwright.compat.onnxruntime.registries import selected_op_types\n"
        "before.pop('TopK')\n"
        "assert 'TopK' not in selected_op_types(tool.QuantFormat.QDQ, None)\n"
        "from onnxruntime.quantization.registry import QDQRegistry as after\n"
        "assert before is after\n"
    )


def test_importing_bitwright_does_not_load_it():
    run(
        "import sys, bitwright, bitwright.compat.onnxruntime as tool\n"
        "tool.QuantType.QInt8, tool.CalibrationDataReader\n"
        "assert not any(name.startswith('onnxruntime') for name in sys.modules)\n"
    )
