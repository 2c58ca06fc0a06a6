"""What `jobs` and `api` use of this package, and where it is defined."""

from .bench import Benchmark as Benchmark
from .bench import ModelBenchmark as ModelBenchmark
from .bench import bench_models as bench_models
from .comparison import Comparison as Comparison
from .comparison import NodeComparison as NodeComparison
from .comparison import TensorComparison as TensorComparison
from .comparison import compare_models as compare_models
from .comparison import match_weights as match_weights
from .comparison import name_unit as name_unit
from .comparison import open_units as open_units
from .inspection import Inspection as Inspection
from .inspection import inspect_model as inspect_model
from .outputs import OutputComparison as OutputComparison
from .outputs import compare_outputs as compare_outputs
from .sensitivity import NodeSensitivity as NodeSensitivity
from .sensitivity import Proposal as Proposal
from .sensitivity import Sensitivity as Sensitivity
from .sensitivity import measure_variants as measure_variants
from .sums import decibels as decibels
from .sums import signal_and_noise as signal_and_noise
from .verification import Finding as Finding
from .verification import Verification as Verification
from .verification import verify_model as verify_model
