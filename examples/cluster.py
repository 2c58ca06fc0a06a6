"""Observe once on a cluster, and decide twice: cluster.py MODEL DATA FOLDER [ENGINE]."""

import sys
from pathlib import Path

import bitwright


def main(model: str, data: str, folder: str, engine: str = "local") -> None:
    """Keep the sketches in a file; the second method needs no pass over the data."""
    Path(folder).mkdir(exist_ok=True)
    seen = Path(folder) / "seen.safetensors"
    for method in ("minmax", "mse"):
        recipe = {"base": "int8-per-channel", "ranges": {"method": method}}
        output = Path(folder) / f"{method}.onnx"
        result = bitwright.quantize(
            model, output, data=data, recipe=recipe, sketches=seen, engine=engine
        )
        print(f"{method}: {result.measured}")


if __name__ == "__main__":
    main(*sys.argv[1:])
