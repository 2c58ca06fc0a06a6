"""`nncf.common.logging`: the logger of NNCF, which is quiet here unless something writes to it."""

import logging
from contextlib import AbstractContextManager, ExitStack

nncf_logger = logging.getLogger("nncf")


def set_log_level(level: int) -> None:
    """Set the level from which on messages are shown.

    >>> set_log_level(logging.ERROR)
    """
    nncf_logger.setLevel(level)
    for handler in nncf_logger.handlers:
        handler.setLevel(level)


def disable_logging() -> AbstractContextManager[object]:
    """Show no messages inside a `with`.

    >>> with disable_logging():
    ...     nncf_logger.error("hidden")
    """
    before, stack = nncf_logger.disabled, ExitStack()
    stack.callback(setattr, nncf_logger, "disabled", before)
    nncf_logger.disabled = True
    return stack
