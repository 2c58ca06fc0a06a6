"""Constants that learn together: by name, each with its own parameters and rate."""

import pytest

torch = pytest.importorskip("torch", reason="learning needs torch")

from bitwright.learning.learner import LearnedConstant, Learner  # noqa: E402


class Rounded(LearnedConstant):
    """A tensor that is rounded straight through."""

    def __init__(self, name, value):
        self.name, self.value = name, torch.tensor(value, requires_grad=True)

    def parameter_groups(self, learning_rate):
        return [([self.value], 0.5 if learning_rate is None else learning_rate)]

    def soft(self):
        rounded = self.value + (self.value.round() - self.value).detach()
        return {self.name: rounded}


def learner():
    return Learner({name: Rounded(name, value) for name, value in (("a", 0.6), ("b", 2.2))})


def test_names_choose_constants_and_those_of_others_are_passed_over():
    one = learner()
    assert [float(t.detach()) for t in one.soft().values()] == [1.0, 2.0]
    assert set(one.soft(["b", "elsewhere"])) == {"b"} == set(one.hard(["b"]))
    assert [rate for _, rate in one.parameter_groups(None)] == [0.5, 0.5]
    assert [rate for _, rate in one.parameter_groups(0.1, ["a"])] == [0.1]
    assert len(one.parameters()) == 2


def test_what_is_stored_has_no_gradient():
    one = learner()
    assert one.soft()["a"].requires_grad and not one.hard()["a"].requires_grad


def test_the_gradient_of_a_layer_reaches_the_parameter_as_it_is():
    one = learner()
    seen = []

    def gradient_at(weight):
        seen.append(float(weight))
        return torch.tensor(3.0)

    one.constants["a"].backpropagate(0.0, gradient_at)
    assert seen == [1.0]  # as it is stored
    assert float(one.constants["a"].value.grad) == 3.0
    one.optimizer(one.parameter_groups(0.1)).step()
    assert float(one.constants["a"].value.detach()) == pytest.approx(0.5)  # Adam: one rate
