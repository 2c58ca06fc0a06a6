"""The judge of quantized models: losses per output and part, and whether a change helped."""

from bitwright.assess.judge.bootstrap import Difference, Interval, compare_losses, mean_interval
from bitwright.assess.judge.judgement import (
    Judge,
    Judgement,
    OutputJudge,
    OutputJudgement,
    PartJudgement,
)
from bitwright.assess.judge.kinds import Kind

__all__ = [
    "Difference",
    "Interval",
    "Judge",
    "Judgement",
    "Kind",
    "OutputJudge",
    "OutputJudgement",
    "PartJudgement",
    "compare_losses",
    "mean_interval",
]
