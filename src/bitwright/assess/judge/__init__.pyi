"""The names of this package and where each is defined."""

from .judgement import Judge as Judge
from .judgement import Judgement as Judgement
from .judgement import OutputJudge as OutputJudge
from .judgement import OutputJudgement as OutputJudgement
from .judgement import PartJudgement as PartJudgement
from .kinds import Kind as Kind
from .sequential import Interval as Interval
from .sequential import mean_interval as mean_interval
