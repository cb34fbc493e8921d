"""Memcomparable keys: order, round trip, refusal of what is no encoding."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import Invalid
from penstock.proto.codec import decode_bytes, decode_prefix, encode_bytes


@pytest.mark.parametrize(
    ("raw", "encoded"),
    [
        (b"", b"\x00" * 8 + b"\xf7"),
        (b"\x01\x02\x03", b"\x01\x02\x03" + b"\x00" * 5 + b"\xfa"),
        (b"12345678", b"12345678\xff" + b"\x00" * 8 + b"\xf7"),
        (b"123456789", b"12345678\xff9" + b"\x00" * 7 + b"\xf8"),
    ],
)
def test_encoding_matches_the_published_vectors(raw: bytes, encoded: bytes) -> None:
    assert encode_bytes(raw) == encoded
    assert decode_bytes(encoded) == raw


@given(st.binary(max_size=40), st.binary(max_size=40))
@example(b"a", b"a\x00")
def test_encodings_compare_as_the_raw_keys_do(left: bytes, right: bytes) -> None:
    assert (encode_bytes(left) < encode_bytes(right)) == (left < right)
    assert decode_bytes(encode_bytes(left)) == left


@given(st.binary(max_size=40), st.binary(max_size=12))
def test_a_prefix_is_decoded_and_its_end_reported(raw: bytes, tail: bytes) -> None:
    encoded = encode_bytes(raw)
    assert decode_prefix(encoded + tail) == (raw, len(encoded))


@pytest.mark.parametrize(
    "broken", [b"", b"1234567", b"12345678\xff", b"1234567x\xfe", b"12345678\x00", encode_bytes(b"k") + b"x"]
)
def test_bytes_that_are_no_encoding_are_refused(broken: bytes) -> None:
    with pytest.raises(Invalid, match="no encoded key"):
        decode_bytes(broken)
