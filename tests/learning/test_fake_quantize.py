"""The quantizers that learn: their values against ONNX Runtime, their gradients against maths."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto
from support.models import FLOAT, FLOAT16, build, info, node, run

from bitwright.numerics.types import BFLOAT16, INT8, INT16, UINT8, UINT16
from bitwright.numerics.types import FLOAT16 as HALF

torch = pytest.importorskip("torch", reason="the learning quantizers are torch code")

from bitwright.compat.quark.finetuning.create_torch import (  # noqa: E402
    base_qdq_quantizers as compat,
)
from bitwright.learning import fake_quantize as core  # noqa: E402

ONNX = {
    INT8: TensorProto.INT8,
    UINT8: TensorProto.UINT8,
    INT16: TensorProto.INT16,
    UINT16: TensorProto.UINT16,
}
LOW, HIGH = torch.tensor(-128.0), torch.tensor(127.0)


def values(shape, seed=0):
    """Normal numbers of many sizes, ties, both zeros, the ends of the range and beyond."""
    rng = np.random.default_rng(seed)
    array = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 6, shape)).astype(np.float32)
    edges = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 127.5, -128.5, 1e30, -1e30, 32767.5, 1e-40]
    array.reshape(-1)[: len(edges)] = edges
    return array


def parameters(qtype, channels, seed=0):
    rng = np.random.default_rng(seed)
    scale = np.asarray(2.0 ** rng.uniform(-6, 4, channels), np.float32)
    scale.reshape(-1)[0] = 1.0
    low, high = (0, 40) if not qtype.signed else (-20, 20)
    return scale, np.asarray(rng.integers(low, high, channels), qtype.dtype)


def in_runtime(op, array, scale, zero, qtype, axis):
    """Return what ONNX Runtime's own operator gives."""
    floats = FLOAT16 if array.dtype == np.float16 or scale.dtype == np.float16 else FLOAT
    kinds = (floats, ONNX[qtype]) if op == "QuantizeLinear" else (ONNX[qtype], floats)
    model = build(
        [node(op, ["x", "s", "z"], ["y"], **({} if axis is None else {"axis": axis}))],
        [info("x", array.shape, kinds[0])],
        [info("y", array.shape, kinds[1])],
        {"s": scale, "z": zero},
        opset=21,
        ir_version=10,
    )
    return run(model, {"x": array})[0]


def quantizer(scale, zero, qtype, axis):
    bounds = (torch.tensor(float(end)) for end in (qtype.lowest, qtype.highest))
    zeros = torch.from_numpy(zero.astype(np.int64))
    return compat.INTQuantizer(torch.tensor(scale), zeros, *bounds, ch_axis=axis or 0)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("qtype", ONNX, ids=str)
def test_values_are_those_of_the_runtime_bit_for_bit(qtype, axis, half):
    array = values((4, 6, 5), seed=3)
    scale, zero = parameters(qtype, () if axis is None else array.shape[axis], seed=4)
    if half:
        array, scale = np.clip(array, -6e4, 6e4).astype(np.float16), scale.astype(np.float16)
    ours = quantizer(scale, zero, qtype, axis)
    integers = in_runtime("QuantizeLinear", array, scale, zero, qtype, axis)
    floats = in_runtime("DequantizeLinear", integers, scale, zero, qtype, axis)
    tensor = torch.from_numpy(array)
    np.testing.assert_array_equal(ours.quantize(tensor).numpy(), integers.astype(np.float32))
    given = torch.from_numpy(integers.astype(np.int64))
    np.testing.assert_array_equal(ours.dequantize(given).numpy(), floats)
    np.testing.assert_array_equal(ours(tensor).numpy(), floats)
    assert ours(tensor).dtype == tensor.dtype
    arguments = (ours.scale, ours.zero_point, ours.min_q, ours.max_q, compat.RoundHalfToEven)
    applied = compat.INTQuantFunction.apply(tensor, *arguments)
    np.testing.assert_array_equal(applied.numpy(), integers.astype(np.float32))
    applied = compat.INTDeQuantFunction.apply(applied, ours.scale, ours.zero_point)
    np.testing.assert_array_equal(applied.numpy(), floats)
    applied = compat.INTQuantDequantFunction.apply(tensor, *arguments)
    np.testing.assert_array_equal(applied.numpy(), floats)


