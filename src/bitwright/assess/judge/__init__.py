"""The judge of quantized models: losses per output and part."""

from bitwright.assess.judge.bootstrap import Interval, mean_interval
from bitwright.assess.judge.judgement import (
    Judge,
    Judgement,
    OutputJudge,
    OutputJudgement,
    PartJudgement,
)
from bitwright.assess.judge.kinds import Kind

__all__ = [
    "Interval",
    "Judge",
    "Judgement",
    "Kind",
    "OutputJudge",
    "OutputJudgement",
    "PartJudgement",
    "mean_interval",
]
