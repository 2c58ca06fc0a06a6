import errno

import pytest

from bitwright.errors import OutOfMemoryError
from bitwright.support.arguments import check_arguments
from bitwright.support.memory_shortage import find_memory_shortage


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libx.so: failed to map segment from shared object"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("can't start new thread"),
    ],
)
def test_every_kind_of_shortage_is_one_sentence(error):
    told = find_memory_shortage(error)
    assert str(told).startswith("there is not enough memory")
    assert "\n" not in str(told)


def test_a_shortage_behind_another_error_is_found():
    try:
        try:
            raise MemoryError
        except MemoryError as error:
            raise ValueError("damaged") from error
    except ValueError as error:
        assert find_memory_shortage(error) is not None


def test_other_errors_are_none():
    assert find_memory_shortage(ImportError("No module named 'x'")) is None


def test_public_functions_raise_a_typed_error_once():
    @check_arguments
    def inner() -> None:
        raise MemoryError("16 TiB")

    @check_arguments
    def outer() -> None:
        inner()

    with pytest.raises(OutOfMemoryError, match=r"^there is not enough memory \(16 TiB\); free"):
        outer()
