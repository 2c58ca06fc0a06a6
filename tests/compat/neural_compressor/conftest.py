"""What tests of tuning start from."""

from types import SimpleNamespace

import onnx
import onnx_ir as ir
import pytest

import bitwright


@pytest.fixture
def asked(monkeypatch):
    """What `tune` is asked for, call by call, in place of the search."""
    calls = []

    def tune(model, **options):
        calls.append(options)
        point = SimpleNamespace(measured=SimpleNamespace(drop=0.25))
        made = ir.from_proto(onnx.load(bitwright.load_demo().model_path))
        met = options["max_drop"] > 0.1
        return SimpleNamespace(met=met, is_float=False, point=point, model=made, plan=None)

    monkeypatch.setattr("bitwright.api.tune", tune)
    return calls
