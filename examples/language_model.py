"""Quantize the folder of a language model to 4 bits: language_model.py FOLDER OUTPUT [TEXT]."""

import sys

import bitwright


def main(folder: str, output: str, text: str | None = None) -> None:
    """Round to the nearest, or, with a text, by what each layer reads."""
    recipe = "int4-rtn" if text is None else "int4"
    print(bitwright.quantize(folder, output, recipe=recipe, data=text))


if __name__ == "__main__":
    main(*sys.argv[1:])
