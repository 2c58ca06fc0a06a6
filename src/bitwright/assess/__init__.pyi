"""What `jobs` and `api` use of this package, and where it is defined."""

from .bench import BenchRequest as BenchRequest
from .bench import bench_models as bench_models
from .bench.generation import GenerationRequest as GenerationRequest
from .bench.generation import bench_generation as bench_generation
from .bench.generation import is_decoder as is_decoder
from .bench.generation_results import GenerationBenchmark as GenerationBenchmark
from .bench.generation_results import ModelGeneration as ModelGeneration
from .bench.results import Benchmark as Benchmark
from .bench.results import ModelBenchmark as ModelBenchmark
from .comparison.nodes import name_unit as name_unit
from .comparison.results import Comparison as Comparison
from .comparison.results import NodeComparison as NodeComparison
from .comparison.results import TensorComparison as TensorComparison
from .comparison.side_by_side import PairRun as PairRun
from .comparison.side_by_side import compare_models as compare_models
from .comparison.side_by_side import open_units as open_units
from .inspection import Inspection as Inspection
from .inspection import inspect_model as inspect_model
from .outputs import OutputComparison as OutputComparison
from .outputs import compare_outputs as compare_outputs
from .sensitivity.measurement import measure_variants as measure_variants
from .sensitivity.results import NodeSensitivity as NodeSensitivity
from .sensitivity.results import Proposal as Proposal
from .sensitivity.results import Sensitivity as Sensitivity
from .sums import decibels as decibels
from .sums import signal_and_noise as signal_and_noise
