"""What one case of a tool gave, as JSON takes it; used inside the tools' environment."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime


def describe(model_path: Path, float_path: Path, feeds: list[dict[str, np.ndarray]]) -> dict:
    """Return the files, the op counts and the error of a model against the float one."""
    counts = Counter(node.op_type for node in onnx.load(model_path).graph.node)
    # ORT's tool leaves constants in Constant nodes; here they are stored in the graph.
    del counts["Constant"]
    outputs = [np.concatenate(list(run(path, feeds))) for path in (float_path, model_path)]
    error = np.sqrt(np.mean((outputs[0] - outputs[1]) ** 2)) / outputs[0].std()
    return {
        "files": sorted(path.name for path in model_path.parent.iterdir()),
        "ops": dict(sorted(counts.items())),
        "error": float(error),
    }


def run(path: Path, feeds: list[dict[str, np.ndarray]]):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for feed in feeds:
        yield session.run(None, feed)[0].astype(np.float64)


def describe_fault(error: Exception) -> dict:
    """Return the built-in classes of an exception and of its cause."""
    kinds = [*type(error).__mro__, *type(error.__cause__).__mro__]
    built_in = [kind.__name__ for kind in kinds if kind.__module__ in ("builtins",)]
    own = [kind.__name__ for kind in kinds if kind.__module__.startswith(("olive", "optimum"))]
    return {"raises": sorted({*built_in, *own} - {"NoneType"})}
