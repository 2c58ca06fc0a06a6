"""Compile models with OpenVINO and quantize their float ones with NNCF: what each makes of them.

Takes a folder with NAME.float.onnx, NAME.ours.onnx and NAME.npz (one sample: arrays by input) and
writes NAME.json: the precision of each product at run time; the tensors whose pairs OpenVINO leaves
out, since they stand inside of what it computes as one; the outputs' largest relative distance from
those of ONNX Runtime without these pairs, and with them; the activations that NNCF quantizes.
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
    precisions, inner = [], set()
    for op in model.get_runtime_model().get_ordered_ops():
        facts = op.get_rt_info()
        if facts["layerType"].astype(str) in PRODUCTS:
            precisions.append(facts["runtimePrecision"].astype(str))
            # The layers that this kernel stands for, in their order; the last one writes.
            inner |= {*facts["originalLayersNames"].astype(str).split(",")[:-1]}
    found = list(model(sample).values())
    written = onnx.load(path)
    reduced, left_out = without_pairs(written, inner)
    return {
        "precisions": precisions,
        "left_out": left_out,
        "distance": distance(found, reduced, sample),
        "distance_as_written": distance(found, written, sample),
    }


def without_pairs(model, names):
    """Return a model without the pairs of these quantizers, and the tensors that they were of."""
    reduced = onnx.ModelProto()
    reduced.CopyFrom(model)
    sources = {
        node.output[0]: node.input[0]
        for node in reduced.graph.node
        if node.op_type == "QuantizeLinear" and node.name in names
    }
    direct = {
        node.output[0]: sources[node.input[0]]
        for node in reduced.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in sources
    }
    for node in reduced.graph.node:
        node.input[:] = [direct.get(name, name) for name in node.input]
    return reduced, sorted({*sources.values()})


def distance(found, model, sample):
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, sample)
    return max(
        float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, wanted, strict=True)
    )


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
        theirs = quantized_by_nncf(folder / f"{name}.float.onnx", sample)
        content = compiled(path, sample) | {"nncf": theirs}
        (folder / f"{name}.json").write_text(json.dumps(content))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
