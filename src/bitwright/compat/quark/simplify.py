"""What Quark does to a float model first: the runtime's basic optimizations, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from bitwright import graph
from bitwright.compat.onnxruntime.errors import raises_builtins
from bitwright.compat.onnxruntime.shape_inference import is_for_runtime, optimize_by_runtime
from bitwright.compat.options import read_switch
from bitwright.prepare.fold_batch_norm import fold_batch_norm


@raises_builtins()
def simplify(
    model: str | Path | onnx.ModelProto, options: dict[str, Any]
) -> str | Path | onnx.ModelProto:
    """Return the model as it is quantized there: products with a bias are Gemm, norms are folded.

    Models over 2 GB and those in float16 stay as they are, which Bitwright's own passes clean up.
    """
    loaded = graph.load_model(model)
    if options.get("SkipPreprocess") or not is_for_runtime(loaded):
        return model
    known = set(loaded.graph.initializers)
    loaded = optimize_by_runtime(loaded)
    # When it opens the result, the runtime gives what it fuses the same names again.
    for name in loaded.graph.initializers.keys() - known:
        loaded.graph.initializers[name].name = f"{name}_fused"
    if read_switch("FoldBatchNorm", options.get("FoldBatchNorm", True)):
        graph.infer_shapes(loaded)
        fold_batch_norm(loaded)
    return ir.to_proto(loaded)
