"""Import a model that was trained with quantizers: qat.py MODEL OUTPUT [DATA]."""

import sys

import bitwright


def main(model: str, output: str, data: str | None = None) -> None:
    """Keep every trained scale, and put the pairs where the runtime fuses them."""
    print(bitwright.import_qat(model, output, data=data))


if __name__ == "__main__":
    main(*sys.argv[1:])
