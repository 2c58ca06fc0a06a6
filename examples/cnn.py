"""Quantize a convolutional network for CPUs: cnn.py MODEL DATA OUTPUT."""

import sys

import bitwright


def main(model: str, data: str, output: str) -> None:
    """Quantize with the default recipe, and show what became of the model."""
    result = bitwright.quantize(model, output, data=data)
    print(result)
    for name, node in result.plan.nodes.items():
        if not node.quantized:
            print(f"{name} stays float: {node.reason}")


if __name__ == "__main__":
    main(*sys.argv[1:])
