"""One linear layer by itself: its error, whatever its weights are, from two matrices (needs torch).

A layer gives W x + b, and its squared error is a quadratic form of W: the sums of x xᵀ and of what
is missing times xᵀ say all there is to know about the data. They are made once. A step then costs
the same for a hundred samples as for a million, and sees all of them.
"""

from __future__ import annotations

import math

import torch

from bitwright.decide.ops import MATRIX_PRODUCTS
from bitwright.learning.torch_graph.attributes import Attributes
from bitwright.learning.torch_graph.windows import slide

__all__ = ["LinearError", "is_linear"]

WIDEST = 1024
"""Weights of one output up to which the matrices pay; beyond, each step takes some rows."""
ENOUGH = 64
"""Rows for each weight of an output: more say no more about second moments."""
DAMPING, TINY = 1e-6, 1e-30
"""Added to second moments before they are inverted, the first as a part of their mean."""
SWEEPS = 8
"""How often `turn` goes over all weights, at the most: after a few, hardly any turns."""
ALIKE = 8
"""So many rows of one sample are taken to say as much as one row of another: places of a picture
are much like those beside them."""
ROWS, ROWS_OF_A_STEP = 4096, 256
"""Rows that are kept of wider layers, and how many of them a step sees."""


def is_linear(attributes: Attributes, weight: torch.Tensor) -> bool:
    """Whether a node's error is a quadratic form of its weight, and this module has it.

    >>> import onnx_ir as ir
    >>> product, norm = (Attributes(ir.node(op, []), 21) for op in ("MatMul", "LayerNormalization"))
    >>> is_linear(product, torch.zeros(3, 4)), is_linear(norm, torch.zeros(3))
    (True, False)
    """
    op_type = attributes.op_type
    if op_type == "ConvTranspose":
        return _is_tiled(attributes, list(weight.shape[2:]))
    return op_type == "Conv" or (op_type in MATRIX_PRODUCTS and weight.ndim == 2)


