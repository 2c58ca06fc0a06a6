"""Where the arithmetic of learning and rounding runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bitwright.errors import RecipeError


@dataclass(frozen=True, slots=True)
class Compute:
    """The device of heavy arithmetic, and the folder that keeps what it has finished."""

    device: str = "cpu"
    work: str | Path | None = None

    def refuse_for_plain_rounding(self) -> None:
        """Refuse options that a job without such arithmetic would ignore."""
        if self.work is not None:
            raise RecipeError(
                "a work folder is for weight-only recipes and fine-tuning; leave it out."
            )
        if self.device != "cpu":
            raise RecipeError(
                f"the device {self.device!r} is for weight-only recipes and fine-tuning; leave it "
                "out."
            )


ON_CPU = Compute()
