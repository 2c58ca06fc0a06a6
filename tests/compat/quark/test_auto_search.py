"""What Quark has and Bitwright does not can be imported, and says what to use instead."""

import pytest

from bitwright.compat.quark.onnx import (
    AutoSearch,
    AutoSearchPro,
    SearchSpace,
    VitisExtendedQuantizer,
    create_calibrator_power_of_two,
    dump_model,
    get_auto_search_config,
)
from bitwright.errors import RecipeError


@pytest.mark.parametrize(
    "name",
    [
        AutoSearch,
        AutoSearchPro,
        SearchSpace,
        VitisExtendedQuantizer,
        create_calibrator_power_of_two,
        dump_model,
        get_auto_search_config,
    ],
)
def test_it_is_imported_and_its_use_is_an_error_with_a_remedy(name):
    with pytest.raises(RecipeError, match=rf"{name.__name__} is not supported: bitwright\.\w+"):
        name("model.onnx", config=None)
