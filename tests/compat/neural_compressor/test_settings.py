"""`weight_config`: what single nodes get."""

import pytest
from support.neural_compressor import attributes, mlp

from bitwright.compat.neural_compressor.weight_only import (
    rtn_quantize,
)
from bitwright.errors import RecipeError


def test_weight_config_is_for_the_named_node_alone():
    config = {"fc1": {"bits": 8, "group_size": 64, "scheme": "sym", "algorithm": "RTN"}}
    found = rtn_quantize(mlp(), config)
    assert config == {"fc1": {"bits": 8, "group_size": 64, "scheme": "sym", "algorithm": "RTN"}}
    shown = attributes(found)
    assert (shown["fc1"]["bits"], shown["fc1"]["block_size"]) == (8, 64)
    assert (shown["fc2"]["bits"], shown["fc2"]["block_size"]) == (4, 32)
    # Nothing of it is left for the next call.
    assert {a["bits"] for a in attributes(rtn_quantize(mlp())).values()} == {4}
    left = rtn_quantize(mlp(), {"fc1": "fp32"})
    assert list(attributes(left)) == ["fc2"]
    partly = rtn_quantize(mlp(), {"fc2": {"bits": 8}}, group_size=16)
    assert attributes(partly)["fc2"]["block_size"] == 16


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"fc9": {"bits": 8}}, "no node is called 'fc9'"),
        ({"fc1": {"algorithm": "TEQ"}}, "TEQ learns scales with torch"),
        ({"fc1": {"scheme": "symm"}}, "Did you mean 'sym'"),
        ({"fc1": {"algorithm": "GPT"}}, "Did you mean 'GPTQ'"),
        ({"fc1": "fp16"}, "'fp32' or a dict"),
        ({"fc1": {"bits": 1}}, "2 to 8 bits"),
        ({"fc1": {"group_size": 24}}, "power of two"),
    ],
)
def test_a_wrong_weight_config_is_refused(config, message):
    with pytest.raises(RecipeError, match=message):
        rtn_quantize(mlp(), config)
    with pytest.raises(RecipeError, match="unknown scheme"):
        rtn_quantize(mlp(), scheme="foo")
    with pytest.raises(RecipeError, match="no weight is called 'w9'"):
        rtn_quantize(mlp(), ratios={"w9": 0.9})


def test_what_the_adaptor_writes_beside_has_no_effect():
    config = {
        "calib_iteration": 100,
        "fc1": {"bits": 8, "group_size": 64, "scheme": "sym", "dtype": "int", "bit": 4},
    }
    with pytest.warns(UserWarning) as caught:
        found = rtn_quantize(mlp(), config)
    said = "".join(str(warning.message) for warning in caught)
    assert all(name in said for name in ("calib_iteration", "'dtype'", "Did you mean 'bits'"))
    assert attributes(found)["fc1"]["bits"] == 8
