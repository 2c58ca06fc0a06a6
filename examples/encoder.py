"""Quantize a transformer encoder in three ways: encoder.py MODEL OUTPUT_FOLDER [DATA]."""

import sys
from pathlib import Path

import bitwright


def main(model: str, folder: str, data: str | None = None) -> None:
    """Compare dynamic ranges, fixed ones, and fixed ones behind SmoothQuant."""
    samples = bitwright.RandomData(count=16) if data is None else data
    smooth = {"base": "int8-per-channel", "smooth": {}}
    recipes = {"dynamic": "int8-dynamic", "static": "int8-per-channel", "smooth": smooth}
    Path(folder).mkdir(exist_ok=True)
    for name, recipe in recipes.items():
        output = Path(folder) / f"{name}.onnx"
        result = bitwright.quantize(model, output, data=samples, recipe=recipe)
        print(f"{name}: {result.shrinkage}, {result.measured or 'not measured'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
