"""The names of `onnxruntime.quantization.execution_providers.qnn` and where each is defined."""

from .quant_config import get_qnn_qdq_config as get_qnn_qdq_config
