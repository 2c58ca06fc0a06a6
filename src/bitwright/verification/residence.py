"""How much of a model stays on its target: operators, multiply-adds, partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Residence"]


@dataclass(frozen=True, slots=True)
class Residence:
    """What stays on a target, and in how many pieces.

    >>> Residence(12, 11, 9, 2_000_000, 1_900_000, 1_800_000, 2).describe()
    '11 of 12 ops on the target (95 % of multiply-adds) in 2 partitions, 9 of them quantized (90 %)'
    """

    ops: int
    resident_ops: int
    quantized_ops: int
    """Of those on the target: computed on integers or other low-bit numbers."""
    multiply_adds: int | None
    """Of all products; None where a shape is not known."""
    resident_multiply_adds: int | None
    quantized_multiply_adds: int | None
    partitions: int

    @property
    def share(self) -> float | None:
        """The share of multiply-adds on the target."""
        return _share(self.resident_multiply_adds, self.multiply_adds)

    @property
    def quantized_share(self) -> float | None:
        """The share of multiply-adds on low-bit numbers."""
        return _share(self.quantized_multiply_adds, self.multiply_adds)

    def describe(self) -> str:
        """Return it in words."""
        pieces = f"{self.partitions} partition{'' if self.partitions == 1 else 's'}"
        products = "" if self.share is None else f" ({100 * self.share:.0f} % of multiply-adds)"
        quantized = "" if self.quantized_share is None else f" ({100 * self.quantized_share:.0f} %)"
        return (
            f"{self.resident_ops} of {self.ops} ops on the target{products} in {pieces}, "
            f"{self.quantized_ops} of them quantized{quantized}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        numbers = {name: getattr(self, name) for name in self.__slots__}
        return numbers | {"share": self.share, "quantized_share": self.quantized_share}


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if whole and part is not None else None
