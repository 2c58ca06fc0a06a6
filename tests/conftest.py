"""What every test run shares."""

import os

import pytest
from hypothesis import settings

# The same cases on every run, however busy the machine is: a change must not fail for a case
# that it did not touch. To look for new ones: HYPOTHESIS_PROFILE=search pytest ...
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture
def same_sums(monkeypatch):
    """Let every session sum in the order in which an unoptimized one does.

    On x86 ONNX Runtime's last level of optimization rearranges convolutions into blocks of channels
    (NCHWc), whose sums differ in the last bit; below that level the numbers are the same.
    """
    import onnxruntime

    from bitwright.run import session

    extended = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    monkeypatch.setitem(session._LEVELS, "all", extended)
