"""CNNs on AMD's NPU, which applies scales by shifting."""

from bitwright.numerics.types import INT8, UINT8
from bitwright.targets.npu_limits import LIMIT_RULES
from bitwright.targets.target import Target

__all__ = ["NPU_CNN"]

NPU_CNN = Target(
    name="npu-cnn",
    description="CNNs on AMD's NPU: 8 bits, power-of-two scales, within its limits.",
    recipe="npu-cnn",
    op_types=tuple(
        "Add ArgMax AveragePool Clip Concat Conv ConvTranspose DepthToSpace Div "
        "EmbedLayerNormalization Erf Gather Gelu Gemm GlobalAveragePool HardSigmoid "
        "InstanceNormalization LayerNormalization LeakyRelu LpNormalization MatMul Max MaxPool Min "
        "Mul PRelu Pad ReduceMean Relu Reshape Resize Sigmoid Slice Softmax SpaceToDepth Split "
        "Squeeze Sub Tanh Transpose Unsqueeze Where".split()
    ),
    modes=("static",),
    formats=("qdq", "extended", "fix-neuron"),
    types=(INT8, UINT8),
    per_tensor=True,
    power_of_two=True,
    fixed_shapes=True,
    limits=LIMIT_RULES,
)
