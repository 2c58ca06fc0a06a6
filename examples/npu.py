"""Quantize a network for an NPU and check it: npu.py MODEL DATA OUTPUT [DIMENSION=SIZE ...]."""

import sys

import bitwright


def main(model: str, data: str, output: str, *sizes: str) -> None:
    """Give open dimensions their sizes, quantize, and show every rule that the result breaks."""
    shapes = {name: int(size) for name, _, size in (text.partition("=") for text in sizes)}
    recipe = bitwright.load_recipe(target="npu-cnn").replace(rewrite={"fix_shapes": shapes})
    print(bitwright.quantize(model, output, data=data, recipe=recipe, target="npu-cnn"))
    found = bitwright.verify(output, target="npu-cnn")
    for finding in found.findings:
        print(finding.node, finding.rule, finding.message)
    if not found.ok:
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
