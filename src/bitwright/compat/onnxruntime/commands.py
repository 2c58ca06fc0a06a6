"""Arguments and exit codes that the commands of ONNX Runtime's modules share."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bitwright import graph
from bitwright.errors import BitwrightError, OutputError
from bitwright.support.wording import printable


def make_parser(module: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments that both commands take."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bitwright.compat.onnxruntime.{module}", description=description
    )
    add = parser.add_argument
    add("--input_model", required=True, help="the model to read")
    add("--output_model", required=True, help="where to write; must not exist")
    add("--nodes_to_exclude", nargs="+", default=[], help="names of nodes that stay float")
    add("-v", "--verbose", action="store_true", help="log what is left float")
    return parser


def run_command(
    options: argparse.Namespace, make_quantizer: Callable[[], Any], logger: logging.Logger
) -> int:
    """Quantize from file to file and return the exit code; what is wrong goes to stderr."""
    if options.verbose:
        logging.basicConfig()
        logger.setLevel(logging.DEBUG)
    try:
        if Path(options.output_model).exists():
            raise OutputError(f"{options.output_model!r} exists already; choose another path.")
        graph.check_destination(options.output_model, source=options.input_model)
        quantizer = make_quantizer()
        quantizer.process()
        quantizer.model.save_model_to_file(options.output_model, True)
    except BitwrightError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 1
    return 0


def read_boolean(text: str) -> bool:
    """Return what a word of a command line says, where any word counts as true there."""
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return known[text.lower()]
