"""4-bit weights in bitsandbytes' formats, by the names of ONNX Runtime's module and command."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from bitwright import graph
from bitwright.compat.model_wrapper import ONNXModel
from bitwright.compat.onnxruntime.commands import make_parser, run_command
from bitwright.compat.onnxruntime.errors import raises_builtins
from bitwright.compat.onnxruntime.peer import hand_on
from bitwright.compat.options import read_names
from bitwright.emit.bnb4 import BLOCK_SIZES, FP4, NF4, check_block_size, emit_bnb4, quantize_blocks
from bitwright.errors import NothingQuantizedError, RecipeError, did_you_mean
from bitwright.run.trial import check_still_opens
from bitwright.support.array_types import Array
from bitwright.support.wording import warn_user

__getattr__, __dir__ = hand_on(__name__)

logger = logging.getLogger(__name__)


class MatMulBnb4Quantizer:
    """Stores the constant matrices of MatMul nodes in 4 bits, FP4 or NF4, one scale a block.

    A given message becomes the quantized model, as in ONNX Runtime's tool, all of it or nothing.
    Other than there, a path will do, and warnings name unknown nodes to exclude, and a model that
    stays as it is because nothing is quantized.
    """

    FP4 = FP4
    NF4 = NF4

    def __init__(
        self,
        model: str | Path | onnx.ModelProto,
        quant_type: int = NF4,
        block_size: int = 64,
        nodes_to_exclude: Sequence[str] | None = None,
    ) -> None:
        if isinstance(quant_type, bool) or quant_type not in (FP4, NF4):
            raise RecipeError(f"quant_type is 0 (FP4) or 1 (NF4), not {quant_type!r}.")
        check_block_size(block_size)
        self.quant_type = quant_type
        self.block_size = block_size
        self.nodes_to_exclude = set(read_names("nodes_to_exclude", nodes_to_exclude))
        self._given = model if isinstance(model, onnx.ModelProto) else None
        self.model = ONNXModel(graph.load_model(model))

    def bnb4_block_quant(self, fpweight: Array) -> tuple[npt.NDArray[np.uint8], Array]:
        """Return the packed codes of a K x N weight, and the largest magnitude of each block."""
        if fpweight.ndim != 2:
            raise RecipeError(f"a weight is a matrix, and this one has {fpweight.ndim} axes.")
        if fpweight.dtype not in (np.float32, np.float16):
            raise RecipeError(f"a weight is float32 or float16, not {fpweight.dtype}.")
        return quantize_blocks(fpweight.T, self.quant_type, self.block_size)

    @raises_builtins()
    def process(self) -> None:
        """Quantize, and prove that ONNX Runtime takes the result; `model` is then the new one."""
        model = self.model.copy()
        for note in graph.normalize(model):
            logger.debug(note)
        known = {node.name or "" for node in model.graph.all_nodes()}
        for name in sorted(self.nodes_to_exclude - known):
            warn_user(f"ignored: no node is called {name!r}.{did_you_mean(name, known)}")
        try:
            kind, size, exclude = self.quant_type, self.block_size, self.nodes_to_exclude & known
            skipped = emit_bnb4(model, quant_type=kind, block_size=size, exclude=exclude)
        except NothingQuantizedError as error:
            warn_user(f"the model stays as it is: {error}")
            return
        for name, reason in skipped.items():
            logger.debug("MatMul %r stays float because %s", name, reason)
        graph.stamp_versions(model)
        graph.check_model(model)
        if not check_still_opens(model, self.model.copy()):
            # Language models in float16 may have nodes that only a GPU runs: no fault of ours.
            warn_user("neither the model nor its 4-bit form could be tried out here")
        self.model = ONNXModel(model)
        if self._given is not None:
            # Callers such as Olive save the message that they gave.
            self._given.CopyFrom(self.model.model)
            self.model = ONNXModel(self._given)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = parse_args(arguments)
    given = options.input_model, options.quant_type, options.block_size, options.nodes_to_exclude
    return run_command(options, lambda: MatMulBnb4Quantizer(*given), logger)


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the flags of a command line, by default of this process."""
    description = "Store the constant matrices of MatMul nodes in 4 bits, FP4 or NF4."
    parser = make_parser("matmul_bnb4_quantizer", description)
    add = parser.add_argument
    add("--quant_type", type=int, choices=(FP4, NF4), default=1, help="0: FP4, 1: NF4")
    text = "how many weights share a scale; bitsandbytes itself has 64"
    add("--block_size", type=int, choices=BLOCK_SIZES, default=64, help=text)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
