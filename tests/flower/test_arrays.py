"""Arrays from other sites are checked before they are used."""

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

from fedspecial.flower.arrays import RefusedReply, arrays_to_record, read_array, record_to_arrays, reply_arrays

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
def test_every_numeric_array_is_sent_unchanged(value: np.ndarray) -> None:
    back = record_to_arrays(arrays_to_record({"x": value}))["x"]
    assert back.dtype == value.dtype
    assert back.shape == value.shape
    np.testing.assert_array_equal(back, value)


def test_column_major_arrays_are_read_correctly() -> None:
    value = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    buffer = io.BytesIO()
    np.save(buffer, value)
    np.testing.assert_array_equal(read_array("x", sent_as(buffer.getvalue())), value)


@given(st.binary(max_size=300))
def test_bytes_that_are_not_an_array_are_refused(data: bytes) -> None:
    with pytest.raises(RefusedReply):
        read_array("x", sent_as(data))


@given(st.binary(min_size=1, max_size=60), st.integers(0, 127))
def test_a_damaged_header_is_refused_or_has_the_same_shape(noise: bytes, at: int) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3, np.float32))
    whole = buffer.getvalue()
    damaged = sent_as((whole[:at] + noise + whole[at + len(noise) :])[: len(whole)])
    with suppress(RefusedReply):
        assert read_array("x", damaged, like=np.zeros(3, np.float32)).shape == (3,)


def test_a_header_that_claims_a_terabyte_allocates_no_memory() -> None:
    tracemalloc.start()
    with pytest.raises(RefusedReply, match="claims 1000000000000 values, but has 4 bytes"):
        read_array("x", sent_as(header("(1000000, 1000000)") + bytes(4)))
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_another_byte_order_which_torch_cannot_read_is_refused() -> None:
    other = np.dtype(np.float32).newbyteorder().str
    with pytest.raises(RefusedReply, match="byte order"):
        read_array("x", sent_as(header("(1,)", other) + bytes(4)))


def test_sides_that_numpy_cannot_represent_are_refused_although_there_are_no_values() -> None:
    with pytest.raises(RefusedReply, match="impossible shape"):
        read_array("x", sent_as(header(f"(0, {10**14}, {10**14})")))


@pytest.mark.parametrize("dtype", ["|O", "|V2", "<U4", "<M8[s]", "<c8"])
def test_types_that_are_not_numeric_are_refused(dtype: str) -> None:
    with pytest.raises(RefusedReply, match="has type"):
        read_array("x", sent_as(header("(1,)", dtype) + bytes(16)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_nan_or_infinity_is_enough_to_refuse(bad: float) -> None:
    value = np.zeros(1000)
    sent = {"x": value.copy()}
    value[617] = bad
    with pytest.raises(RefusedReply, match="contains NaN or infinity"):
        reply_arrays(arrays_to_record({"x": value}), sent)
