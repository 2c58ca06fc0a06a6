"""Compile models with OpenVINO and quantize their float ones with NNCF: what each makes of them.

Takes a folder with NAME.float.onnx, NAME.ours.onnx and NAME.npz (one sample: arrays by input) and
writes NAME.json: the precision of each product at run time, the outputs' largest relative distance
from ONNX Runtime's, and the activations that NNCF quantizes.
"""

import json
import logging
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

PRODUCTS = ("Convolution", "Deconvolution", "FullyConnected", "MatMul")


def compiled(path, sample):
    import openvino

    core = openvino.Core()
    model = core.compile_model(core.read_model(path), "CPU")
    precisions = []
    for op in model.get_runtime_model().get_ordered_ops():
        facts = op.get_rt_info()
        if facts["layerType"].astype(str) in PRODUCTS:
            precisions.append(facts["runtimePrecision"].astype(str))
    found = list(model(sample).values())
    wanted = onnxruntime.InferenceSession(str(path)).run(None, sample)
    distances = [
        float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, wanted, strict=True)
    ]
    return precisions, max(distances)


def quantized_by_nncf(path, sample):
    import nncf

    nncf.set_log_level(logging.ERROR)
    made = nncf.quantize(onnx.load(path), nncf.Dataset([sample]), subset_size=1)
    constants = {constant.name for constant in made.graph.initializer}
    sources = [node.input[0] for node in made.graph.node if node.op_type == "QuantizeLinear"]
    # Weights are quantized from constants under names of their own.
    return sorted({name for name in sources if name not in constants})


def main(folder):
    for path in sorted(folder.glob("*.ours.onnx")):
        name = path.name.removesuffix(".ours.onnx")
        sample = dict(np.load(folder / f"{name}.npz"))
        precisions, distance = compiled(path, sample)
        theirs = quantized_by_nncf(folder / f"{name}.float.onnx", sample)
        content = {"precisions": precisions, "distance": distance, "nncf": theirs}
        (folder / f"{name}.json").write_text(json.dumps(content))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
