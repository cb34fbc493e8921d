"""The options of a storage sink: TiCDC's by its defaults, and what Penstock adds. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.changefeeds.codecs.options import Compression, CsvOptions, EncoderOptions, Protocol
from penstock.changefeeds.selectors import ColumnSelector, RowFilterRule, sent_columns, sent_rows
from penstock.changefeeds.sink_uri import mask_uri, split_uri
from penstock.changefeeds.sinks.storage.cron import CronSpec
from penstock.changefeeds.sinks.storage.layout import DateSeparator
from penstock.changefeeds.sinks.storage.parameters import read_parameters
from penstock.eventstore.schema_version import SchemaVersion
from penstock.object_storage import StorageRef
from penstock.settings import ChangefeedSettings

__all__ = ["SinkOptions", "parse_sink_uri", "sink_options"]

_MIB = 1024 * 1024
_CHUNKS_PER_FILE = 16
_CHUNK_BYTES_MAX = 4 * _MIB
_CSV_DEFAULTS = CsvOptions()
_EVERY_NIGHT = CronSpec("0 0 2 * * *")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All of it. Can be pickled; shows no secret."""

    target: StorageRef
    protocol: Protocol
    masked_uri: str = ""
    compression: Compression = "none"
    terminator: str = "\r\n"
    enable_tidb_extension: bool = False
    only_output_updated_columns: bool = False
    csv: CsvOptions = _CSV_DEFAULTS
    worker_count: int = 16
    flush_interval_s: float = 5.0
    file_size: int = 64 * _MIB
    flush_concurrency: int = 1
    spool_disk_quota: int = 10 * 1024 * _MIB
    spool_base_dir: Path | None = None
    use_table_id_as_path: bool = False
    date_separator: DateSeparator = "day"
    enable_partition_separator: bool = True
    enable_table_across_nodes: bool = False
    file_index_digit: int = 20
    output_column_id: bool = False
    file_expiration_days: int = 0
    file_cleanup_cron_spec: CronSpec = _EVERY_NIGHT
    column_selectors: tuple[ColumnSelector, ...] = ()
    row_filters: tuple[RowFilterRule, ...] = ()
    spark_rows: int = 20_000

    def masked(self) -> str:
        """The sink URI without secrets."""
        return self.masked_uri

    def encoder(self, schema: SchemaVersion) -> EncoderOptions:
        """How changes of a table are encoded."""
        return EncoderOptions(
            protocol=self.protocol,
            compression=self.compression,
            terminator=self.terminator,
            enable_tidb_extension=self.enable_tidb_extension,
            only_output_updated_columns=self.only_output_updated_columns,
            csv=self.csv,
            columns=sent_columns(schema, self.column_selectors),
            where=sent_rows(schema, self.row_filters),
            chunk_bytes=max(1, min(self.file_size // _CHUNKS_PER_FILE, _CHUNK_BYTES_MAX)),
            commit_bytes_max=self.file_size,
        )


def sink_options(feed: ChangefeedSettings) -> SinkOptions:
    """The options of a changefeed; raise Invalid when one is refused."""
    options = parse_sink_uri(
        feed.sink_uri.get_secret_value(), storage_options=feed.storage_options, parameters=feed.sink
    )
    return replace(
        options,
        column_selectors=tuple(ColumnSelector(each.tables, each.columns) for each in feed.column_selectors),
        row_filters=tuple(RowFilterRule(each.tables, each.where) for each in feed.row_filters),
        spark_rows=feed.spark_rows,
    )


def parse_sink_uri(
    uri: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    parameters: Mapping[str, str] | None = None,
) -> SinkOptions:
    """Parse a sink URI with its parameters; raise Invalid with what to write instead.

    `parameters` are what the URI's query may say too, and `storage_options` are obstore's; the URI wins.
    """
    split = split_uri(uri)
    target = StorageRef(split.url, {**(storage_options or {}), **split.storage_options})
    values = read_parameters({**(parameters or {}), **split.parameters})
    return SinkOptions(target=target, masked_uri=mask_uri(uri), **values)
