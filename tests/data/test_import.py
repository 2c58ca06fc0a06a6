import subprocess
import sys


def test_importing_the_data_package_loads_nothing_heavy():
    code = (
        "import sys, bitwright.data\n"
        "heavy = {'PIL', 'torch', 'ray', 'numba', 'onnxscript', 'onnxruntime', 'onnx'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
