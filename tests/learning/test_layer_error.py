"""The error of a layer from its second moments, against the layer itself."""

from __future__ import annotations

import itertools

import onnx_ir as ir
import pytest
from support.models import normal

torch = pytest.importorskip("torch", reason="learning is torch code")

from bitwright.learning import layer_error  # noqa: E402
from bitwright.learning.layer_error import GramError, SampledError  # noqa: E402
from bitwright.learning.layer_error import layer_error as make_error  # noqa: E402
from bitwright.learning.torch_graph.attributes import Attributes  # noqa: E402
from bitwright.learning.torch_graph.table import OPS  # noqa: E402

LAYERS = {
    "conv": ("Conv", {"pads": [1, 0, 2, 1], "strides": [2, 1]}, (2, 3, 7, 6), (4, 3, 3, 2)),
    "grouped": ("Conv", {"group": 2, "dilations": [2, 1]}, (2, 4, 7, 6), (6, 2, 3, 2)),
    "depthwise": ("Conv", {"group": 4, "auto_pad": "SAME_UPPER"}, (2, 4, 5, 6), (4, 1, 3, 3)),
    "conv1d": ("Conv", {"strides": [2]}, (2, 3, 9), (4, 3, 4)),
    "conv3d": ("Conv", {"pads": [1] * 6}, (1, 2, 3, 4, 3), (3, 2, 3, 3, 3)),
    "tiles": ("ConvTranspose", {"strides": [2, 3]}, (2, 4, 3, 2), (4, 5, 2, 3)),
    "grouped tiles": ("ConvTranspose", {"strides": [2], "group": 2}, (2, 4, 3), (4, 3, 2)),
    "gemm": ("Gemm", {"alpha": 0.5}, (5, 6), (6, 4)),
    "gemm, transposed": ("Gemm", {"transA": 1, "transB": 1}, (6, 5), (4, 6)),
    "matmul": ("MatMul", {}, (2, 3, 6), (6, 4)),
}


def tensor(*shape, seed):
    return torch.from_numpy(normal(*shape, seed=seed)).double()


def layer_of(case):
    op_type, options, x_shape, w_shape = LAYERS[case]
    attributes = Attributes(ir.node(op_type, [], options), 21)
    samples = [tensor(*x_shape, seed=seed) for seed in (1, 2)]
    weight, change = tensor(*w_shape, seed=3), 0.1 * tensor(*w_shape, seed=4)
    return op_type, attributes, samples, weight, change


@pytest.mark.parametrize("case", LAYERS)
def test_the_gradient_is_that_of_the_layer(case):
    op_type, attributes, samples, weight, change = layer_of(case)
    layer = make_error(attributes, weight)
    assert isinstance(layer, GramError)
    run = OPS[op_type]
    targets = [run(attributes, x, weight) + tensor(1, seed=5) for x in samples]
    for x, target in zip(samples, targets, strict=True):
        layer.add(x, target - run(attributes, x, weight))
    moved = (weight + change).requires_grad_()
    channels = {"grouped": 6, "conv3d": 3, "tiles": 5 * 2 * 3, "grouped tiles": 6 * 2}.get(case, 4)
    rows = sum(target.numel() for target in targets) / channels
    pairs = list(zip(samples, targets, strict=True))
    error = sum((run(attributes, x, moved) - target).square().sum() for x, target in pairs) / rows
    torch.testing.assert_close(layer.gradient(change), torch.autograd.grad(error, moved)[0])
    start = sum((run(attributes, x, weight) - target).square().sum() for x, target in pairs) / rows
    assert layer.error == pytest.approx(float(start))
    excess = layer.excess(change, layer.gradient(change))
    assert excess == pytest.approx(float(error.detach() - start))


def test_wide_layers_see_some_rows_at_each_step(monkeypatch):
    monkeypatch.setattr(layer_error, "MAX_GRAM_WIDTH", 4)
    _, attributes, samples, weight, change = layer_of("matmul")
    layer = make_error(attributes, weight)
    for x in samples:
        layer.add(x, x @ (0.5 * change))
    generator = torch.Generator().manual_seed(0)
    steps = [layer.gradient(change, generator) for _ in range(200)]
    assert not torch.equal(steps[0], steps[1])
    rows = torch.cat(samples).reshape(-1, 6)
    expected = rows.T @ rows @ change / len(rows)
    torch.testing.assert_close(sum(steps) / 200, expected, rtol=0.05, atol=0.05)


def test_no_more_samples_are_taken_than_say_something_new(monkeypatch):
    monkeypatch.setattr(layer_error, "ROWS", 10)
    monkeypatch.setattr(layer_error, "ROWS_PER_WEIGHT", 2)
    _, attributes, samples, weight, _ = layer_of("matmul")
    layer = make_error(attributes, weight)
    layer.add(samples[0], torch.zeros(2, 3, 4).double())
    assert not layer.is_full
    layer.add(samples[1], torch.zeros(2, 3, 4).double())
    assert layer.is_full


