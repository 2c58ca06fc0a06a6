"""What `import bitwright` and `bitwright --help` may load: nothing that makes them slow."""

import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "ray",
    "numba",
    "onnxscript",
    "onnx_ir",
    "sympy",
    "onnx",
    "onnxruntime",
    "PIL",
    "yaml",
)

OTHER_JOBS = (
    "bias_correction",
    "comparison",
    "effort",
    "fine_tuning",
    "preprocessing",
    "qat",
    "report",
    "sensitivity",
    "tuning",
    "weight_only",
)
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


# One interpreter for each of these lists: it ends with whatever any of its lines loads.
LIGHT = (
    "import bitwright, bitwright.data",
    "from bitwright.cli import main",
    "main(['--help'])",
    "main(['quantize', '--help'])",
    "main(['recipes'])",
    "main(['--version'])",
    "bitwright.RECIPES, bitwright.load_recipe('int8')",
    "bitwright.load_demo()",
)
OTHER_TOOLS = tuple(
    f"import bitwright.compat.{package} as tool;"
    "tool.QuantType.QInt8, tool.QuantFormat.QDQ, tool.CalibrationMethod.MinMax;"
    "class_ = type('Reader', (tool.CalibrationDataReader,), {})"
    for package in ("onnxruntime", "quark", "vai_q_onnx")
)


@pytest.mark.parametrize("lines", [LIGHT, OTHER_TOOLS], ids=["command", "other tools"])
def test_nothing_heavy_is_loaded_before_it_is_needed(lines):
    assert not loaded_after("\n".join(lines)) & set(HEAVY)


def test_a_function_keeps_its_name_where_a_module_has_the_same():
    code = (
        "import bitwright.compat.onnxruntime.quantize;"
        "from bitwright.compat.onnxruntime import quantize, static;"
        "assert callable(quantize) and static.quantize_static"
    )
    loaded_after(code)  # or it fails


def test_not_even_numpy_is_loaded_to_start():
    assert "numpy" not in loaded_after("import bitwright; from bitwright.cli import main")


def test_a_plain_job_loads_nothing_of_the_others():
    code = "import bitwright; demo = bitwright.load_demo()\n" + "\n".join(
        f"bitwright.quantize(demo.model_path, data=demo.calibration[:4], recipe={options})"
        for options in ("'int8'", "'npu-cnn'", "'int8-dynamic', force_dynamic=True")
    )
    loaded = modules_after(code)
    rooms = {".".join(name.split(".")[1:3]) for name in loaded if name.startswith("bitwright.")}
    assert not rooms & {f"jobs.{job}" for job in OTHER_JOBS}
    assert not {"bitwright.cli", "bitwright.compat", "bitwright.equalize"} & loaded
    assert not {f"bitwright.assess.{part}" for part in ASSESSING} & loaded
    assert not {"rich", "typer", "pandas", "PIL", "yaml"} & loaded
    assert not {"torch", "ray", "numba"} & loaded


def test_python_dash_m_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "bitwright", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("bitwright ")


def run_at_home(program, home, **variables):
    """Run a program in a fresh interpreter whose home, caches and temporary files are here."""
    places = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "TMPDIR", "TMP", "LOCALAPPDATA"), str(home))
    kept = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-B", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**kept, **places, **variables},
    )
    return done.stdout.strip()


def test_the_telemetry_of_onnx_runtime_does_not_start(tmp_path):
    # The client's files tell that it runs: before its first look-up of a name, and without network.
    client, ours = tmp_path / "client", tmp_path / "ours"
    client.mkdir()
    ours.mkdir()
    run_at_home("import onnxruntime", client)
    if not any(client.iterdir()):
        pytest.skip("the installed ONNX Runtime starts no telemetry here")
    run_at_home("from bitwright.graph import runtime_limits; runtime_limits()", ours)
    assert not list(ours.iterdir())


@pytest.mark.parametrize(
    ("function", "variables", "told"),
    [
        ("disable_telemetry_events", {}, "['off'] 1"),
        ("disable_telemetry_events", {"ORT_DISABLE_TELEMETRY": "0"}, "[] 0"),
        ("absent_in_an_old_version", {}, "[] 1"),
    ],
)
def test_a_runtime_imported_earlier_is_told_to_send_nothing(tmp_path, function, variables, told):
    program = f"""
import os, sys, types
calls = []
runtime = types.ModuleType("onnxruntime")
runtime.{function} = lambda: calls.append("off")
sys.modules["onnxruntime"] = runtime
import bitwright
print(calls, os.environ["ORT_DISABLE_TELEMETRY"])
"""
    assert run_at_home(program, tmp_path, **variables) == told


# A name server of its own, in a network that ends at this process: it notes who is asked for, and
# answers that there is no such name.
RESOLVER = """
import json, socket, subprocess, sys, threading
asked = []
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
def answer():
    while True:
        query, sender = server.recvfrom(4096)
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += query[at] + 1
        asked.append(".".join(labels))
        server.sendto(query[:2] + b"\\x81\\x83" + query[4:6] + bytes(6) + query[12:], sender)
threading.Thread(target=answer, daemon=True).start()
subprocess.run(sys.argv[1:], check=True)
print(json.dumps(asked))
"""

SESSION = """
import time, onnxruntime
from onnx import helper
values = [helper.make_tensor_value_info(name, 1, [1]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
onnxruntime.InferenceSession(model.SerializeToString())
time.sleep(45)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("unshare"),
    reason="only root can make a network of its own",
)
def test_no_name_is_looked_up(tmp_path):
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    prepare = f"ip link set lo up && mount --bind {tmp_path}/resolv.conf /etc/resolv.conf"

    def names_asked_for(program):
        words = shlex.join([sys.executable, "-c", RESOLVER, sys.executable, "-c", program])
        done = subprocess.run(
            ["unshare", "--net", "--mount", "sh", "-c", f"{prepare} && {words}"],
            capture_output=True,
            text=True,
            check=True,
            env={k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"},
        )
        return json.loads(done.stdout)

    if not names_asked_for(SESSION):
        pytest.skip("the installed ONNX Runtime asks for no name")
    assert not names_asked_for(f"import bitwright\n{SESSION}")
