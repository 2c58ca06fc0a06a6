"""The verbs and where each is defined."""

from .assessment import bench as bench
from .assessment import bench_generation as bench_generation
from .assessment import compare as compare
from .assessment import find_sensitivity as find_sensitivity
from .assessment import inspect as inspect
from .assessment import verify as verify
from .assessment import verify_targets as verify_targets
from .publishing import publish as publish
from .quantization import apply_plan as apply_plan
from .quantization import import_qat as import_qat
from .quantization import make_plan as make_plan
from .quantization import preprocess as preprocess
from .quantization import quantize as quantize
from .quantization import read_encodings as read_encodings
from .quantization import retarget as retarget
from .quantization import write_encodings as write_encodings
from .recipes import load_recipe as load_recipe
from .tuning import check as check
from .tuning import tune as tune
