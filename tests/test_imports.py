"""What `import bitwright` and `bitwright --help` may load: nothing that makes them slow."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "ray", "numba", "onnxscript", "onnx_ir", "onnx", "onnxruntime", "PIL", "yaml")

ASSESSING = ("bench", "comparison", "inspection", "report", "sensitivity", "verification")


def modules_after(code):
    """Return the modules that are loaded once a fresh interpreter has run the code."""
    program = f"{code}\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def loaded_after(code):
    return {name.partition(".")[0] for name in modules_after(code)}


@pytest.mark.parametrize(
    "code",
    [
        "import bitwright",
        "from bitwright.cli import main; main(['--help'])",
        "from bitwright.cli import main; main(['quantize', '--help'])",
        "from bitwright.cli import main; main(['--version'])",
        "import bitwright; bitwright.RECIPES, bitwright.load_recipe('int8')",
        "import bitwright; bitwright.load_demo()",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(code):
    assert not loaded_after(code) & set(HEAVY)


@pytest.mark.parametrize("package", ["onnxruntime", "quark", "vai_q_onnx"])
def test_the_import_line_of_another_tool_loads_nothing_heavy_here(package):
    code = (
        f"import bitwright.compat.{package} as tool;"
        "tool.QuantType.QInt8, tool.QuantFormat.QDQ, tool.CalibrationMethod.MinMax;"
        "class_ = type('Reader', (tool.CalibrationDataReader,), {})"
    )
    assert not loaded_after(code) & set(HEAVY)


def test_a_function_keeps_its_name_where_a_module_has_the_same():
    code = (
        "import bitwright.compat.onnxruntime.quantize;"
        "from bitwright.compat.onnxruntime import quantize, static;"
        "assert callable(quantize) and static.quantize_static"
    )
    loaded_after(code)  # or it fails


@pytest.mark.parametrize("code", ["import bitwright", "from bitwright.cli import main"])
def test_not_even_numpy_is_loaded_to_start(code):
    assert "numpy" not in loaded_after(code)


@pytest.mark.parametrize("recipe", ["int8", "npu-cnn"])
def test_quantizing_a_small_model_loads_neither_torch_nor_ray_nor_a_compiler(recipe):
    code = (
        "import bitwright; demo = bitwright.load_demo();"
        f"bitwright.quantize(demo.model_path, data=demo.calibration[:4], recipe={recipe!r})"
    )
    assert not loaded_after(code) & {"torch", "ray", "numba"}


@pytest.mark.parametrize("recipe", ["int8", "npu-cnn", "int8-dynamic"])
def test_a_plain_job_loads_nothing_of_the_others(recipe):
    code = (
        "import bitwright; demo = bitwright.load_demo();"
        f"bitwright.quantize(demo.model_path, data=demo.calibration[:4], recipe={recipe!r})"
    )
    loaded = modules_after(code)
    others = ("comparing", "correcting", "effort", "fine_tuning", "preprocessing", "qat")
    others += ("equalize", "reporting", "sensing", "weight_only")
    found = {
        name.removeprefix("bitwright.").partition(".")[0]
        for name in loaded
        if name.startswith("bitwright.")
    }
    assert not found & {*others, "cli", "compat"}
    assert not {f"bitwright.assess.{part}" for part in ASSESSING} & loaded
    assert not {"rich", "typer", "pandas", "PIL", "yaml"} & loaded


def test_sympy_is_loaded_when_a_symbolic_shape_is_computed_and_not_before():
    start = "import bitwright.api.quantization, onnx_ir"
    assert "sympy.core" not in modules_after(start)
    used = f"{start}; assert str(onnx_ir.SymbolicDim('N') * 2) == '2*N'"
    assert "sympy.core" in modules_after(used)


@pytest.mark.parametrize(
    "code",
    [
        "import sympy; import bitwright.api.quantization; sympy.Symbol('x') + 1",
        "import bitwright.api.quantization; import sympy; sympy.Symbol('x') + 1",
        "import bitwright.api.quantization; import sympy.core.expr; sympy.core.expr.Expr",
        "import bitwright.api.quantization; from sympy import Symbol; Symbol('x') + 1",
        "import bitwright; import sympy; import sys; assert 'sympy.core' in sys.modules",
    ],
)
def test_sympy_is_the_same_for_everyone_else(code):
    loaded_after(code)  # or it fails


def test_python_dash_m_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "bitwright", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("bitwright ")
