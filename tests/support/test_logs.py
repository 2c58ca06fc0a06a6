import logging

import pytest

from bitwright.support.logs import logged


def test_a_step_is_logged_with_its_time(caplog):
    caplog.set_level(logging.DEBUG, __name__)
    assert logged("add")(lambda a, b: a + b)(1, b=2) == 3
    assert caplog.messages[0] == "add: begins"
    assert caplog.records[1].levelno == logging.INFO
    assert caplog.messages[1].startswith("add: 0.0")


def test_a_step_that_fails_is_logged_with_what_ended_it(caplog):
    caplog.set_level(logging.DEBUG, __name__)

    @logged("divide")
    def divide() -> float:
        return 1 / 0

    with pytest.raises(ZeroDivisionError):
        divide()
    assert caplog.messages[1].startswith("divide: ended by ZeroDivisionError after 0.0")
