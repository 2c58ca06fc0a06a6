"""The names of NNCF and where each is defined."""

from .dataset import Dataset as Dataset
from .errors import ParameterNotSupportedError as ParameterNotSupportedError
from .errors import ValidationError as ValidationError
from .parameters import BackupMode as BackupMode
from .parameters import CompressionFormat as CompressionFormat
from .parameters import CompressWeightsMode as CompressWeightsMode
from .parameters import DropType as DropType
from .parameters import ModelType as ModelType
from .parameters import QuantizationMode as QuantizationMode
from .parameters import QuantizationPreset as QuantizationPreset
from .parameters import SensitivityMetric as SensitivityMetric
from .parameters import TargetDevice as TargetDevice
from .quantization.accuracy_control import (
    quantize_with_accuracy_control as quantize_with_accuracy_control,
)
from .quantization.advanced_parameters import AdvancedAWQParameters as AdvancedAWQParameters
from .quantization.advanced_parameters import (
    AdvancedBiasCorrectionParameters as AdvancedBiasCorrectionParameters,
)
from .quantization.advanced_parameters import (
    AdvancedCompressionParameters as AdvancedCompressionParameters,
)
from .quantization.advanced_parameters import AdvancedGPTQParameters as AdvancedGPTQParameters
from .quantization.advanced_parameters import (
    AdvancedQuantizationParameters as AdvancedQuantizationParameters,
)
from .quantization.advanced_parameters import (
    AdvancedScaleEstimationParameters as AdvancedScaleEstimationParameters,
)
from .quantization.advanced_parameters import (
    AdvancedSmoothQuantParameters as AdvancedSmoothQuantParameters,
)
from .quantization.advanced_parameters import GroupSizeFallbackMode as GroupSizeFallbackMode
from .quantization.advanced_parameters import OverflowFix as OverflowFix
from .quantization.quantize_model import quantize as quantize
from .quantization.weight_compression import compress_weights as compress_weights
from .scopes import IgnoredScope as IgnoredScope
from .scopes import Subgraph as Subgraph
