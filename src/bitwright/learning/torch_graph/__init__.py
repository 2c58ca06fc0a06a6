"""A small executor of ONNX graphs in torch, for segments that learn (needs torch)."""

from __future__ import annotations

from bitwright.learning.torch_graph.executor import TorchGraph
from bitwright.learning.torch_graph.movement import as_tensor
from bitwright.learning.torch_graph.table import OPS, why_not

__all__ = ["OPS", "TorchGraph", "as_tensor", "why_not"]
