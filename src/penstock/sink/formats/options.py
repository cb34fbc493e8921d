"""How a table's changes are encoded: a value that travels to executors."""

from dataclasses import dataclass
from typing import Literal

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
