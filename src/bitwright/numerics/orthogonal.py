"""Orthogonal matrices that spread what lies in few channels over all: randomized Hadamard matrices.

A Hadamard matrix of order 2^k m is a Kronecker product of one of order m (R. Paley, "On orthogonal
matrices", 1933) with ones of order 2; multiplied factor by factor it costs next to nothing. Random
signs before it make it one of many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bitwright.support.array_types import F64, Array

OrthogonalKind = Literal["hadamard", "random", "mean-preserving"]

# Orders up to which a factor of a Hadamard matrix is multiplied as it is.
_DENSE = 64


@dataclass(frozen=True, slots=True, eq=False)
class Orthogonal:
    """An orthogonal matrix R: random signs, then a Kronecker product of small matrices."""

    kind: OrthogonalKind
    signs: F64
    factors: tuple[F64, ...]

    @property
    def size(self) -> int:
        """Its order."""
        return int(self.signs.size)

    def multiply(self, array: Array, axis: int = -1, span: slice = slice(None)) -> F64:
        """Return x R for the vectors x along an axis, or for each of the blocks that it is made of.

        `span` is the part of the axis that is multiplied; the rest stays.
        """
        result = np.array(np.moveaxis(array, axis, -1), np.float64, order="C")
        part = result[..., span]
        blocks = part.reshape(-1, self.size) * self.signs
        right = self.size
        for factor in self.factors:
            right //= len(factor)
            if right > 1:
                blocks = factor.T @ blocks.reshape(-1, len(factor), right)
            else:  # one large product, not many small ones
                blocks = blocks.reshape(-1, len(factor)) @ factor
        result[..., span] = blocks.reshape(part.shape)
        return np.moveaxis(result, -1, axis)

    def matrix(self) -> F64:
        """Return R itself."""
        return self.multiply(np.eye(self.size))


def make_orthogonal(size: int, seed: int, *, keep_mean: bool = False) -> Orthogonal:
    """Return a randomized Hadamard matrix where one of this order is known, else a random one.

    With `keep_mean` R maps the vector of ones to itself, so that the mean of x R is that of x:
    what LayerNormalization subtracts.
    """
    random = np.random.default_rng(seed)
    if keep_mean:
        return Orthogonal("mean-preserving", np.ones(size), (_keeping_ones(size, random),))
    factors = _hadamard_factors(size)
    if factors is None:
        return Orthogonal("random", np.ones(size), (_random(size, random),))
    signs = random.choice([-1.0, 1.0], size)
    return Orthogonal("hadamard", signs, factors)


def hadamard(order: int) -> F64 | None:
    """Return a matrix of +1 and -1 with orthogonal rows; None: no construction is known here."""
    if order == 1:
        return np.ones((1, 1))
    if order == 2:
        return np.array([[1.0, 1.0], [1.0, -1.0]])
    if order % 4:
        return None
    if _is_prime(order - 1):  # Paley's first construction: q = 3 (mod 4)
        core = _jacobsthal(order - 1)
        bordered = np.zeros((order, order))
        bordered[0, 1:], bordered[1:, 0], bordered[1:, 1:] = 1, -1, core
        return bordered + np.eye(order)
    prime = order // 2 - 1
    if prime % 4 == 1 and _is_prime(prime):  # and his second one: q = 1 (mod 4)
        conference = np.zeros((prime + 1, prime + 1))
        conference[0, 1:], conference[1:, 0] = 1, 1
        conference[1:, 1:] = _jacobsthal(prime)
        pair, diagonal = np.array([[1.0, 1], [1, -1]]), np.array([[1.0, -1], [-1, -1]])
        return np.kron(conference, pair) + np.kron(np.eye(prime + 1), diagonal)
    half = hadamard(order // 2)
    return None if half is None else np.kron(half, np.array([[1.0, 1.0], [1.0, -1.0]]))


def _hadamard_factors(size: int) -> tuple[F64, ...] | None:
    """Return Hadamard matrices, scaled to be orthogonal, whose Kronecker product has this order."""
    rest, powers = size, 1
    while rest % 2 == 0:
        rest, powers = rest // 2, powers * 2
    for power in (1 << k for k in range(powers.bit_length())):
        odd = hadamard(rest * power)
        if odd is None:
            continue
        orders, left = [], powers // power
        while left > 1:
            orders.append(min(left, _DENSE))
            left //= orders[-1]
        found = [odd, *(each for order in orders if (each := hadamard(order)) is not None)]
        return tuple(each / np.sqrt(len(each)) for each in found if len(each) > 1 or size == 1)
    return None


def _random(size: int, random: np.random.Generator) -> F64:
    """Return a matrix that is as likely as any other orthogonal one."""
    q, r = np.linalg.qr(random.standard_normal((size, size)))
    return np.asarray(q * np.where(np.diag(r) < 0, -1.0, 1.0))


def _keeping_ones(size: int, random: np.random.Generator) -> F64:
    """Return a random orthogonal matrix that maps the vector of ones to itself."""
    inner = np.eye(size)
    inner[1:, 1:] = _random(size - 1, random)
    # The reflection that swaps the first unit vector and the direction of the ones.
    across = np.full(size, -1 / np.sqrt(size))
    across[0] += 1
    reflection = np.eye(size) - 2 * np.outer(across, across) / (across @ across)
    return np.asarray(reflection @ inner @ reflection)


def _jacobsthal(prime: int) -> F64:
    """Return the matrix of the quadratic characters of i - j."""
    character = np.full(prime, -1.0)
    character[np.arange(1, prime) ** 2 % prime] = 1
    character[0] = 0
    numbers = np.arange(prime)
    return np.asarray(character[(numbers[:, None] - numbers) % prime])


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % one for one in range(2, int(number**0.5) + 1))