def _is_tiled(attributes: Attributes, kernel: list[int]) -> bool:
    """Whether each place that a ConvTranspose writes comes from one place that it reads."""
    rank = len(kernel)
    return (
        attributes.integers("strides", rank, 1) == kernel
        and (attributes.integers("dilations", rank, 1) == [1] * rank or max(kernel) == 1)
        and not any(attributes.integers("pads", 2 * rank))
        and not any(attributes.integers("output_padding", rank))
        and not attributes.integers("output_shape")
        and attributes.text("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    )


class LinearError:
    """The error of one layer as a function of how its weight changes.

    >>> import onnx_ir as ir
    >>> node = Attributes(ir.node("MatMul", []), opset=21)
    >>> layer = LinearError(node, torch.zeros(2, 1))
    >>> layer.add(torch.eye(2), missing=torch.ones(2, 1))
    >>> layer.error, layer.gradient(torch.ones(2, 1)).tolist()
    (1.0, [[0.0], [0.0]])
    """

    def __init__(
        self, attributes: Attributes, weight: torch.Tensor, *, bias_follows: bool = False
    ) -> None:
        self._attributes = attributes
        self._shape = weight.shape
        self._is_conv = attributes.op_type == "Conv"
        self._is_tiled = attributes.op_type == "ConvTranspose"
        # The taps of a tile share a bias, but not what they lack.
        self._without_means = bias_follows and not self._is_tiled
        # Outputs that share a bias.
        self._taps = math.prod(weight.shape[2:]) if self._is_tiled else 1
        # Whether outputs are the first axis of the weight.
        self._is_upright = self._is_conv or bool(attributes.integer("transB"))
        self._groups = attributes.integer("group", 1) if self._is_conv or self._is_tiled else 1
        if self._is_upright:
            outputs = weight.shape[0] // self._groups
        else:
            outputs = math.prod(weight.shape[1:])
        inputs = weight.numel() // (outputs * self._groups)
        self._is_wide = bool(inputs > WIDEST)
        self._wanted = ROWS if self._is_wide else max(ENOUGH * inputs, ROWS)
        self._second = weight.new_zeros(self._groups, inputs, 0 if self._is_wide else inputs)
        self._left = weight.new_zeros(self._groups, outputs, inputs)
        self._sums = weight.new_zeros(self._groups, inputs)
        self._lacks = weight.new_zeros(self._groups, outputs)
        self._rows: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._squares, self._count, self._samples, self._chance = 0.0, 0, 0, 0.0

    @property
    def is_wide(self) -> bool:
        """Whether there are too many weights to know the error of all of them at once."""
        return self._is_wide

    @property
    def is_full(self) -> bool:
        """Whether more samples would say nothing new."""
        return self._count >= self._wanted

    @property
    def error(self) -> float:
        """The error of the weights as they are: summed over outputs, a mean over rows."""
        return self._squares / max(self._count, 1)

    def add(self, x: torch.Tensor, missing: torch.Tensor) -> None:
        """Take samples: what the layer reads, and what its results lack."""
        rows, lacks = self._inputs(x), self._outputs(missing)
        self._count += rows.shape[1]
        self._samples += x.shape[1 if self._attributes.integer("transA") else 0]
        self._squares += float(lacks.double().square().sum())
        self._left += lacks.transpose(1, 2) @ rows
        self._sums += rows.sum(dim=1)
        self._lacks += lacks.sum(dim=1)
        if self._is_wide:
            self._rows.append((rows, lacks))
        else:
            self._second += rows.transpose(1, 2) @ rows

    def settle(self, lost: torch.Tensor) -> None:
        """Make the moments ready, once all samples are taken; `lost` is the weight's own error."""
        if self._without_means:
            self._add_means(-1.0)
        if not self._is_wide:
            self._shrink(self._matrix(lost))

    def bias(self, change: torch.Tensor) -> torch.Tensor:
        """Return what to add to the bias of each output, where the weight is changed by this."""
        over = torch.bmm(self._matrix(change), self._sums[..., None])[..., 0]
        missing = (self._lacks - over).div_(max(self._count, 1))
        return missing.reshape(-1, self._taps).mean(dim=1)

    def hold_bias(self, shift: torch.Tensor) -> None:
        """Take it that the bias has moved by this, and does not follow the weights any more."""
        if self._without_means:
            self._add_means(1 - self._chance)
            self._without_means = False
        made = shift.repeat_interleave(self._taps).reshape(self._lacks.shape)
        self._lacks -= made * self._count
        self._left -= (1 - self._chance) * made[..., None] * self._sums[:, None]
        self._rows = [(rows, lacks - made[:, None]) for rows, lacks in self._rows]

    def _add_means(self, share: float) -> None:
        """Add what the means make of the moments, or take it away.

        Without them the bias is taken to follow the weights, which are left with what varies.
        """
        part = share / max(self._count, 1)
        self._left += part * self._lacks[..., None] * self._sums[:, None]
        self._squares += part * float(self._lacks.double().square().sum())
        if self._is_wide:
            means = [part * sums[:, None] for sums in (self._sums, self._lacks)]
            self._rows = [(rows + means[0], lacks + means[1]) for rows, lacks in self._rows]
        else:
            self._second += part * self._sums[..., None] * self._sums[:, None]

    def _shrink(self, lost: torch.Tensor) -> None:
        """Draw the moments toward those of inputs that have nothing to do with each other.

        The fewer rows there are for each weight, the more of what they say is chance, and a weight
        that is fitted to it does worse elsewhere (O. Ledoit and M. Wolf, 2004). For such inputs the
        best a weight can do is to be near to what it was in float.
        """
        inputs = self._second.shape[1]
        independent = max(self._samples, self._count / ALIKE)
        self._chance = inputs / (inputs + independent)
        mean = self._second.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None] * self._chance
        self._second.mul_(1 - self._chance).diagonal(dim1=1, dim2=2).add_(mean)
        self._left.mul_(1 - self._chance).add_(mean[..., None] * lost)

    def gradient(
        self, change: torch.Tensor, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Return the derivative of the error where the weight is changed by this."""
        matrix = self._matrix(change)
        if self._is_wide:
            found = self._gradient_of_rows(matrix, generator)
        else:
            found = torch.bmm(matrix, self._second).sub_(self._left).mul_(2 / self._count)
        return self._unfolded(found)

    def excess(self, change: torch.Tensor, gradient: torch.Tensor) -> float:
        """Return what a change adds to the error, with its gradient; an estimate if wide."""
        linear = (self._matrix(change) * self._left).sum() / self._count
        return float((change * gradient).sum() / 2 - linear)

    def choose(
        self, lower: torch.Tensor, up: torch.Tensor, step: torch.Tensor, free: torch.Tensor
    ) -> torch.Tensor:
        """Choose for each weight whether its change is `lower`, or a `step` more.

        One input after the other is decided, and those to come make up for what is lost by it
        (E. Frantar et al., "GPTQ", 2022). What is not `free` stays `up`, or not; so does
        everything in a wide layer, whose error is not known well enough, and where inputs were not
        finite.

        >>> import onnx_ir as ir
        >>> layer = LinearError(Attributes(ir.node("MatMul", []), opset=21), torch.zeros(2, 1))
        >>> layer.add(torch.tensor([[1.0, 0.9], [0.9, 1.0]]), missing=torch.ones(2, 1))
        >>> lower, free = torch.zeros(2, 1), torch.ones(2, 1, dtype=torch.bool)
        >>> layer.choose(lower, ~free, lower + 0.9, free).tolist()
        [[True], [False]]
        """
        second = self._second.double()
        if self._is_wide or not bool(second.isfinite().all()):
            return up
        mean = second.diagonal(dim1=1, dim2=2).mean(dim=1)
        second.diagonal(dim1=1, dim2=2).add_(DAMPING * mean[:, None] + TINY)
        inverse = torch.linalg.inv(second)
        wanted = torch.bmm(self._left.double(), inverse).to(self._left.dtype)
        # Row by row of this factor: how those to come make up for one that is decided.
        factor = torch.linalg.cholesky(inverse, upper=True)
        factor.div_(factor.diagonal(dim1=1, dim2=2)[..., None].clone())
        shares = factor.to(wanted.dtype)
        chosen, low, steps, loose = (self._matrix(p).clone() for p in (up, lower, step, free))
        for place in range(chosen.shape[2]):
            above = wanted[..., place] - low[..., place] > steps[..., place] / 2
            taken = torch.where(loose[..., place], above, chosen[..., place])
            chosen[..., place] = taken
            lost = wanted[..., place] - torch.where(
                taken, low[..., place] + steps[..., place], low[..., place]
            )
            rest = slice(place + 1, None)
            wanted[..., rest].addcmul_(lost[..., None], shares[:, None, place, rest], value=-1)
        return self._unfolded(chosen)

    def turn(
        self, change: torch.Tensor, up: torch.Tensor, step: torch.Tensor, free: torch.Tensor
    ) -> torch.Tensor:
        """Turn weights by a step, down where they are up and up where not, while the error falls.

        One input after the other is tried, for all outputs at once. What is not `free` stays. The
        error of a wide layer is not known well enough: nothing is turned there.

        >>> import onnx_ir as ir
        >>> layer = LinearError(Attributes(ir.node("MatMul", []), opset=21), torch.zeros(2, 1))
        >>> layer.add(torch.eye(2), missing=torch.ones(2, 1))
        >>> off, free = torch.zeros(2, 1), torch.tensor([[True], [False]])
        >>> layer.turn(off, off > 0, off + 1.5, free).tolist()
        [[True], [False]]
        """
        if self._is_wide:
            return up
        second = self._second
        squares = second.diagonal(dim1=1, dim2=2)[:, None]
        slope = torch.bmm(self._matrix(change), second).sub_(self._left)
        turned, steps, loose = (self._matrix(part).clone() for part in (up, step, free))

        def better(places: int | slice) -> tuple[torch.Tensor, torch.Tensor]:
            """Return which weights should turn, and by how much they would."""
            there = (..., places)
            move = torch.where(turned[there], -steps[there], steps[there])
            gain = move * (2 * slope[there] + move * squares[there])
            return (gain < 0) & loose[there], move

        for _ in range(SWEEPS):
            open_places = better(slice(None))[0].any(dim=0).any(dim=0).nonzero().flatten().tolist()
            if not open_places:
                break
            for place in open_places:
                found, move = better(place)
                slope.addcmul_((move * found)[..., None], second[:, place, None, :])
                turned[..., place] ^= found
        return self._unfolded(turned)

    def _matrix(self, weight: torch.Tensor) -> torch.Tensor:
        """Return something of a weight's shape as (groups, outputs, weights)."""
        groups, outputs, inputs = self._left.shape
        if self._is_upright:
            return weight.reshape(groups, outputs, inputs)
        return weight.reshape(groups, inputs, outputs).transpose(1, 2)

    def _unfolded(self, matrix: torch.Tensor) -> torch.Tensor:
        """Undo `_matrix`."""
        upright = matrix if self._is_upright else matrix.transpose(1, 2)
        return upright.reshape(self._shape)

    def _gradient_of_rows(
        self, matrix: torch.Tensor, generator: torch.Generator | None
    ) -> torch.Tensor:
        if len(self._rows) > 1:
            rows, lacks = (torch.cat(part, 1) for part in zip(*self._rows, strict=True))
            kept = torch.linspace(0, rows.shape[1] - 1, min(ROWS, rows.shape[1])).long()
            kept = kept.to(rows.device)
            self._rows = [(rows.index_select(1, kept), lacks.index_select(1, kept))]
        rows, lacks = self._rows[0]
        chosen = torch.randint(rows.shape[1], (ROWS_OF_A_STEP,), generator=generator)
        rows, lacks = (part.index_select(1, chosen.to(part.device)) for part in (rows, lacks))
        over = (rows @ matrix.transpose(1, 2)).sub_(lacks)
        return (over.transpose(1, 2) @ rows).mul_(2 / ROWS_OF_A_STEP)

    def _inputs(self, x: torch.Tensor) -> torch.Tensor:
        """Return what each output is a product of, (groups, rows, weights)."""
        if self._is_conv:
            places = len(self._shape) - 2
            windows = slide(self._attributes, x, self._shape[2:])
            split = windows.reshape(x.shape[0], self._groups, -1, *windows.shape[2:])
            order = [1, 0, *range(3, 3 + places), 2, *range(3 + places, split.ndim)]
            return split.permute(order).reshape(self._groups, -1, self._left.shape[2])
        if self._is_tiled:
            split = x.reshape(x.shape[0], self._groups, -1, math.prod(x.shape[2:]))
            return split.permute(1, 0, 3, 2).reshape(self._groups, -1, self._left.shape[2])
        if self._attributes.integer("transA"):
            x = x.T
        return x.reshape(1, -1, x.shape[-1]) * self._attributes.number("alpha", 1.0)

    def _outputs(self, y: torch.Tensor) -> torch.Tensor:
        """Return results in the same order, (groups, rows, outputs)."""
        if self._is_tiled:
            kernel = self._shape[2:]
            tiles = [n for size, taps in zip(y.shape[2:], kernel, strict=True)
                     for n in (size // taps, taps)]  # fmt: skip
            split = y.reshape(y.shape[0], self._groups, -1, *tiles)
            places, taps = range(3, split.ndim, 2), range(4, split.ndim, 2)
            return split.permute(1, 0, *places, 2, *taps).reshape(
                self._groups, -1, self._left.shape[1]
            )
        if not self._is_conv:
            return y.reshape(1, -1, y.shape[-1])
        split = y.reshape(y.shape[0], self._groups, -1, math.prod(y.shape[2:]))
        return split.permute(1, 0, 3, 2).reshape(self._groups, -1, self._left.shape[1])
