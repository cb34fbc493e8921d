import base64

import pyarrow as pa
import pytest

from penstock.columnar.text_lines import JSON, LATIN1_JSON, Lines, Substitution, base64_cells, hex_cells

ODD = [
    "",
    "plain",
    'q"\\',
    "<a>&b",
    "\x00\x1f\x7f",
    "\t\r\n\b\f",
    "ü\u2028x\u2029",
    "\u2030\u00e2",
    None,
    "😀",
]
JSON_ODD = [
    "",
    "plain",
    'q\\"\\\\',
    "\\u003ca\\u003e\\u0026b",
    "\\u0000\\u001f\x7f",
    "\\t\\r\\n\\u0008\\u000c",
    "ü\\u2028x\\u2029",
    "\u2030\u00e2",
    None,
    "😀",
]


def texts(cells: pa.Array) -> list[str | None]:
    return cells.cast(pa.string()).to_pylist()


def test_quotes_stand_around_values_and_not_around_nulls() -> None:
    lines = Lines(4)
    lines.text(b"[")
    lines.cells(pa.array(["a", None, None, ""]), quote=b'"', null=b"null")
    lines.cells(pa.array(["b", "b", None, None]), quote=b'"', null=b"null")
    lines.text(b",")
    lines.cells(pa.array(["c", None, "c", "c"]), quote=b"'", null=b"-")
    lines.cells(pa.array([None, "d", "d", "d"]))
    lines.cells(pa.array([None, "e", None, "e"]), quote=b'"', null=b"null")
    lines.text(b"]")
    assert lines.build().to_pylist() == [
        b'["a""b",\'c\'null]',
        b'[null"b",-d"e"]',
        b"[nullnull,'c'dnull]",
        b'[""null,\'c\'d"e"]',
    ]


def test_json_strings_have_the_escapes_of_go() -> None:
    assert texts(JSON.apply(pa.array(ODD))) == JSON_ODD


@pytest.mark.parametrize("start", range(len(ODD)))
def test_a_slice_of_a_column_is_escaped_as_itself(start: int) -> None:
    assert texts(JSON.apply(pa.array(ODD).slice(start, 3))) == JSON_ODD[start : start + 3]


def test_text_without_anything_to_escape_is_not_copied() -> None:
    cells = pa.array([b"plain", b"too"])
    assert JSON.apply(cells) is cells


def test_bytes_are_characters_of_latin_1() -> None:
    found = LATIN1_JSON.apply(pa.array([bytes(range(0x7E, 0x82)) + b"\xff", None, b'\x00"', b""]))
    assert texts(found) == ["~\x7f\x80\x81ÿ", None, '\\u0000\\"', ""]


def test_longer_texts_win_and_do_not_reach_into_the_next_cell() -> None:
    found = Substitution({b"ab": b"X", b"a": b"1", b"b": b"2"}).apply(
        pa.array(["aab", "a", "b", "abab", "ba"])
    )
    assert texts(found) == ["1X", "1", "2", "XX", "21"]
    assert texts(Substitution({b",,": b"\\,\\,"}).apply(pa.array([",,,", ",", ",,,,"]))) == [
        "\\,\\,,",
        ",",
        "\\,\\,\\,\\,",
    ]


def test_binary_is_written_in_base_64_or_hexadecimal() -> None:
    cells = [bytes(range(size)) for size in range(7)] + [None, b"\xff\xfe"]
    wanted = [None if each is None else base64.b64encode(each) for each in cells]
    assert base64_cells(pa.array(cells)).to_pylist() == wanted
    assert base64_cells(pa.array([b"xx", *cells]).slice(1)).to_pylist() == wanted
    assert hex_cells(pa.array(cells)).to_pylist() == [
        None if each is None else each.hex().encode() for each in cells
    ]
    assert base64_cells(pa.array([], pa.binary())).to_pylist() == []
