"""On which samples models are run to be compared, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bitwright.data import ImagePreprocess, Sample
from bitwright.errors import DataError
from bitwright.jobs.calibration import Calibration
from bitwright.observe import MEMORY_BUDGET
from bitwright.support.progress import Progress

__all__ = ["Measuring"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """The samples that models are run on, and the means to run them.

    >>> Measuring().check("a comparison runs both models")
    Traceback (most recent call last):
    bitwright.errors.DataError: a comparison runs both models and needs samples; give data \
(arrays, files, a folder of images, a data reader), or ask for random data to try things out.
    """

    data: Any = None
    samples: Sequence[Sample] | None = None
    """Samples as the quantized model takes them, instead of data."""
    limit: int | None = None
    preprocess: ImagePreprocess | str | None = None
    memory_budget: int = MEMORY_BUDGET
    providers: Sequence[str] | None = None
    progress: Progress = True

    def check(self, purpose: str) -> None:
        """Refuse what nothing can be measured with."""
        if self.memory_budget <= 0:
            raise DataError(f"the memory budget must be positive, not {self.memory_budget} bytes.")
        if self.limit is not None and self.limit < 1:
            raise DataError(f"at least one sample is needed, not {self.limit}.")
        if self.data is None and self.samples is None:
            raise DataError(
                f"{purpose} and needs samples; give data (arrays, files, a folder of images, a "
                "data reader), or ask for random data to try things out."
            )

    @property
    def calibration(self) -> Calibration:
        """How the samples are read."""
        if self.samples is not None:
            return Calibration(data=self.samples)
        return Calibration(data=self.data, limit=self.limit, preprocess=self.preprocess)
