"""Fixtures that several test files use."""

import pytest

from everyo.logging import get_logger


@pytest.fixture
def quiet_log():
    """The library's logger, left as it was afterwards."""
    logger = get_logger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)
