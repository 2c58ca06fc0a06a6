import os

import pytest

from bitwright.errors import ArgumentError, ModelError
from bitwright.support.input_limits import check_limit, current_limits, input_limits, read_limits


def test_limits_end_with_their_block_and_add_to_those_outside():
    before = current_limits()
    with input_limits(nodes=7), input_limits(nesting=3):
        assert (current_limits().nodes, current_limits().nesting) == (7, 3)
    assert current_limits() == before
    assert "BITWRIGHT_LIMITS" not in os.environ


def test_the_environment_sets_limits(monkeypatch):
    monkeypatch.setenv("BITWRIGHT_LIMITS", "elements=5")
    with input_limits(nodes=7):
        assert (current_limits().elements, current_limits().nodes) == (5, 7)
    assert os.environ["BITWRIGHT_LIMITS"] == "elements=5"


@pytest.mark.parametrize("text", ["nodes", "nodes=", "nodes=-1", "nodes=0", "nodes=1.5", "nodes=x"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ArgumentError, match=r"is not NAME=NUMBER; write nodes=2000000\."):
        read_limits(text)


def test_an_unknown_limit_is_refused():
    with pytest.raises(ArgumentError, match=r"there is no limit 'node'\. Did you mean 'nodes'\?"):
        read_limits("node=5")


def test_a_limit_itself_is_allowed_and_the_sentence_names_the_remedy():
    check_limit("nesting", current_limits().nesting, "it", ModelError)
    with pytest.raises(ModelError, match=r"--limits nesting=99 \(in Python: .*nesting=99\)\)"):
        check_limit("nesting", 99, "it", ModelError)
