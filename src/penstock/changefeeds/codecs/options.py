"""How a table's changes are encoded: a value that travels to executors."""

import re
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from penstock.errors import Invalid
from penstock.tracing import Sampling

Protocol = Literal["canal-json", "csv", "parquet", "debezium"]
Compression = Literal["none", "gzip", "zstd"]
BinaryEncoding = Literal["base64", "hex"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions:
    """TiCDC's csv options, by its names and defaults."""

    delimiter: str = ","
    quote: str = '"'
    null: str = "\\N"
    include_commit_ts: bool = False
    binary_encoding_method: BinaryEncoding = "base64"
    output_old_value: bool = False
    output_field_header: bool = False


_BARE_CHARACTERS = frozenset("0123456789+-.truefals")
"""What numbers, true and false are written with, which are never in quotes."""
_BARE = re.compile(r"true|false|[-+]?[0-9.]+(e[-+]?[0-9]+)?")
_ESCAPED_TEXT = re.compile(r"(?:[^\\]|\\[rn\\])*", re.DOTALL)
"""What a text without quotes may look like."""
_WHOLE_ESCAPES = re.compile(r"(?:[^\\]|\\.)*", re.DOTALL)


def check_readable(protocol: Protocol, terminator: str, csv: CsvOptions) -> None:
    """Raise Invalid for options of which a reader cannot get every value back, whatever rows there are.

    For what is to be written. What others have written with such options is still read, as well as it can be.
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
        if mark[:1] in _BARE_CHARACTERS:  # what follows another one ("|+|") is no part of a value
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
    """All of it. Can be pickled.

    `columns` are those to send of the table, None for all; primary key columns are always among them.
    `where` is a SQL predicate on rows: what does not satisfy it does not exist for the consumer.
    """

    protocol: Protocol = "canal-json"
    compression: Compression = "none"
    terminator: str = "\r\n"
    enable_tidb_extension: bool = False
    only_output_updated_columns: bool = False
    csv: CsvOptions = CsvOptions()
    columns: tuple[str, ...] | None = None
    where: str = ""
    encoded_at_ms: int = 0  # what lines say of when they were made; the same whenever they are made again
    chunk_bytes: int = 4 * 1024 * 1024
    commit_bytes_max: int = 64 * 1024 * 1024  # a commit that is larger is cut into several chunks
    traced: Sampling | None = None  # which transactions chunks tell of, for traces
