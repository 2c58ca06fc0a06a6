"""Where accuracy is lost: a float and a quantized model, tensor by tensor, node by node."""

from bitwright.assess.comparison.comparing import compare_models, open_units
from bitwright.assess.comparison.describing import name_unit
from bitwright.assess.comparison.results import Comparison, NodeComparison, TensorComparison

__all__ = [
    "Comparison",
    "NodeComparison",
    "TensorComparison",
    "compare_models",
    "name_unit",
    "open_units",
]
