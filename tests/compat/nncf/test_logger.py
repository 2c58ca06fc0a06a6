"""The logger, its level, and other names that scripts take from the top."""

import logging

import pytest

from bitwright.compat import nncf
from bitwright.compat.nncf.common.logging import disable_logging, nncf_logger, set_log_level


def test_the_level_is_that_of_the_logger_and_its_handlers():
    handler = logging.NullHandler()
    nncf_logger.addHandler(handler)
    before = nncf_logger.level
    try:
        set_log_level(logging.ERROR)
        assert nncf.nncf_logger.level == handler.level == logging.ERROR
        with disable_logging():
            assert nncf_logger.disabled
        assert not nncf_logger.disabled
    finally:
        nncf_logger.removeHandler(handler)
        nncf_logger.setLevel(before)


def test_the_top_has_what_examples_take_from_it():
    assert nncf.__version__ == "3.4.0" and nncf.set_log_level is set_log_level
    assert nncf.AdvancedAccuracyRestorerParameters().ranking_subset_size is None
    with pytest.raises(AttributeError, match="neither Bitwright nor an installed nncf has 'prun'"):
        _ = nncf.prun
