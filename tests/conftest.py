"""What every test run shares."""

import os
from collections import defaultdict
from zlib import crc32

import pytest
from hypothesis import settings

# The same cases on every run, however busy the machine is: a change must not fail for a case
# that it did not touch. To look for new ones: HYPOTHESIS_PROFILE=search pytest ...
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Leave all but some cases of a test that is marked `sampled` to the slow run."""
    cases = defaultdict(list)
    for item in items:
        if marker := item.get_closest_marker("sampled"):
            cases[item.parent.nodeid, item.originalname, *marker.args].append(item)
    for (*_, count), found in cases.items():
        # By a hash, so that no combination of parameters is left out as a whole.
        for item in sorted(found, key=lambda item: crc32(item.nodeid.encode()))[count:]:
            item.add_marker(pytest.mark.slow)


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
