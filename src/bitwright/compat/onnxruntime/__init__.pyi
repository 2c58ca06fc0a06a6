"""The names of `onnxruntime.quantization` and where each is defined."""

from .cache import load_tensors_data as load_tensors_data
from .cache import save_tensors_data as save_tensors_data
from .calibrate import CalibraterBase as CalibraterBase
from .calibrate import MinMaxCalibrater as MinMaxCalibrater
from .calibrate import TensorData as TensorData
from .calibrate import TensorsData as TensorsData
from .calibrate import create_calibrator as create_calibrator
from .cuda_quantizer import CudaQuantizer as CudaQuantizer
from .dynamic import quantize_dynamic as quantize_dynamic
from .enums import CalibrationMethod as CalibrationMethod
from .enums import QuantFormat as QuantFormat
from .enums import QuantizationMode as QuantizationMode
from .enums import QuantType as QuantType
from .qat import quantize_qat as quantize_qat
from .qdq_quantizer import QDQQuantizer as QDQQuantizer
from .quant_utils import write_calibration_table as write_calibration_table
from .quantize import DynamicQuantConfig as DynamicQuantConfig
from .quantize import StaticQuantConfig as StaticQuantConfig
from .quantize import get_qdq_config as get_qdq_config
from .quantize import quantize as quantize
from .readers import CalibrationDataReader as CalibrationDataReader
from .shape_inference import quant_pre_process as quant_pre_process
from .static import quantize_static as quantize_static
