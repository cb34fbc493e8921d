"""Values as text, a column at a time, as Go and TiDB write them. Pure."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.text_lines import Ints, truths
from penstock.tables.columns import INTEGER_BITS, PACKED_TIMES, FieldType, Tp
from penstock.tables.impossible_dates import replace_texts

_NOTHING = pa.scalar("", pa.string())
_EXACT = {0: "s", 3: "ms", 6: "us"}
_DATE_TIME = 20  # characters of a date and a time, including the point after the seconds
_TWO_DIGITS = pa.array([f"{number:02}" for number in range(1000)])
_EXPONENTS = pa.array([f"e+{number:02}" for number in range(20)])
_FIXED_FROM, _FIXED_BELOW = 1e-4, 1e6  # the range in which Go's %v writes a number without an exponent
_PLAIN_SCALE = 6  # the largest scale for which Arrow writes a decimal without an exponent

Writer = Callable[[FieldType, pa.Array], pa.Array]


def texts(kind: FieldType, values: pa.Array) -> pa.Array:
    """Return the values of a column as text; nulls stay null.

    Strings, bytes, enums and sets are returned unchanged. Floats have no exponent.
    """
    return _WRITERS.get(kind.tp, _as_is)(kind, values)


def general_floats(values: pa.Array) -> pa.Array:
    """Return floats as Go's %v writes them: with an exponent if they are large or small."""
    strings = values.cast(pa.string())
    sizes = np.abs(values.fill_null(0).to_numpy(zero_copy_only=False))
    has_exponent = truths(pc.match_substring(strings, "e"))
    large = (sizes >= _FIXED_BELOW) & ~has_exponent
    small = (sizes < _FIXED_FROM) & (sizes > 0) & ~has_exponent
    strings = _replace(strings, has_exponent, _two_digit_exponents)
    strings = _replace(strings, large, _with_exponent)
    return _replace(strings, small, _with_negative_exponent)


def _replace(strings: pa.Array, where: np.ndarray, change: Callable[[pa.Array], pa.Array]) -> pa.Array:
    if not where.any():
        return strings
    mask = pa.array(where)
    return pc.replace_with_mask(strings, mask, change(strings.filter(mask)))


def _two_digit_exponents(strings: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(strings, r"e([+-])(\d)$", r"e\10\2")


def _with_exponent(strings: pa.Array) -> pa.Array:
    """Rewrite 1234567.5 as 1.2345675e+06."""
    signs = pc.if_else(pc.starts_with(strings, "-"), "-", "")
    digits = pc.utf8_ltrim(strings, "-")
    points = pc.find_substring(digits, ".")
    whole = pc.if_else(pc.less(points, 0), pc.binary_length(digits), points)
    digits = pc.utf8_rtrim(pc.replace_substring(digits, ".", ""), "0")
    rest = pc.utf8_slice_codeunits(digits, 1)
    point = pc.if_else(pc.equal(rest, ""), "", ".")
    exponents = _EXPONENTS.take(pc.subtract(whole, 1))
    first = pc.utf8_slice_codeunits(digits, 0, 1)
    return pc.binary_join_element_wise(signs, first, point, rest, exponents, _NOTHING)


def _with_negative_exponent(strings: pa.Array) -> pa.Array:
    """Rewrite 0.000012 as 1.2e-05. Below 0.000001 Arrow writes an exponent itself."""
    moved = pc.replace_substring_regex(strings, r"^(-?)0\.0000([1-9])(\d*)$", r"\1\2.\3e-05")
    moved = pc.replace_substring_regex(moved, r"^(-?)0\.00000([1-9])(\d*)$", r"\1\2.\3e-06")
    return pc.replace_substring(moved, ".e", "e")


def fixed_floats(values: pa.Array) -> pa.Array:
    """Return floats without an exponent. Very large and very small ones are converted one by one."""
    strings = values.cast(pa.string())
    large = truths(pc.match_substring(strings, "e"))
    if not large.any():
        return strings
    numbers = values.filter(pa.array(large)).to_numpy()
    spelled = [np.format_float_positional(number, trim="-") for number in numbers]
    return pc.replace_with_mask(strings, pa.array(large), pa.array(spelled, pa.string()))


def decimals(values: pa.Array) -> pa.Array:
    """Return decimals with all digits of their scale."""
    kind = values.type
    if pa.types.is_string(kind) or kind.scale <= _PLAIN_SCALE:
        return values.cast(pa.string())
    raw = pa.Array.from_buffers(
        pa.decimal128(kind.precision, 0), len(values), values.buffers(), offset=values.offset
    )
    digits = raw.cast(pa.string())
    signs = pc.if_else(pc.starts_with(digits, "-"), "-", "")
    padded = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), kind.scale + 1, "0")
    whole = pc.utf8_slice_codeunits(padded, 0, -kind.scale)
    parts = pc.utf8_slice_codeunits(padded, -kind.scale)
    return pc.binary_join_element_wise(signs, whole, ".", parts, _NOTHING)


