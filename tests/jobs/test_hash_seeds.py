"""The same input gives the same bytes and the same report, however Python hashes strings."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

VERBS = """
    import hashlib
    import bitwright
    from support.models import build, make_samples, node, weight

    def make_gates():
        '''Products whose results meet gates; each gate could give its name to what they make.'''
        nodes, constants, current = [], {}, "x"
        for step in range(4):
            constants[f"w{step}"] = weight(32, 32, seed=step)
            nodes.append(node("MatMul", [current, f"w{step}"], [f"p{step}"], name=f"mm{step}"))
            nodes.append(node("Tanh", [f"p{step}"], [f"t{step}"], name=f"tanh{step}"))
            current = f"t{step}"
            for op in ("Sigmoid", "Softsign", "HardSigmoid"):
                gate, product = f"{op}_out{step}", f"{op}_gated{step}"
                nodes.append(node(op, [f"p{step}"], [gate], name=f"{op}{step}"))
                nodes.append(node("Mul", [current, gate], [product], name=f"{op}_mul{step}"))
                current = product
        return build(nodes, {"x": ["n", 32]}, {current: None}, constants)

    model = make_gates()
    data = make_samples(model, 4)
    for recipe in ("int8", "int8-dynamic", "int4-gptq", "npu-transformer"):
        result = bitwright.quantize(model, "q.onnx", recipe=recipe, data=data, progress=False)
        stored = open("q.onnx", "rb").read()
        print(recipe, hashlib.sha256(stored).hexdigest())
        print(recipe, bitwright.compare(model, "q.onnx", data=data))
        print(recipe, bitwright.verify("q.onnx"))
    print(bitwright.inspect(model))
    plan = bitwright.make_plan(model, recipe="int8", data=data, progress=False)
    print(bitwright.find_sensitivity(model, plan, data=data, progress=False).to_dict())
"""


def run_with_seed(seed, folder):
    folder.mkdir()
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(VERBS)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_files_and_reports_do_not_depend_on_the_hash_seed(tmp_path):
    first, second = (run_with_seed(seed, tmp_path / str(seed)) for seed in (1, 2))
    assert "mm3" in first
    assert first == second
