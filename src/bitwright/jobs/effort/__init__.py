"""Effort levels: changes of the recipe that bring the model closer to float, kept if they help.

low       the recipe as it is
standard  + the better of a few range methods, by what one calibration pass saw; the default where
          no recipe is given
medium    + equalization or smoothing, other ranges and bias correction
high      + AdaRound on the most sensitive segments

Samples are cut into two halves: what is calibrated on one is judged on the other, by the loss of
the outputs as `assess.judge` sees it. Sketches merge, so what is kept is calibrated on both in the
end, and its figure in the result comes from holdout samples that neither has. What is kept is a
recipe that gives the same model again.
"""

from bitwright.jobs.effort.levels import EFFORTS, Effort, check_effort, standard_effort
from bitwright.jobs.effort.search import (
    Step,
    plan_with_effort,
    plans_by_ranges,
    quantize_with_effort,
)

__all__ = [
    "EFFORTS",
    "Effort",
    "Step",
    "check_effort",
    "plan_with_effort",
    "plans_by_ranges",
    "quantize_with_effort",
    "standard_effort",
]
