from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from penstock.proto.codec import encode_bytes
from penstock.store.bounds import first_key_from, raw_bounds

_BYTE = st.sampled_from([0, 1, 0x61, 0xF6, 0xF7, 0xF8, 0xFE, 0xFF])
_BOUNDARY = st.lists(_BYTE, max_size=20).map(bytes)
_KEY = st.lists(_BYTE, max_size=10).map(bytes)


@given(_KEY)
def test_a_boundary_that_encodes_a_key_is_that_key(key: bytes) -> None:
    assert first_key_from(encode_bytes(key)) == key


@given(_BOUNDARY, st.lists(_KEY, max_size=30))
def test_keys_lie_on_the_same_side_raw_and_encoded(boundary: bytes, keys: list[bytes]) -> None:
    first = first_key_from(boundary)
    assert encode_bytes(first) >= boundary
    for key in keys:
        assert (key >= first) == (encode_bytes(key) >= boundary)


@given(st.lists(_BOUNDARY.filter(bool), max_size=6, unique=True), st.lists(_KEY, min_size=1, max_size=20))
def test_every_key_lies_in_the_one_range_its_encoding_lies_in(edges: list[bytes], keys: list[bytes]) -> None:
    starts = [b"", *sorted(edges)]
    ranges = [raw_bounds(start, end) for start, end in zip(starts, [*starts[1:], b""], strict=True)]
    for key in keys:
        holds = [i for i, bounds in enumerate(ranges) if bounds.contains(key)]
        at = bisect_left(starts, encode_bytes(key))
        assert holds == [at if at < len(starts) and starts[at] == encode_bytes(key) else at - 1]
