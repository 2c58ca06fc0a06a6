"""Learning on one small segment, against all roundings there are."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto
from support.models import build, info, node, normal

from bitwright.numerics.types import INT4
from bitwright.plan import Parameters
from bitwright.recipe import AdaQuant, AdaRound, LearningDetails

torch = pytest.importorskip("torch", reason="learning is torch code")

from bitwright.learning.adaquant import AdaQuantLearner  # noqa: E402
from bitwright.learning.adaround import AdaRoundLearner, Bias  # noqa: E402
from bitwright.learning.fake_quantize import FakeQuantizer, soft_rounding  # noqa: E402
from bitwright.learning.layer_error import SampledError  # noqa: E402
from bitwright.learning.reconstruction import reconstruct  # noqa: E402
from bitwright.learning.segment_target import SegmentTarget  # noqa: E402
from bitwright.learning.torch_graph.executor import TorchGraph  # noqa: E402

WEIGHT = normal(6, 1, seed=1)
PARAMETERS = Parameters(INT4, np.float64(0.5), np.int64(0))


def inputs(count=16, rows=1):
    """Inputs that go together, so that errors of weights can cancel out."""
    mixing = normal(6, 6, seed=2) + 1
    return [{"x": torch.from_numpy(normal(rows, 6, seed=9 + i) @ mixing)} for i in range(count)]


def target_of(samples, floats=None, **options):
    proto = build([node("MatMul", ["x", "w"], ["y"], name="it")], {"x": [None, 6]}, {"y": None},
                  {"w": WEIGHT})  # fmt: skip
    model = ir.serde.deserialize_model(proto)
    graph = TorchGraph(model.graph, ["y"], opset=17)
    nearest = quantizer().nearest(torch.from_numpy(WEIGHT))
    return SegmentTarget(graph, samples, floats or samples, fixed={"w": nearest}, **options)


def quantizer():
    return FakeQuantizer.of(PARAMETERS, WEIGHT.shape)


ALL_LEARN = LearningDetails(holdout_fraction=0)
UNSELECTIVE = LearningDetails(selective=False)


def learner_of(method, details=ALL_LEARN):
    weights = {"w": (torch.from_numpy(WEIGHT), quantizer())}
    if isinstance(method, AdaRound):
        return AdaRoundLearner(weights, method, details=details)
    return AdaQuantLearner(weights, method)


def learn(method, samples=None, details=ALL_LEARN):
    return reconstruct(target_of(samples or inputs()), learner_of(method), method, details)


def error_of(weight, samples):
    """Return the error of a weight in float64, so that equal weights have equal errors."""
    x = np.concatenate([sample["x"].numpy() for sample in samples]).astype(np.float64)
    return float(np.mean((x @ (np.asarray(weight, np.float64) - WEIGHT)) ** 2))


def all_errors(samples):
    """Return the error of each way to round every weight up or down."""
    floor = np.floor(WEIGHT / 0.5)
    ways = itertools.product([0, 1], repeat=6)
    return [error_of((floor + np.reshape(up, (6, 1))) * 0.5, samples) for up in ways]


def test_adaround_finds_one_of_the_best_roundings():
    outcome = learn(AdaRound(iterations=200, batch_size=16))
    errors = sorted(all_errors(inputs()))
    reached = error_of(outcome.constants["w"], inputs())
    assert outcome.after == pytest.approx(reached, rel=1e-6)  # a sum of float32 values
    assert reached <= errors[3] < 0.5 * outcome.before
    learned = outcome.constants["w"].numpy() / 0.5
    assert np.all((learned == np.floor(WEIGHT / 0.5)) | (learned == np.floor(WEIGHT / 0.5) + 1))


def test_adaquant_lowers_the_error_and_stays_on_the_grid():
    outcome = learn(AdaQuant(iterations=150, learning_rate=0.01, batch_size=16))
    assert outcome.after < 0.7 * outcome.before
    np.testing.assert_array_equal(
        outcome.constants["w"] * 2, torch.round(outcome.constants["w"] * 2)
    )


def test_scales_learn_where_they_may():
    method = AdaQuant(iterations=80, learning_rate=1e-3, scale_learning_rate=1e-2)
    learner = AdaQuantLearner({"w": (torch.from_numpy(WEIGHT), quantizer())}, method, ["w"])
    outcome = reconstruct(target_of(inputs()), learner, method, ALL_LEARN)
    assert outcome.after < outcome.before
    scale = learner.scales()["w"]
    assert scale != 0.5
    steps = outcome.constants["w"] / scale
    torch.testing.assert_close(steps, torch.round(steps), rtol=0, atol=1e-4)


def test_the_same_seed_learns_the_same_and_another_does_not():
    method = AdaQuant(iterations=20, learning_rate=0.01, batch_size=2)
    first, second = (learn(method, details=UNSELECTIVE) for _ in range(2))
    assert torch.equal(first.constants["w"], second.constants["w"])
    other = reconstruct(target_of(inputs()), learner_of(method), method, UNSELECTIVE, seed=1)
    assert other.before != first.before  # other samples are held out


def test_what_does_not_help_unseen_samples_is_not_kept():
    wild = AdaQuant(iterations=3, learning_rate=5.0)
    assert learn(wild, details=LearningDetails()).constants is None
    kept = learn(wild, details=UNSELECTIVE)
    assert kept.constants is not None and kept.after > kept.before


def test_learning_stops_early_where_nothing_gets_better():
    early = LearningDetails(holdout_fraction=0, early_stop=True)
    method = AdaQuant(iterations=50, learning_rate=1e-9, batch_size=16, layerwise_fraction=0)
    assert learn(method, details=early).steps <= 20
    patient = AdaQuant(iterations=50, learning_rate=1e-4, batch_size=16)
    assert learn(patient).steps == 50


def test_a_large_error_takes_the_other_learning_rate():
    method = AdaQuant(iterations=3, learning_rate=0.0)
    details = LearningDetails(selective=False, learning_rate_above=(0.0, 1.0))
    outcome = learn(method, details=details)
    assert outcome.after != outcome.before


def test_the_target_is_what_float_gives_for_float_inputs():
    floats = inputs()
    shifted = [{"x": sample["x"] * 1.1} for sample in floats]
    target = target_of(shifted, floats)
    exact = {"w": torch.from_numpy(WEIGHT) / 1.1}
    assert target.error(exact, torch.arange(target.count)) < 1e-9


def test_float_inputs_are_mixed_in_element_by_element():
    floats = inputs()
    broken = [{"x": torch.zeros_like(sample["x"])} for sample in floats]
    method = AdaQuant(iterations=30, learning_rate=0.01)
    learner = learner_of(method)
    mixing = LearningDetails(drop_ratio=0.0, holdout_fraction=0)
    reconstruct(target_of(broken, floats), learner, method, mixing)
    moved = learner.hard()["w"]
    blind = learner_of(method)
    reconstruct(target_of(broken, floats), blind, method, ALL_LEARN)
    assert not torch.equal(moved, blind.hard()["w"])
    assert torch.equal(blind.hard()["w"], quantizer().nearest(torch.from_numpy(WEIGHT)))


def test_samples_of_different_sizes_are_run_one_by_one():
    even, odd = inputs(4), inputs(4, rows=3)
    mixed = target_of([*even, *odd])
    assert mixed.rows == 0 and target_of(even).rows == 1 and target_of(odd).rows == 3
    apart = [target_of(part) for part in (even, odd)]
    errors = [target.error({}, torch.arange(4)) for target in apart]
    assert mixed.error({}, torch.arange(8)) == pytest.approx((errors[0] * 4 + errors[1] * 12) / 16)
    method = AdaQuant(iterations=10, learning_rate=0.01)
    assert reconstruct(mixed, learner_of(method), method, ALL_LEARN).steps == 10


def test_the_regularizer_grows_steeper_and_comes_after_the_warm_start():
    details = LearningDetails(warm_start=0.2, beta=(20.0, 2.0), regularization=1.0)
    learner = learner_of(AdaRound(iterations=100), details)
    assert learner.add_regularizer(0.19) is None
    flat, steep = learner.add_regularizer(0.2), learner.add_regularizer(0.99)
    assert 0 < steep < flat <= 1
    fraction = WEIGHT / 0.5 - np.floor(WEIGHT / 0.5)
    expected = np.mean(1 - np.abs(2 * fraction - 1) ** 20)
    assert flat.item() == pytest.approx(expected, rel=1e-3)


def test_the_gradient_of_the_regularizer_is_that_of_its_size():
    details = LearningDetails(warm_start=0.0, beta=(3.0, 3.0), regularization=7.0)
    learner = learner_of(AdaRound(), details)
    [alpha] = learner.parameter_groups(0.1)[0][0]
    learner.add_regularizer(0.5)
    given = alpha.grad.clone()
    up = soft_rounding(alpha)
    size = 7.0 * (1 - (2 * up - 1).abs() ** 3).mean()
    torch.testing.assert_close(given, torch.autograd.grad(size, alpha)[0])


def test_soft_weights_lie_between_their_integers_and_have_the_gradient_of_it():
    learner = learner_of(AdaRound())
    [alpha] = learner.parameter_groups(0.1)[0][0]
    soft = learner.soft()["w"]
    torch.testing.assert_close(soft, torch.from_numpy(WEIGHT))  # it begins where float is
    (given,) = torch.autograd.grad((soft**2).sum(), alpha)
    expected = torch.floor(torch.from_numpy(WEIGHT) / 0.5) * 0.5 + soft_rounding(alpha) * 0.5
    torch.testing.assert_close(given, torch.autograd.grad((expected**2).sum(), alpha)[0])


def test_weights_beyond_the_type_have_one_integer_only():
    weight = torch.tensor([[9.0], [-9.0], [3.4], [-3.9], [3.9], [0.2]])
    learner = AdaRoundLearner({"w": (weight, quantizer())}, AdaRound())
    expected = torch.tensor([[3.5], [-4.0], [3.5], [-4.0], [3.5], [0.0]])
    torch.testing.assert_close(learner.hard()["w"], expected)
    [alpha] = learner.parameter_groups(0.1)[0][0]
    learner.soft()["w"].sum().backward()
    learner.add_regularizer(0.9)
    assert alpha.grad[[0, 1, 4]].abs().max() == 0


def test_learning_layer_by_layer_is_a_start_that_is_learned_on_from():
    samples = inputs()
    options = {"iterations": 200, "batch_size": 16}
    outcomes = [
        learn(AdaRound(layerwise_fraction=part, **options), samples) for part in (0.0, 0.75, 1.0)
    ]
    reached = [error_of(outcome.constants["w"], samples) for outcome in outcomes]
    assert max(reached) <= sorted(all_errors(samples))[5]


def test_rates_are_in_steps_of_each_weight_unless_they_are_given():
    method = AdaQuant(iterations=1)
    small, large = (torch.from_numpy(WEIGHT) * size for size in (1e-3, 1e3))
    found = []
    for weight, size in ((small, 1e-3), (large, 1e3)):
        own = FakeQuantizer(torch.tensor(0.5 * size), torch.tensor(0), -8, 7)
        learner = AdaQuantLearner({"w": (weight, own)}, method)
        [(tensors, rate), _] = learner.parameter_groups(None)
        found.append((tensors[0].detach(), rate))
    torch.testing.assert_close(found[0], found[1])


def test_adam_moves_as_torch_does():
    from bitwright.learning.optimizers import Adam

    start = torch.from_numpy(normal(5, seed=3))
    ours, theirs = (start.clone().requires_grad_() for _ in range(2))
    own, reference = Adam([([ours], 0.05)]), torch.optim.Adam([theirs], lr=0.05)
    for _ in range(20):
        (ours.sin() + ours.square()).sum().backward()
        own.step()
        reference.zero_grad()
        (theirs.sin() + theirs.square()).sum().backward()
        reference.step()
    torch.testing.assert_close(ours, theirs)


def test_a_bias_makes_up_for_what_weights_leave_on_average():
    constants = {"w": WEIGHT, "b": np.zeros(1, np.float32)}
    proto = build([node("Gemm", ["x", "w", "b"], ["y"], name="it")], {"x": [None, 6]}, {"y": None},
                  constants)  # fmt: skip
    graph = TorchGraph(ir.serde.deserialize_model(proto).graph, ["y"], opset=17)
    samples = [{"x": sample["x"] + 2} for sample in inputs()]
    fixed = {"w": quantizer().nearest(torch.from_numpy(WEIGHT)), "b": torch.zeros(1)}
    weights = {"w": (torch.from_numpy(WEIGHT), quantizer())}
    coarse = FakeQuantizer(torch.tensor(0.25), torch.tensor(0), -128, 127)
    fine = FakeQuantizer(torch.tensor(1e-6), torch.tensor(0), -(2.0**31), 2.0**31 - 1)
    method = AdaRound(iterations=40, layerwise_fraction=1.0)
    errors = []
    for own in (None, coarse, fine):
        target = SegmentTarget(graph, samples, samples, fixed=fixed)
        biases = {} if own is None else {"w": Bias("b", fixed["b"], own)}
        learner = AdaRoundLearner(weights, method, biases)
        errors.append(reconstruct(target, learner, method, ALL_LEARN).after)
        if own is not None:
            steps = learner.hard()["b"] / own.scale
            torch.testing.assert_close(steps, torch.round(steps))
    assert errors[2] <= errors[1] <= errors[0]
    assert errors[2] < 0.9 * errors[0]


def test_layers_too_wide_for_a_second_moment_keep_their_roundings():
    learner = learner_of(AdaRound())
    before = learner.hard()["w"].clone()
    wide = SampledError.__new__(SampledError)
    assert learner.constants["w"].solve(wide, torch.from_numpy(WEIGHT)) is False
    torch.testing.assert_close(learner.hard()["w"], before)


def test_samples_are_not_stacked_where_one_input_says_where_to_cut():
    """Ends of a slice have one element, as the other input has one row; both are no sample."""
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="it"),
        node("Slice", ["h", "zero", "end", "last"], ["y"], name="cut"),
    ]
    constants = {"w": normal(6, 4), "zero": np.int64([0]), "last": np.int64([1])}
    ends = info("end", [1], TensorProto.INT64)
    model = ir.serde.deserialize_model(
        build(nodes, [info("x", [None, 6]), ends], [info("y", [None, None])], constants)
    )
    graph = TorchGraph(model.graph, ["y"], opset=17)
    samples = [sample | {"end": torch.tensor([3])} for sample in inputs(4)]
    target = SegmentTarget(graph, samples, samples, fixed={})
    assert (target.rows, len(target.targets)) == (0, 4)