def moments(kind: FieldType, values: pa.Array) -> pa.Array:
    """Return dates and times with the digits of their column; timestamps in UTC."""
    return replace_texts(kind, values, partial(_calendar_moments, kind))


def _calendar_moments(kind: FieldType, values: pa.Array) -> pa.Array:
    if kind.tp is Tp.DATE:
        return values.cast(pa.string())
    unit = _EXACT.get(kind.fsp, "us")
    strings = values.cast(pa.timestamp("us")).cast(pa.timestamp(unit), safe=False).cast(pa.string())
    return strings if kind.fsp in _EXACT else pc.utf8_slice_codeunits(strings, 0, _DATE_TIME + kind.fsp)


def spans(kind: FieldType, values: pa.Array) -> pa.Array:
    """Return TIME values as [-]HH:MM:SS[.ffffff]; they may exceed a day."""
    micros = values.cast(pa.int64())
    signs = pc.if_else(pc.less(micros, 0), "-", "")
    seconds, parts = np.divmod(np.abs(micros.fill_null(0).to_numpy()), 1_000_000)
    minutes, seconds = np.divmod(seconds, 60)
    hours, minutes = np.divmod(minutes, 60)
    pieces = [signs, _two_digits(hours), ":", _two_digits(minutes), ":", _two_digits(seconds)]
    if kind.fsp:
        digits = pa.array(parts // 10 ** (6 - kind.fsp)).cast(pa.string())
        pieces += [".", pc.utf8_lpad(digits, kind.fsp, "0")]
    return pc.binary_join_element_wise(*pieces, _NOTHING)


def _two_digits(numbers: Ints) -> pa.Array:
    return _TWO_DIGITS.take(pa.array(numbers))


def vectors(values: pa.Array) -> pa.Array:
    """Return vectors as [1,2.5]."""
    flat = fixed_floats(values.flatten())
    sizes = pc.list_value_length(values).fill_null(0).to_numpy()
    bounds = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(bounds), flat, mask=values.is_null())
    return pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", _NOTHING)


def enum_numbers(elems: Sequence[str], values: pa.Array) -> pa.Array:
    """Return the numbers of an enum's names, from 1 on; 0 for an unknown name."""
    places = pc.index_in(values, value_set=pa.array(elems, pa.string()))
    numbers = pc.add(places.cast(pa.int64()), 1).fill_null(0)
    return pc.if_else(values.is_valid(), numbers, pa.scalar(None, pa.int64())).cast(pa.string())


def set_numbers(elems: Sequence[str], values: pa.Array) -> pa.Array:
    """Return the number of a set's names, which have commas between them: one bit for each name."""
    bits = {name: 1 << place for place, name in enumerate(elems)}
    coded = values.dictionary_encode()
    sums = [str(sum(bits.get(name, 0) for name in text.split(","))) for text in coded.dictionary.to_pylist()]
    return pa.array(sums, pa.string()).take(coded.indices)


def _as_is(_: FieldType, values: pa.Array) -> pa.Array:
    return values


def _plain(_: FieldType, values: pa.Array) -> pa.Array:
    return values.cast(pa.string())


_WRITERS: dict[Tp, Writer] = {
    **dict.fromkeys((*INTEGER_BITS, Tp.YEAR, Tp.BIT), _plain),
    **dict.fromkeys((Tp.FLOAT, Tp.DOUBLE), lambda _, values: fixed_floats(values)),
    **dict.fromkeys(PACKED_TIMES, moments),
    Tp.NEW_DECIMAL: lambda _, values: decimals(values),
    Tp.DURATION: spans,
    Tp.VECTOR_FLOAT32: lambda _, values: vectors(values),
}
