"""Linear layers as products of matrices: convolutions unfolded into rows (needs torch)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bitwright.decide.ops import MATRIX_PRODUCTS
from bitwright.learning.torch_graph.attributes import Attributes
from bitwright.learning.torch_graph.windows import slide


class Unfolding:
    """A layer with weight W as rows X and results Y = X Wᵀ, one product for each group."""

    has_own_biases = True
    """Whether each output has a bias of its own."""

    def __init__(self, attributes: Attributes, shape: torch.Size) -> None:
        self._attributes, self._shape = attributes, shape
        self.groups = attributes.integer("group", 1)
        self.outputs = shape[0] // self.groups if self._outputs_first else math.prod(shape[1:])
        self.inputs = shape.numel() // (self.outputs * self.groups)

    @property
    def outputs_per_bias(self) -> int:
        """How many outputs one element of the bias is added to."""
        return 1

    @property
    def _outputs_first(self) -> bool:
        """Whether outputs are the first axis of the weight."""
        return bool(self._attributes.integer("transB"))

    def count(self, x: Tensor) -> int:
        """Return how many samples a layer's input holds."""
        return int(x.shape[1 if self._attributes.integer("transA") else 0])

    def rows(self, x: Tensor) -> Tensor:
        """Return what each result is a product of, (groups, rows, inputs)."""
        if self._attributes.integer("transA"):
            x = x.T
        return x.reshape(1, -1, x.shape[-1]) * self._attributes.number("alpha", 1.0)

    def results(self, y: Tensor) -> Tensor:
        """Return the layer's results in the same order, (groups, rows, outputs)."""
        return y.reshape(1, -1, y.shape[-1])

    def matrix(self, weight: Tensor) -> Tensor:
        """Return something of the weight's shape as (groups, outputs, inputs)."""
        if self._outputs_first:
            return weight.reshape(self.groups, self.outputs, self.inputs)
        return weight.reshape(self.groups, self.inputs, self.outputs).transpose(1, 2)

    def folded(self, matrix: Tensor) -> Tensor:
        """Undo `matrix`."""
        return (matrix if self._outputs_first else matrix.transpose(1, 2)).reshape(self._shape)


class _Conv(Unfolding):
    @property
    def _outputs_first(self) -> bool:
        return True

    def rows(self, x: Tensor) -> Tensor:
        places = len(self._shape) - 2
        windows = slide(self._attributes, x, self._shape[2:])
        split = windows.reshape(x.shape[0], self.groups, -1, *windows.shape[2:])
        order = [1, 0, *range(3, 3 + places), 2, *range(3 + places, split.ndim)]
        return split.permute(order).reshape(self.groups, -1, self.inputs)

    def results(self, y: Tensor) -> Tensor:
        split = y.reshape(y.shape[0], self.groups, -1, math.prod(y.shape[2:]))
        return split.permute(1, 0, 3, 2).reshape(self.groups, -1, self.outputs)


class _TiledConvTranspose(Unfolding):
    """A ConvTranspose that computes each place of its output from one place of its input."""

    has_own_biases = False

    @property
    def outputs_per_bias(self) -> int:
        return math.prod(self._shape[2:])

    @property
    def _outputs_first(self) -> bool:
        return False

    def rows(self, x: Tensor) -> Tensor:
        split = x.reshape(x.shape[0], self.groups, -1, math.prod(x.shape[2:]))
        return split.permute(1, 0, 3, 2).reshape(self.groups, -1, self.inputs)

    def results(self, y: Tensor) -> Tensor:
        tiles = [
            n
            for size, taps in zip(y.shape[2:], self._shape[2:], strict=True)
            for n in (size // taps, taps)
        ]
        split = y.reshape(y.shape[0], self.groups, -1, *tiles)
        places, taps = range(3, split.ndim, 2), range(4, split.ndim, 2)
        return split.permute(1, 0, *places, 2, *taps).reshape(self.groups, -1, self.outputs)


def unfolding_of(attributes: Attributes, weight: Tensor) -> Unfolding | None:
    """Return a node as a product of matrices; None where it is not linear in its weight."""
    op_type = attributes.op_type
    if op_type == "Conv":
        return _Conv(attributes, weight.shape)
    if op_type == "ConvTranspose" and _is_tiled(attributes, list(weight.shape[2:])):
        return _TiledConvTranspose(attributes, weight.shape)
    if op_type in MATRIX_PRODUCTS and weight.ndim == 2:
        return Unfolding(attributes, weight.shape)
    return None


def _is_tiled(attributes: Attributes, kernel: list[int]) -> bool:
    """Whether the windows that a ConvTranspose writes neither overlap nor leave gaps."""
    rank = len(kernel)
    return (
        attributes.integers("strides", rank, 1) == kernel
        and (attributes.integers("dilations", rank, 1) == [1] * rank or max(kernel) == 1)
        and not any(attributes.integers("pads", 2 * rank))
        and not any(attributes.integers("output_padding", rank))
        and not attributes.integers("output_shape")
        and attributes.text("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    )