@pytest.mark.parametrize(
    ("qtype", "dtype", "twin"),
    [(HALF, torch.float16, np.float16), (BFLOAT16, torch.bfloat16, ml_dtypes.bfloat16)],
    ids=str,
)
@pytest.mark.parametrize("axis", [None, 1])
def test_float_types_round_and_saturate_as_a_cast_does(qtype, dtype, twin, axis):
    array = values((4, 6, 5), seed=5)
    scale = np.float32(1) if axis is None else np.float32([1, 2, 0.5, 3, 1, 0.1])
    shaped = scale if axis is None else scale.reshape(1, 6, 1)
    ours = compat.FPQuantizer(
        torch.tensor(scale),
        torch.zeros_like(torch.tensor(scale)),
        torch.tensor(qtype.lowest),
        torch.tensor(qtype.highest),
        ch_axis=axis or 0,
        quant_type=dtype,
    )
    with np.errstate(over="ignore"):
        cast = np.clip(array / shaped, qtype.lowest, qtype.highest).astype(twin)
    assert ours.quantize(torch.from_numpy(array)).dtype == dtype
    np.testing.assert_array_equal(
        ours(torch.from_numpy(array)).numpy(), cast.astype(np.float32) * shaped
    )


# Gradients ------------------------------------------------------------------------------------


def gradient(output, tensor):
    (found,) = torch.autograd.grad(output.sum(), tensor)
    return found


def test_rounding_passes_the_gradient_on():
    x = torch.tensor([0.5, 1.5, -2.2], requires_grad=True)
    assert torch.equal(compat.RoundHalfToEven.apply(x), torch.tensor([0.0, 2.0, -2.0]))
    assert torch.equal(gradient(compat.RoundHalfToEven.apply(x) * 3, x), torch.full((3,), 3.0))


@pytest.mark.parametrize("function", [compat.INTQuantFunction, compat.INTQuantDequantFunction])
def test_functions_pass_the_gradient_straight_through(function):
    x = torch.tensor([-999.0, 0.3, 999.0], requires_grad=True)
    y = function.apply(x, torch.tensor(2.0), torch.tensor(3), LOW, HIGH, compat.RoundHalfToEven)
    assert torch.equal(gradient(y * 5, x), torch.full((3,), 5.0))


def test_dequantizing_has_its_true_derivative():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    scale = torch.rand(1, 4, dtype=torch.float64) + 0.5
    zero = torch.tensor(3.0, dtype=torch.float64)
    assert torch.autograd.gradcheck(compat.INTDeQuantFunction.apply, (x, scale, zero))


def test_modules_stop_the_gradient_outside_of_the_range():
    x = torch.tensor([-999.0, 0.3, 2.0, 999.0], requires_grad=True)
    module = compat.INTQuantizer(torch.tensor(2.0), torch.tensor(3), LOW, HIGH)
    assert gradient(module(x), x).tolist() == [0, 1, 1, 0]
    assert gradient(module.quantize(x), x).tolist() == [0, 0.5, 0.5, 0]


def test_scales_learn_as_a_learned_step_size():
    x = torch.tensor([-900.0, 0.3, 1.7, 900.0])
    scale = torch.tensor(0.5, requires_grad=True)
    y = core.fake_quantize(x, scale, torch.tensor(0), -128, 127)
    each = [torch.autograd.grad(part, scale, retain_graph=True)[0].item() for part in y]
    inside = [round(v / 0.5) - v / 0.5 for v in (0.3, 1.7)]
    assert each == pytest.approx([-128, *inside, 127])


def test_soft_rounding_has_its_true_derivative_and_starts_at_the_weight():
    fraction = torch.linspace(0, 0.99, 12, dtype=torch.float64)
    alpha = core.rounding_for(fraction)
    torch.testing.assert_close(core.soft_rounding(alpha), fraction)
    inner = alpha[1:].clone().requires_grad_()
    assert torch.autograd.gradcheck(core.soft_rounding, (inner,))


def test_adaround_learns_alpha_only_and_rounds_hard_in_the_end():
    weight = torch.tensor([[-3.0, 1.3, 0.4, 2.5]], requires_grad=True)
    module = compat.AdaroundINTQuantizer(torch.tensor(2.0), torch.tensor(3), LOW, HIGH)
    assert module.alpha is None
    module.initialize_alpha(weight)
    assert isinstance(module.alpha, torch.nn.Parameter) and module.alpha.shape == weight.shape
    soft = module(weight)
    torch.testing.assert_close(soft, weight)  # soft rounding starts at the float weight
    towards = torch.autograd.grad(soft.sum(), [weight, module.alpha])
    assert not towards[0].any()
    assert (towards[1] > 0).all()
    module.use_soft_rounding = False
    with torch.no_grad():
        module.alpha.copy_(torch.tensor([[-1.0, 1.0, 1.0, -1.0]]))
    assert module(weight).detach().tolist() == [[-4.0, 2.0, 2.0, 2.0]]
    assert [name for name, _ in module.named_parameters()] == ["alpha"]
    assert set(module.state_dict()) == {"alpha", "scale", "zero_point"}


def test_float_quantizers_pass_the_gradient_inside_of_the_range():
    x = torch.tensor([1.001, 7e4], requires_grad=True)
    one = torch.tensor(1.0)
    module = compat.FPQuantizer(one, one * 0, one * -65504, one * 65504, quant_type=torch.float16)
    assert gradient(module(x), x).tolist() == [1, 0]
