"""Classes of single operators can be looked at and derived from; using one is a clear error."""

from __future__ import annotations

import onnx
import pytest

from bitwright.compat.onnxruntime import registry
from bitwright.compat.onnxruntime.operators.conv import QDQConv
from bitwright.compat.onnxruntime.operators.gemm import get_beta, is_B_transposed, set_default_beta
from bitwright.compat.onnxruntime.operators.qdq_base_operator import QDQOperatorBase
from bitwright.errors import BitwrightError


class MyConv(QDQConv):
    def quantize(self):
        return super().quantize()


@pytest.mark.parametrize(
    "use",
    [
        lambda: MyConv(None, None),
        lambda: QDQOperatorBase(None, None),
        lambda: registry.CreateDefaultOpQuantizer(None, None),
        lambda: registry.CreateOpQuantizer(None, None),
        lambda: registry.CreateQDQQuantizer(None, None),
        lambda: registry.QDQRegistry.update(Conv=MyConv),
        lambda: registry.QDQRegistry.__setitem__("Conv", MyConv),
        lambda: registry.QDQRegistry.pop("Conv"),
        lambda: registry.IntegerOpsRegistry.__delitem__("Conv"),
    ],
)
def test_using_one_says_what_to_do_instead(use):
    with pytest.raises(BitwrightError, match="op_types_to_quantize") as caught:
        use()
    assert isinstance(caught.value, NotImplementedError)
    assert registry.QDQRegistry["Conv"] is QDQConv


def test_a_class_is_of_its_kind():
    assert issubclass(MyConv, QDQOperatorBase)
    assert QDQConv.__name__ == "QDQConv"


def test_facts_of_a_gemm_are_read():
    gemm = onnx.helper.make_node("Gemm", ["a", "b", "c"], ["y"], transB=1, beta=0.5)
    assert is_B_transposed(gemm)
    assert get_beta(gemm) == 0.5
    assert set_default_beta(gemm) == get_beta(gemm) == 1.0
    assert not is_B_transposed(onnx.helper.make_node("Gemm", ["a", "b"], ["y"]))
