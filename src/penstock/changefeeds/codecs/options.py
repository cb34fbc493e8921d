"""How a table's changes are encoded, as values that travel to executors; which options can be read back."""

import re
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from penstock.errors import Invalid
from penstock.tracing import Sampling

Protocol = Literal["canal-json", "csv", "parquet", "debezium"]
Compression = Literal["none", "gzip", "zstd"]
BinaryEncoding = Literal["base64", "hex"]

COMPRESSED_SUFFIXES: dict[Compression, str] = {"none": "", "gzip": ".gz", "zstd": ".zst"}
_EXTENSIONS: dict[Protocol, str] = {
    "canal-json": ".json",
    "debezium": ".json",
    "csv": ".csv",
    "parquet": ".parquet",
}


def file_extension(protocol: Protocol, compression: Compression) -> str:
    """Return how the names of data files end. Parquet files are compressed inside, so they have no suffix."""
    return _EXTENSIONS[protocol] + (COMPRESSED_SUFFIXES[compression] if protocol != "parquet" else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions:
    """TiCDC's csv options, with its names and defaults."""

    delimiter: str = ","
    quote: str = '"'
    null: str = "\\N"
    include_commit_ts: bool = False
    binary_encoding_method: BinaryEncoding = "base64"
    output_old_value: bool = False
    output_field_header: bool = False


_BARE_CHARACTERS = frozenset("0123456789+-.truefals")
"""The characters of numbers, true and false, which are never in quotes."""
_BARE = re.compile(r"true|false|[-+]?[0-9.]+(e[-+]?[0-9]+)?")
_ESCAPED_TEXT = re.compile(r"(?:[^\\]|\\[rn\\])*", re.DOTALL)
"""Texts that a value may become where nothing is quoted."""
_WHOLE_ESCAPES = re.compile(r"(?:[^\\]|\\.)*", re.DOTALL)
"""Texts in which every backslash escapes a character."""


def check_readable(protocol: Protocol, terminator: str, csv: CsvOptions) -> None:
    """Raise Invalid for options with which a reader could not get back every value of every row.

    This is for files to be written. Files of others with such options are still read as well as possible.
    """
    fault = ""
    if protocol == "csv":
        fault = _csv_fault(terminator, csv) or ("" if csv.quote else _unquoted_fault(terminator, csv))
    elif protocol != "parquet" and (not set(terminator) & set("\r\n") or terminator.strip(" \t\r\n")):
        fault = f"terminator = {terminator!r} may be within a line of JSON; use \\n or \\r\\n"
    if fault:
        raise Invalid(f"{protocol} could not be read back: {fault}")


def _csv_fault(terminator: str, csv: CsvOptions) -> str:
    marks = {"delimiter": csv.delimiter, "quote": csv.quote, "terminator": terminator}
    for name, mark in marks.items():
        if mark[:1] in _BARE_CHARACTERS:  # only the first character counts: "|+|" cannot be part of a value
            return f"{name} = {mark!r} begins with a character of numbers, true or false; choose another"
    for (one, mark), (other, text) in combinations({**marks, "null": csv.null}.items(), 2):
        if set(mark) & set(text):
            return f"{one} = {mark!r} and {other} = {text!r} share a character; choose different ones"
    if set(csv.null) & set("\r\n"):
        return f"null = {csv.null!r} has a line end; leave it out"
    if _BARE.fullmatch(csv.null):
        return f"null = {csv.null!r} is a value too; choose a text that is no number, true or false"
    return ""


def _unquoted_fault(terminator: str, csv: CsvOptions) -> str:
    if set(csv.delimiter) & set("\\rn"):
        return f"delimiter = {csv.delimiter!r} has a character of the escapes \\\\, \\r and \\n; set quote"
    if set(terminator) - set("\r\n"):
        return f"terminator = {terminator!r} is not escaped in texts; use \\n or \\r\\n, or set quote"
    if _ESCAPED_TEXT.fullmatch(csv.null) or not _WHOLE_ESCAPES.fullmatch(csv.null):
        return f"null = {csv.null!r} is a text too where there are no quotes; use \\N, or set quote"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderOptions:
    """How changes of one table are encoded. It can be pickled.

    `columns` are the columns to send, None for all; primary key columns are always among them. `where` is a
    SQL predicate: a row that does not satisfy it does not exist for the consumer.
    """

    protocol: Protocol = "canal-json"
    compression: Compression = "none"
    terminator: str = "\r\n"
    enable_tidb_extension: bool = False
    only_output_updated_columns: bool = False
    csv: CsvOptions = CsvOptions()
    columns: tuple[str, ...] | None = None
    where: str = ""
    encoded_at_ms: int = 0  # the time in lines that have one; the same when a slice is encoded again
    chunk_bytes: int = 4 * 1024 * 1024
    commit_bytes_max: int = 64 * 1024 * 1024  # a larger commit is cut into several chunks
    traced: Sampling | None = None  # which transactions the chunks list, for traces
