import gc

import pytest

from bitwright.support.collector import without_collection


def test_the_collector_works_again_afterwards_even_after_an_error():
    with pytest.raises(RuntimeError), without_collection():
        assert not gc.isenabled()
        raise RuntimeError
    assert gc.isenabled()


def test_nested_the_outermost_decides():
    with without_collection():
        with without_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_the_user_switched_off_stays_off():
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_as_a_decorator_it_holds_for_each_call():
    @without_collection()
    def look():
        return gc.isenabled()

    assert (look(), look(), gc.isenabled()) == (False, False, True)
