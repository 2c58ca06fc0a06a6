"""The names of `vai_q_onnx` and where each is defined."""

from .enums import CalibrationDataReader as CalibrationDataReader
from .enums import CalibrationMethod as CalibrationMethod
from .enums import ExtendedCalibrationMethod as ExtendedCalibrationMethod
from .enums import ExtendedQuantFormat as ExtendedQuantFormat
from .enums import ExtendedQuantType as ExtendedQuantType
from .enums import Int16Method as Int16Method
from .enums import LayerWiseMethod as LayerWiseMethod
from .enums import PowerOfTwoMethod as PowerOfTwoMethod
from .enums import QuantFormat as QuantFormat
from .enums import QuantType as QuantType
from .enums import VitisQuantFormat as VitisQuantFormat
from .enums import VitisQuantType as VitisQuantType
from .runtime_functions import quant_pre_process as quant_pre_process
from .runtime_functions import quantize_dynamic as quantize_dynamic
from .runtime_functions import shape_inference as shape_inference
from .static import quantize_static as quantize_static
