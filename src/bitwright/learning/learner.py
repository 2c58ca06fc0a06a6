"""Constants that learn: each with its parameters, and those of a segment together (needs torch)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from bitwright.learning.layer_error import LayerError
from bitwright.learning.optimizers import Adam

Tensors = dict[str, Tensor]
Groups = list[tuple[list[Tensor], float]]
"""Parameters, and their learning rate."""


class Optimizer(Protocol):
    """What moves parameters by their gradients."""

    def step(self, rate_factor: float = 1.0) -> None:
        """Move all at this part of their learning rates, and clear the gradients."""


class LearnedConstant:
    """A weight or bias that learns: rounded at every step, with gradients straight through."""

    learns_bias = False
    """Whether a bias learns with it."""

    def parameter_groups(self, learning_rate: float | None) -> Groups:
        """Return its parameters with their learning rates; None: the method's own choice."""
        raise NotImplementedError

    def soft(self) -> Tensors:
        """Return it while learning, gradients attached; also its bias, by name."""
        raise NotImplementedError

    def hard(self) -> Tensors:
        """Return it as it will be stored."""
        with torch.no_grad():
            return self.soft()

    def backpropagate(self, part: float, gradient_at: Callable[[Tensor], Tensor]) -> None:
        """Set its gradients from those of its layer's error, where this part of steps is done."""
        [weight] = self.soft().values()
        weight.backward(gradient_at(weight.detach()))

    def solve(self, layer: LayerError, stored: Tensor) -> bool:
        """Solve for its layer without gradient steps; False where that is not possible."""
        return False

    def polish(self, layer: LayerError, stored: Tensor) -> None:
        """Improve what was learned for its layer by itself, where there is a way to."""
        return


Constant = TypeVar("Constant", bound=LearnedConstant)


class Learner(Generic[Constant]):
    """The constants of a segment that learn, by name; `names` choose some of them, None all."""

    is_hard = True
    """Whether constants can be stored after every step, and not only in the end."""

    def __init__(self, constants: Mapping[str, Constant]) -> None:
        self.constants, self.names = constants, tuple(constants)

    def parameter_groups(
        self, learning_rate: float | None, names: Iterable[str] | None = None
    ) -> Groups:
        """Return the parameters with their learning rates; None: the method's own choice."""
        chosen = self._chosen(names)
        return [group for one in chosen for group in one.parameter_groups(learning_rate)]

    def parameters(self) -> list[Tensor]:
        """Return all that learns."""
        return [tensor for tensors, _ in self.parameter_groups(None) for tensor in tensors]

    def optimizer(self, groups: Sequence[tuple[Sequence[Tensor], float]]) -> Optimizer:
        """Return what moves these parameters."""
        return Adam(groups)

    def rate_factor(self, part: float) -> float:
        """Return the factor of the learning rate where this part of all steps is done."""
        return 1.0

    def soft(self, names: Iterable[str] | None = None) -> Tensors:
        """Return the constants while learning, gradients attached."""
        return {name: t for one in self._chosen(names) for name, t in one.soft().items()}

    def hard(self, names: Iterable[str] | None = None) -> Tensors:
        """Return the constants as they will be stored."""
        return {name: t for one in self._chosen(names) for name, t in one.hard().items()}

    def add_regularizer(self, part: float) -> Tensor | None:
        """Add the gradient of a term that draws constants to stored values, and return the term.

        `part` of all steps are done. The loss is 1 where all is rounded to nearest.
        """
        return None

    def unfreeze(self) -> None:
        """Let what has been learned so far change again."""
        return

    def scales(self) -> Tensors:
        """Return the scales that learned."""
        return {}

    def _chosen(self, names: Iterable[str] | None) -> Iterator[Constant]:
        chosen = self.names if names is None else names
        return (self.constants[name] for name in chosen if name in self.constants)
