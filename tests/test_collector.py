"""Python's cycle collector is off while something compiles, and as it was afterwards."""

import gc
import os

import pytest

from everyo.compile.collector import paused


@pytest.fixture(autouse=True)
def collector():
    """On before, and on afterwards."""
    gc.enable()
    yield
    gc.enable()


def test_it_is_off_meanwhile_and_on_afterwards():
    with paused():
        assert not gc.isenabled()
        with paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_turns_it_on_again():
    with pytest.raises(KeyError), paused():
        raise KeyError
    assert gc.isenabled()


def test_who_has_turned_it_off_finds_it_off():
    gc.disable()
    with paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_a_fork_meanwhile_has_it_on():
    with paused():
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        _, status = os.waitpid(child, 0)
    assert status == 0
    assert gc.isenabled()
