import pytest

from penstock.proto.fingerprint import fingerprint64

VECTORS = [  # from the published C++ implementation, one for each branch and boundary of the length
    (b"", 11160318154034397263),
    (b"a", 12917804110809363939),
    (b"abc", 2640714258260161385),
    (b"hello", 13009744463427800296),
    (b"hello world", 6381520714923946011),
    (b"0123456789abcdef", 6105018409752412263),
    (b"0123456789abcdefg", 12024047538191061578),
    (b"t_table_r_row_key_of_32_bytes_xx", 10655870764403458923),
    (b"x" * 33, 12270365409943098935),
    (b"y" * 64, 4471793200125962424),
    (b"z" * 65, 8299915583762718517),
    (b"penstock" * 16, 13546834542113778449),
    (b"q" * 129, 13989266368063786657),
]


@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_the_fingerprint_is_farmhash(data: bytes, expected: int) -> None:
    assert fingerprint64(data) == expected