def test_depthwise_convolutions_have_the_gradients_of_torch():
    from bitwright.learning.torch_graph.windows import depthwise_conv

    for strides, pads in (([1, 1], [1, 1]), ([2, 1], [0, 2]), ([1, 1], [3, 0])):
        x, w, b = (tensor(*s, seed=i) for i, s in enumerate([(2, 3, 7, 6), (3, 1, 3, 2), (3,)]))
        for t in (x, w, b):
            t.requires_grad_()
        ours = depthwise_conv(x, w, b, strides, pads)
        torchs = torch.nn.functional.conv2d(x, w, b, strides, pads, 1, 3)
        torch.testing.assert_close(ours, torchs)
        gradients = [torch.autograd.grad((y**2).sum(), (x, w, b)) for y in (ours, torchs)]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("case", LAYERS)
def test_after_coordinate_descent_no_single_weight_would_lower_the_error(case):
    op_type, attributes, samples, weight, _ = layer_of(case)
    layer, run = make_error(attributes, weight), OPS[op_type]
    for x in samples:
        layer.add(x, run(attributes, x, 0.3 * tensor(*weight.shape, seed=6)))
    step = torch.full_like(weight, 0.25)
    up = tensor(*weight.shape, seed=7) > 0
    free = tensor(*weight.shape, seed=8) > -1

    def error(chosen):
        change = (chosen.double() - 0.5) * step
        return layer.excess(change, layer.gradient(change))

    flipped = layer.coordinate_descent((up.double() - 0.5) * step, up, step, free)
    assert torch.equal(flipped[~free], up[~free])
    reached = error(flipped)
    assert reached < error(up)
    for index in range(weight.numel()):
        other = flipped.clone().reshape(-1)
        other[index] = ~other[index]
        if free.reshape(-1)[index]:
            assert error(other.reshape(flipped.shape)) >= reached - 1e-12


def test_few_rows_say_little_about_how_inputs_go_together():
    _, attributes, samples, weight, _ = layer_of("matmul")
    few, many = make_error(attributes, weight), make_error(attributes, weight)
    for layer, repeats in ((few, 1), (many, 1000)):
        x = torch.cat(samples).repeat(repeats, 1, 1)
        layer.add(x, torch.ones(*x.shape[:-1], 4, dtype=torch.double))
    change = tensor(*weight.shape, seed=9)
    before = [layer.gradient(change) for layer in (few, many)]
    torch.testing.assert_close(*before)
    for layer in (few, many):
        layer.finish(torch.zeros_like(weight))
    moved = [
        (layer.gradient(change) - old).norm()
        for layer, old in zip((few, many), before, strict=True)
    ]
    assert moved[1] < 0.01 * moved[0]


@pytest.mark.parametrize("case", LAYERS)
def test_a_bias_that_follows_takes_the_means_over(case, monkeypatch):
    monkeypatch.setattr(layer_error, "CORRELATED_ROWS", 1e-12)  # moments are taken as they are
    op_type, attributes, samples, weight, change = layer_of(case)
    layer, run = make_error(attributes, weight, learns_bias=True), OPS[op_type]
    is_image = op_type in ("Conv", "ConvTranspose")
    channels = 1 if is_image else -1
    targets = [run(attributes, x, weight) + 0.3 + tensor(1, seed=5) for x in samples]
    targets = [target + 0.1 * tensor(*target.shape, seed=6) for target in targets]
    for x, target in zip(samples, targets, strict=True):
        layer.add(x, target - run(attributes, x, weight))
    layer.finish(torch.zeros_like(weight))

    def residual(weights):
        residuals = [
            target - run(attributes, x, weights) for x, target in zip(samples, targets, strict=True)
        ]
        return torch.cat([each.movedim(channels, 0).flatten(1) for each in residuals], dim=1)

    bias = layer.bias(change)
    torch.testing.assert_close(bias, residual(weight + change).mean(dim=1))
    moved = (weight + change).requires_grad_()
    places = residual(weight).shape[1]
    if op_type == "ConvTranspose":
        places //= weight[0, 0].numel()  # a row for each place that is read
    else:
        residuals = residual(moved)
        error = (residuals - residuals.mean(dim=1, keepdim=True)).square().sum() / places
        torch.testing.assert_close(layer.gradient(change), torch.autograd.grad(error, moved)[0])
    layer.fix_bias(bias)
    error = (residual(moved) - bias[:, None]).square().sum() / places
    torch.testing.assert_close(layer.gradient(change), torch.autograd.grad(error, moved)[0])


def test_where_samples_say_nothing_weights_stay_near_to_float():
    _, attributes, samples, weight, lost = layer_of("matmul")
    layer = make_error(attributes, weight)
    layer.add(samples[0][:1, :1], torch.zeros(1, 1, 4).double())
    layer.finish(lost)
    still = layer.gradient(torch.zeros_like(weight))
    # Down the slope is the way to what the weights were.
    assert float((still * lost).sum()) < 0
    assert layer.gradient(lost).norm() < still.norm()


