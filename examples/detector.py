"""Quantize a detector whose last part stays float: detector.py MODEL IMAGES OUTPUT [PATTERN]."""

import sys

import bitwright


def main(model: str, images: str, output: str, pattern: str | None = None) -> None:
    """Keep the ratio of images, leave the nodes of a pattern float, and judge every output."""
    transform = bitwright.ImagePreprocess(letterbox=True, pad=114)
    recipe = bitwright.load_recipe("int8-per-channel")
    if pattern is not None:
        recipe = recipe.replace(select={"exclude": [f"re:{pattern}"]})
    result = bitwright.quantize(model, output, data=images, transform=transform, recipe=recipe)
    for compared in result.outputs:
        print(compared.describe())
    print(result.verdict.sentence)


if __name__ == "__main__":
    main(*sys.argv[1:])
