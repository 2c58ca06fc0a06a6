"""What the log of a job says: steps with their times. Who listens to it is up to the program."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])


def logged(step: str) -> Callable[[_F], _F]:
    """Give a function that logs how long it took, to the logger of its module."""

    def wrap(function: _F) -> _F:
        logger = logging.getLogger(function.__module__)

        @functools.wraps(function)
        def call(*values: Any, **options: Any) -> Any:
            logger.debug("%s: begins", step)
            start = time.perf_counter()
            try:
                result = function(*values, **options)
            except BaseException as error:
                seconds = time.perf_counter() - start
                logger.debug("%s: ended by %s after %.2f s", step, type(error).__name__, seconds)
                raise
            logger.info("%s: %.2f s", step, time.perf_counter() - start)
            return result

        return cast(_F, call)

    return wrap