@pytest.mark.parametrize("seed", range(5))
def test_gptq_comes_close_to_the_best_of_all_roundings(seed):
    """Of each output every rounding is tried."""
    inputs, outputs = 8, 3
    # Inputs that go together, so that one weight can make up for another.
    x = tensor(60, inputs, seed=seed) + 2 * tensor(60, 1, seed=seed + 50)
    weight = tensor(inputs, outputs, seed=seed + 99)
    layer = make_error(Attributes(ir.node("MatMul", []), 21), weight)
    layer.add(x, 0 * x @ weight)
    step = torch.full_like(weight, 0.5)
    lower = torch.floor(weight / step) * step - weight
    nearest, free = lower < -step / 2, torch.ones_like(weight, dtype=torch.bool)

    def errors(up):
        return (x @ (lower + up * step)).square().sum(dim=0)

    chosen = layer.round_by_gptq(lower, nearest, step, free)
    flipped = layer.coordinate_descent(lower + chosen * step, chosen, step, free)
    ways = torch.tensor(list(itertools.product([False, True], repeat=inputs)))
    best = (
        torch.stack([errors(way[:, None].expand(inputs, outputs)) for way in ways])
        .min(dim=0)
        .values
    )
    assert (errors(flipped) <= errors(chosen)).all()
    gained, possible = (errors(nearest).sum() - found.sum() for found in (errors(flipped), best))
    assert gained >= 0.8 * possible > 0
    # What is not free stays.
    few = free.clone()
    few[::2] = False
    some = layer.round_by_gptq(lower, nearest, step, few)
    assert (some == nearest)[::2].all() and (errors(some) <= errors(nearest)).any()


@pytest.mark.parametrize("block", [1, 7, 24])
def test_gptq_in_blocks_chooses_what_it_chooses_one_by_one(monkeypatch, block):
    x, weight = tensor(90, 24, seed=1) + tensor(90, 1, seed=2), tensor(24, 5, seed=3)
    layer = make_error(Attributes(ir.node("MatMul", []), 21), weight)
    layer.add(x, 0 * x @ weight)
    step = torch.full_like(weight, 0.5)
    lower = torch.floor(weight / step) * step - weight
    nearest, free = lower < -step / 2, tensor(24, 5, seed=4) > -1
    whole = layer.round_by_gptq(lower, nearest, step, free)
    monkeypatch.setattr("bitwright.learning.layer_error.BLOCK", block)
    assert torch.equal(layer.round_by_gptq(lower, nearest, step, free), whole)
    assert not torch.equal(whole, nearest)


def test_gptq_leaves_layers_whose_inputs_are_not_finite():
    op_type, attributes, samples, weight, _ = layer_of("matmul")
    layer = make_error(attributes, weight)
    samples[0][0, 0, 0] = float("inf")
    layer.add(samples[0], OPS[op_type](attributes, samples[1], weight))
    up = torch.zeros_like(weight, dtype=torch.bool)
    assert layer.round_by_gptq(0 * weight, up, 0 * weight + 1, ~up) is up


def test_gptq_takes_channels_that_are_copies_of_each_other():
    x = tensor(40, 1, seed=3).expand(40, 12) * 1e3
    weight = tensor(12, 2, seed=4)
    layer = make_error(Attributes(ir.node("MatMul", []), 21), weight)
    layer.add(x, 0 * x @ weight)
    # As after sums in single precision, which are no longer positive definite.
    layer._second_moment[0, 0, 1:] *= 1 + 1e-4
    step = torch.full_like(weight, 0.5)
    lower = torch.floor(weight / step) * step - weight
    nearest, free = lower < -step / 2, torch.ones_like(weight, dtype=torch.bool)
    chosen = layer.round_by_gptq(lower, nearest, step, free)
    errors = [(x @ (lower + up * step)).square().sum() for up in (chosen, nearest)]
    assert errors[0] <= errors[1]


def test_gptq_takes_channels_whose_sums_cancel_out():
    """As of a kernel of 5 x 5 over pictures of 2 x 2, of which most inputs are padding."""
    _, attributes, samples, weight, _ = layer_of("depthwise")
    free = torch.ones_like(weight, dtype=torch.bool)

    def rounded(*, broken):
        layer = make_error(attributes, weight)
        layer.add(samples[0], tensor(2, 4, 5, 6, seed=5))
        if broken:
            layer._second_moment[1] = 0
            layer._second_moment[1, [0, 1], [0, 1]] = torch.tensor([-1e-9, 1e-9]).double()
        return layer.round_by_gptq(0 * weight - 0.5, ~free, 0 * weight + 1, free)

    found, wanted = rounded(broken=True), rounded(broken=False)
    others = [0, 2, 3]
    assert torch.equal(found[others], wanted[others])
    assert wanted[others].any()
    assert wanted[1].any()
    assert not found[1].any()


def test_wide_layers_have_no_second_moment(monkeypatch):
    _, attributes, _, weight, _ = layer_of("matmul")
    monkeypatch.setattr(layer_error, "MAX_GRAM_WIDTH", 2)
    assert isinstance(make_error(attributes, weight), SampledError)
