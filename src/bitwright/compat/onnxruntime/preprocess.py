"""`python -m bitwright.compat.onnxruntime.preprocess`, with the flags of ONNX Runtime's module."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bitwright.compat.onnxruntime.commands import read_boolean
from bitwright.compat.onnxruntime.shape_inference import quant_pre_process
from bitwright.errors import BitwrightError
from bitwright.support.wording import printable

__all__ = ["main", "parse_arguments", "quant_pre_process"]

_STEPS = ("skip_optimization", "skip_onnx_shape", "skip_symbolic_shape")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = vars(parse_arguments(arguments))
    if all(options[step] for step in _STEPS):
        print("error: all three steps are skipped, so nothing is left to do.", file=sys.stderr)
        return 2
    try:
        quant_pre_process(options.pop("input"), options.pop("output"), **options)
    except BitwrightError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 1
    return 0


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the flags of a command line, by default of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m bitwright.compat.onnxruntime.preprocess",
        description="Fill in the shapes of a model and clean it up, before it is quantized.",
    )
    parser.add_argument("--input", required=True, help="the model to read")
    parser.add_argument("--output", required=True, help="where to write the result")
    for name, step in zip(
        _STEPS, ("optimization", "ONNX shape inference", "symbolic shape inference"), strict=True
    ):
        # There these take a value, of which any word is true; here "false" is false.
        parser.add_argument(
            f"--{name}", type=read_boolean, nargs="?", const=True, default=False, help=f"no {step}"
        )
    for name, text in (
        ("auto_merge", "take two names of dimensions that must be equal for one"),
        ("guess_output_rank", "take unknown ops to keep the rank of their first input"),
        ("save_as_external_data", "write tensors to files of their own"),
        ("all_tensors_to_one_file", "write all of them to one file"),
    ):
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument(
        "--int_max", type=int, default=2**31 - 1, help='the integer that means "to the end"'
    )
    parser.add_argument(
        "--verbose", type=int, default=0, help="log 0: nothing, 1: warnings, 3: everything"
    )
    parser.add_argument("--external_data_location", help="the file that tensors go to")
    text = "write tensors of at least this many bytes outside"
    parser.add_argument("--external_data_size_threshold", type=int, default=1024, help=text)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
