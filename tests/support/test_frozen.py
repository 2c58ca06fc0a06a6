"""Frozen dicts and lists are read as any other, and refuse every change."""

import copy
import json
import pickle

import pytest

from bitwright.support.frozen import FrozenDict, FrozenList, frozen

COPIES = [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]
VALUE = {"a": [1, {"b": 2}], "c": (3,)}


def test_a_frozen_value_is_equal_to_what_it_was_made_of():
    found = frozen(VALUE)
    assert found == VALUE and json.dumps(found) == json.dumps(VALUE)
    assert frozen(found) is found and frozen("text") == "text"
    assert found | {"d": 4} == {**VALUE, "d": 4} and type(found | {}) is dict


@pytest.mark.parametrize("copied", COPIES)
def test_copies_are_frozen_too(copied):
    found = copied(frozen(VALUE))
    assert found == VALUE and isinstance(found, FrozenDict)
    with pytest.raises(TypeError):
        found["a"] = 1


@pytest.mark.parametrize(
    "write",
    [
        lambda d, x: d.__setitem__("a", 1),
        lambda d, x: d.__delitem__("a"),
        lambda d, x: d.pop("a"),
        lambda d, x: d.popitem(),
        lambda d, x: d.clear(),
        lambda d, x: d.update(a=1),
        lambda d, x: d.setdefault("z", 1),
        lambda d, x: d.__ior__({}),
        lambda d, x: x.__setitem__(0, 1),
        lambda d, x: x.__delitem__(0),
        lambda d, x: x.append(1),
        lambda d, x: x.extend([1]),
        lambda d, x: x.insert(0, 1),
        lambda d, x: x.pop(),
        lambda d, x: x.remove(1),
        lambda d, x: x.clear(),
        lambda d, x: x.sort(),
        lambda d, x: x.reverse(),
        lambda d, x: x.__iadd__([1]),
        lambda d, x: x.__imul__(2),
    ],
)
def test_every_change_is_refused(write):
    found = frozen(VALUE)
    with pytest.raises(TypeError, match="belongs to a frozen value and cannot be changed"):
        write(found, found["a"])
    assert found == VALUE and isinstance(found["a"], FrozenList)
