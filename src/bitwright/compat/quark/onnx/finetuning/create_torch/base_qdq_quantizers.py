"""`quark.onnx.finetuning.create_torch.base_qdq_quantizers`."""

from bitwright.compat.quark.finetuning.create_torch.base_qdq_quantizers import *  # noqa: F403
