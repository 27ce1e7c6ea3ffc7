"""What comes from another site is looked at before it is believed."""

from __future__ import annotations

import io
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from flwr.app import Array
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedspecial.flower.app.arrays import Refused, read, record_of, values_like, values_of

numbers = npst.arrays(
    dtype=st.sampled_from([np.float16, np.float32, np.float64, np.int64, np.uint8, np.bool_]),
    shape=npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


def sent_as(data: bytes) -> Array:
    return Array("float32", (2,), "numpy.ndarray", data)


def header(shape: str, dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@given(numbers)
def test_every_array_of_numbers_travels_unchanged(value: np.ndarray) -> None:
    back = values_of(record_of({"x": value}))["x"]
    assert back.dtype == value.dtype
    assert back.shape == value.shape
    np.testing.assert_array_equal(back, value)


def test_arrays_stored_by_columns_are_read_rightly() -> None:
    value = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    buffer = io.BytesIO()
    np.save(buffer, value)
    np.testing.assert_array_equal(read("x", sent_as(buffer.getvalue())), value)


@given(st.binary(max_size=300))
def test_bytes_that_are_no_array_are_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        read("x", sent_as(data))


@given(st.binary(min_size=1, max_size=60), st.integers(0, 127))
def test_a_damaged_header_is_refused_or_still_says_the_same(noise: bytes, at: int) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3, np.float32))
    whole = buffer.getvalue()
    damaged = sent_as((whole[:at] + noise + whole[at + len(noise) :])[: len(whole)])
    with suppress(Refused):
        assert read("x", damaged, like=np.zeros(3, np.float32)).shape == (3,)


def test_a_claim_of_a_terabyte_takes_no_memory() -> None:
    tracemalloc.start()
    with pytest.raises(Refused, match="claims 1000000000000 values, but 4 bytes follow"):
        read("x", sent_as(header("(1000000, 1000000)") + bytes(4)))
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["|O", "|V2", "<U4", "<M8[s]", "<c8"])
def test_what_is_not_a_number_is_refused(dtype: str) -> None:
    with pytest.raises(Refused, match="has type"):
        read("x", sent_as(header("(1,)", dtype) + bytes(16)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_none_is_enough_to_refuse(bad: float) -> None:
    value = np.zeros(1000)
    sent = {"x": value.copy()}
    value[617] = bad
    with pytest.raises(Refused, match="holds NaN or infinity"):
        values_like(record_of({"x": value}), sent)
