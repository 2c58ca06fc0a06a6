"""`install_as` answers imports of another package with ours."""

import subprocess
import sys

import pytest

from bitwright.compat import install_as
from bitwright.compat.paths import REPLACEMENTS
from bitwright.errors import RecipeError


def run(program: str) -> str:
    """Run in a process of its own: what is imported stays so."""
    command = [sys.executable, "-W", "always", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(("name", "ours"), REPLACEMENTS.items())
@pytest.mark.sampled(2)
def test_every_package_is_replaced_whole(name: str, ours: str) -> None:
    answer = run(
        "from bitwright.compat import install_as\n"
        f"install_as({name!r})\n"
        f"import importlib, {name}\n"
        f"assert importlib.import_module({name!r}) is importlib.import_module({ours!r})\n"
        f"assert {name} is importlib.import_module({ours!r})\n"
    )
    assert "warn" not in answer.lower()


def test_submodules_are_ours_and_the_same_objects() -> None:
    run(
        "from bitwright.compat import install_as\n"
        "install_as('onnxruntime.quantization')\n"
        "from onnxruntime.quantization.qdq_quantizer import QDQQuantizer\n"
        "from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config\n"
        "import onnxruntime.quantization.calibrate as calibrate\n"
        "import bitwright.compat.onnxruntime.qdq_quantizer as ours\n"
        "import bitwright.compat.onnxruntime.calibrate as own\n"
        "assert QDQQuantizer is ours.QDQQuantizer\n"
        "assert calibrate is own\n"
        "assert own.__spec__.name == own.__name__ == 'bitwright.compat.onnxruntime.calibrate'\n"
        "assert get_qnn_qdq_config.__module__.startswith('bitwright.')\n"
        "import onnxruntime\n"
        "assert onnxruntime.quantization.__name__ == 'bitwright.compat.onnxruntime'\n"
        "assert onnxruntime.InferenceSession\n"
    )


@pytest.mark.slow
def test_scripts_of_other_tuners_find_their_modules() -> None:
    run(
        "from bitwright.compat import install_as\n"
        "install_as('neural_compressor', 'onnx_neural_compressor', 'nncf')\n"
        "from neural_compressor import PostTrainingQuantConfig, quantization\n"
        "from neural_compressor.adaptor.ox_utils.weight_only import rtn_quantize\n"
        "from neural_compressor.config import AccuracyCriterion, TuningCriterion\n"
        "from neural_compressor.data import DataLoader\n"
        "from neural_compressor.model.onnx_model import ONNXModel\n"
        "from neural_compressor.utils.constant import FP32\n"
        "from onnx_neural_compressor import data_reader\n"
        "from onnx_neural_compressor.quantization import config, tuning\n"
        "import nncf\n"
        "from nncf.quantization.advanced_parameters import AdvancedAccuracyRestorerParameters\n"
        "from nncf.onnx.quantization.backend_parameters import BackendParameters\n"
        "import bitwright.compat.neural_compressor.quantization.fitting as ours\n"
        "assert quantization.fit is ours.fit\n"
        "assert tuning.autotune and config.RTNConfig and data_reader.CalibrationDataReader\n"
    )


def test_a_module_that_only_the_other_tool_has_is_not_mixed_in() -> None:
    run(
        "from bitwright.compat import install_as\n"
        "install_as('onnxruntime.quantization')\n"
        "try:\n"
        "    import onnxruntime.quantization.no_such_module\n"
        "except ModuleNotFoundError as error:\n"
        "    assert error.name == 'onnxruntime.quantization.no_such_module', error.name\n"
        "else:\n"
        "    raise AssertionError('imported')\n"
    )


@pytest.mark.slow
def test_what_was_imported_before_is_replaced_with_a_warning() -> None:
    answer = run(
        "from onnxruntime.quantization import quantize_static as theirs\n"
        "from bitwright.compat import install_as\n"
        "install_as('onnxruntime.quantization')\n"
        "install_as('onnxruntime.quantization')\n"
        "import onnxruntime\n"
        "from onnxruntime.quantization import quantize_static as ours\n"
        "assert theirs.__module__ == 'onnxruntime.quantization.quantize'\n"
        "assert ours.__module__ == 'bitwright.compat.onnxruntime.static'\n"
        "assert onnxruntime.quantization.quantize_static is ours\n"
    )
    assert answer.count("UserWarning: onnxruntime.quantization was imported before") == 1


def test_an_unknown_package_is_refused_before_any_is_replaced() -> None:
    before = list(sys.meta_path)
    with pytest.raises(RecipeError, match=r"cannot stand in for 'onnxruntim'"):
        install_as("quark", "onnxruntim")
    assert sys.meta_path == before


def test_a_module_that_we_do_not_have_is_that_of_the_installed_tool(tmp_path) -> None:
    (tmp_path / "nncf" / "common").mkdir(parents=True)
    (tmp_path / "nncf" / "__init__.py").write_text("from nncf.common import taken\n")
    (tmp_path / "nncf" / "common" / "__init__.py").write_text("taken = 'theirs'\n")
    (tmp_path / "nncf" / "common" / "words.py").write_text("word = 'from there'\n")
    (tmp_path / "nncf" / "needy.py").write_text("import no_such_dependency\n")
    run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from bitwright.compat import install_as\n"
        "install_as('nncf')\n"
        "import nncf\n"
        "from nncf.common.words import word\n"
        "assert word == 'from there'\n"
        "from nncf.common import taken\n"
        "assert taken == 'theirs' and 'bitwright' in nncf.__file__\n"
        "try:\n"
        "    import nncf.needy\n"
        "except ModuleNotFoundError as error:\n"
        "    assert error.name == 'no_such_dependency', error.name\n"
        "else:\n"
        "    raise AssertionError('imported')\n"
    )
