"""Fixtures that several test files use, and a kernel cache of the tests' own."""

import atexit
import os
import shutil
import tempfile

import pytest

from everyo.logging import get_logger

if "EVERYO_CACHE_DIR" not in os.environ:  # neither read nor fill the user's own cache
    os.environ["EVERYO_CACHE_DIR"] = tempfile.mkdtemp(prefix="everyo-tests-")
    atexit.register(shutil.rmtree, os.environ["EVERYO_CACHE_DIR"], ignore_errors=True)


@pytest.fixture
def quiet_log():
    """The library's logger, left as it was afterwards."""
    logger = get_logger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)
