"""The names of `onnxruntime.quantization.execution_providers.qnn` and where each is defined."""

from .preprocess import qnn_preprocess_model as qnn_preprocess_model
from .quant_config import get_qnn_qdq_config as get_qnn_qdq_config
