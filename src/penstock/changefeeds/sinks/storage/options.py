"""The options of a storage sink: TiCDC's parameters with its names, ranges and defaults, and ours. Pure."""

import difflib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from penstock.changefeeds.codecs.options import (
    BinaryEncoding,
    Compression,
    CsvOptions,
    EncoderOptions,
    Protocol,
)
from penstock.changefeeds.filters import ColumnSelector, RowFilterRule, row_predicate, selected_columns
from penstock.changefeeds.sink_uri import (
    STORAGE_PARAMETERS,
    mask_uri,
    parse_size,
    split_uri,
)
from penstock.changefeeds.sinks.storage.cron import CronSpec
from penstock.changefeeds.sinks.storage.layout import DateSeparator
from penstock.durations import parse_duration
from penstock.errors import Invalid
from penstock.eventstore.schema_version import SchemaVersion
from penstock.object_storage import StorageRef
from penstock.secret_masks import MASK, SecretMask, is_secret
from penstock.secret_references import UnresolvedReference, resolve_references
from penstock.settings import ChangefeedSettings, Settings
from penstock.targets import SYSTEM_ACCOUNT, Target, TenantTargets, resolve_tenant_texts

__all__ = [
    "SinkOptions",
    "feed_target",
    "parse_sink_uri",
    "refuse_references",
    "secrets_of_sink",
    "sink_options",
]

_log = logging.getLogger(__name__)

_MIB = 1024 * 1024
_PROTOCOL_ALIASES = {"debezium-json": "debezium"}
_ESCAPES = {"\\r": "\r", "\\n": "\n", "\\t": "\t"}
_INEFFECTIVE = "output-raw-change-event"
_CHUNKS_PER_FILE = 16
_CHUNK_BYTES_MAX = 4 * _MIB
_CSV_DEFAULTS = CsvOptions()
_EVERY_NIGHT = CronSpec("0 0 2 * * *")


SchemaFiles = Literal["tiflow", "ticdc"]
"""Whose schema files are written: pingcap/tiflow's (up to v9.0.0-beta.1), or the newer pingcap/ticdc's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one changefeed's sink. They can be pickled, and show no secret."""

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
    schema_files: SchemaFiles = "tiflow"
    file_expiration_days: int = 0
    file_cleanup_cron_spec: CronSpec = _EVERY_NIGHT
    column_selectors: tuple[ColumnSelector, ...] = ()
    row_filters: tuple[RowFilterRule, ...] = ()

    def encoder(self, schema: SchemaVersion) -> EncoderOptions:
        """Return how changes of a table are encoded."""
        return EncoderOptions(
            protocol=self.protocol,
            compression=self.compression,
            terminator=self.terminator,
            enable_tidb_extension=self.enable_tidb_extension,
            only_output_updated_columns=self.only_output_updated_columns,
            csv=self.csv,
            columns=selected_columns(schema, self.column_selectors),
            where=row_predicate(schema, self.row_filters),
            chunk_bytes=max(1, min(self.file_size // _CHUNKS_PER_FILE, _CHUNK_BYTES_MAX)),
            commit_bytes_max=self.file_size,
        )


def sink_options(settings: ChangefeedSettings, *, lenient: bool = False) -> SinkOptions:
    """Return the options of a changefeed; raise Invalid when a setting is refused.

    References to secrets are resolved in this process; raises UnresolvedReference when it has no such secret.
    `lenient` leaves such a reference as it is, for those who only look where files go and how they are made.
    """
    resolve = _resolve_known if lenient else resolve_references
    with secrets_of_sink(settings).in_errors():
        options = parse_sink_uri(
            resolve(settings.sink_uri.get_secret_value()),
            storage_options={name: resolve(value) for name, value in settings.storage_options.items()},
            parameters={name: resolve(value) for name, value in settings.sink.items()},
        )
    return replace(
        options,
        column_selectors=tuple(
            ColumnSelector(rule.tables, rule.columns) for rule in settings.column_selectors
        ),
        row_filters=tuple(RowFilterRule(rule.tables, rule.where) for rule in settings.row_filters),
    )


def _resolve_known(text: str) -> str:
    try:
        return resolve_references(text)
    except UnresolvedReference:
        return text


def secrets_of_sink(settings: ChangefeedSettings) -> SecretMask:
    """Return what takes the secrets of a changefeed from messages."""
    texts = {**settings.sink, **settings.storage_options, "sink_uri": settings.sink_uri.get_secret_value()}
    return SecretMask(texts)


def feed_target(options: SinkOptions) -> Target:
    """Return where a tenant's files go; raise TenantRefused when the URL or an option cannot be checked."""
    return Target.of_storage("sink_uri", options.target.url, options.target.options)


def refuse_references(feed: ChangefeedSettings) -> None:
    """Raise TenantRefused when a changefeed of a tenant refers to a secret, which is the operator's.

    To resolve one would tell the tenant whether there is such a file or variable, also if it is not used.
    """
    for texts in ({"sink_uri": feed.sink_uri.get_secret_value()}, feed.storage_options, feed.sink):
        resolve_tenant_texts(texts)


def confined_sink_options(settings: Settings, account: str, feed: ChangefeedSettings) -> SinkOptions:
    """Return the sink of a stored changefeed, checked again when its account is a tenant. May block.

    Links, settings and what an account may name can have changed since it was created. Raises TenantRefused.
    """
    tenant = TenantTargets.of(settings, account, recorded=account != SYSTEM_ACCOUNT)
    if tenant is not None:
        refuse_references(feed)
    options = sink_options(feed)
    if tenant is not None:
        tenant.check(feed_target(options))
    return options


def parse_sink_uri(
    uri: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    parameters: Mapping[str, str] | None = None,
) -> SinkOptions:
    """Parse a sink URI with its parameters; raise Invalid with what to write instead.

    `parameters` are what the URI's query may also have, `storage_options` are obstore's; the URI wins.
    """
    split = split_uri(uri)
    target = StorageRef(split.url, {**(storage_options or {}), **split.storage_options}, shared=True)
    values = parse_parameters({**(parameters or {}), **split.parameters})
    return SinkOptions(target=target, masked_uri=mask_uri(uri), **values)


def parse_parameters(given: Mapping[str, str]) -> dict[str, Any]:
    """Return values by the names of SinkOptions' fields; raise Invalid for an unknown or refused parameter.

    Values that TiCDC clamps are clamped, with a warning in the log.
    """
    _check_names(given)
    if not given.get("protocol"):
        raise Invalid(f"the sink needs a protocol; add protocol={get_args(Protocol)[0]} to its URI")
    values = {_field_name(name): _PARSERS[name](given[name], name) for name in given if name in _PARSERS}
    csv = {_field_name(name): _CSV_PARSERS[name](given[name], name) for name in given if name in _CSV_PARSERS}
    if _boolean(given.get(_INEFFECTIVE, "false"), _INEFFECTIVE):
        _log.warning("a sink parameter has no effect on storage sinks", extra={"parameter": _INEFFECTIVE})
    if values.get("file_expiration_days") and values.get("date_separator", "day") != "day":
        _log.warning(
            "files never expire unless date-separator=day", extra={"parameter": "file-expiration-days"}
        )
        values["file_expiration_days"] = 0
    return {**values, "csv": _check_csv(CsvOptions(**csv))}


def _check_names(given: Mapping[str, str]) -> None:
    for name in given:
        if name in STORAGE_PARAMETERS:
            raise Invalid(f"{name} belongs into the sink URI or storage_options, not among the parameters")
        if name == "output-handle-key":
            raise Invalid("output-handle-key is not supported; primary keys are among the columns already")
        if name not in _PARSERS and name not in _CSV_PARSERS and name != _INEFFECTIVE:
            near = difflib.get_close_matches(name, [*_PARSERS, *_CSV_PARSERS, *STORAGE_PARAMETERS], n=3)
            hint = (
                f"did you mean {' or '.join(near)}?"
                if near
                else "see docs/configuration.md for those there are"
            )
            raise Invalid(f"sink parameter {name!r} is unknown; {hint}")


def _check_csv(csv: CsvOptions) -> CsvOptions:
    if not 1 <= len(csv.delimiter) <= 3 or set(csv.delimiter) & {"\r", "\n"}:
        raise Invalid(f"delimiter = {csv.delimiter!r} is refused; write 1 to 3 characters without line ends")
    if len(csv.quote) > 1 or csv.quote in {"\r", "\n"}:
        raise Invalid(f"quote = {csv.quote!r} is refused; write one character, or nothing to quote nothing")
    if csv.quote and csv.quote in csv.delimiter:
        raise Invalid("delimiter and quote share a character; choose different ones")
    return csv


def _field_name(name: str) -> str:
    return _FIELD_NAMES.get(name, name.replace("-", "_"))


def _boolean(text: str, name: str) -> bool:
    known = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
    if text.strip().lower() not in known:
        raise Invalid(f"{name} = {_mask_value(name, text)} is refused; write true or false")
    return known[text.strip().lower()]


def _integer(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Invalid(f"{name} = {_mask_value(name, text)} is refused; write a whole number") from None


def _one_of(allowed: Sequence[str], aliases: Mapping[str, str] | None = None) -> Callable[[str, str], str]:
    def parse(text: str, name: str) -> str:
        value = (aliases or {}).get(text.strip().lower(), text.strip().lower())
        if value not in allowed:
            raise Invalid(f"{name} = {text!r} is refused; use one of {', '.join(allowed)}")
        return value

    return parse


def _clamp(
    parse: Callable[[str, str], float], low: float, high: float, *, positive: bool = False
) -> Callable[[str, str], float]:
    def clamp(text: str, name: str) -> float:
        value = parse(text, name)
        if positive and value <= 0:
            raise Invalid(f"{name} = {text} is refused; it must be greater than 0")
        kept = max(low, min(value, high))
        return kept if kept == value else _warn_out_of_range(name, text, kept)

    return clamp


def _within(low: int, high: int, otherwise: int) -> Callable[[str, str], int]:
    def keep(text: str, name: str) -> int:
        value = _integer(text, name)
        return value if low <= value <= high else _warn_out_of_range(name, text, otherwise)

    return keep


def _warn_out_of_range(name: str, text: str, used: Any) -> Any:
    _log.warning("a sink parameter is out of range", extra={"parameter": name, "given": text, "used": used})
    return used


def _duration(text: str, name: str) -> float:
    """Return seconds, which may be negative: the caller clamps them."""
    text = text.strip()
    try:
        seconds = parse_duration(text.lstrip("+-"))
    except Invalid as error:
        raise Invalid(f"{name} = {error}") from error
    return -seconds if text.startswith("-") else seconds


def _positive_size(text: str, name: str) -> int:
    value = parse_size(text, name)
    if value <= 0:
        raise Invalid(f"{name} = {text} is refused; it must be greater than 0")
    return value


def _days(text: str, name: str) -> int:
    value = _integer(text, name)
    if value < 0:
        raise Invalid(f"{name} = {text} is refused; write days, or 0 to keep files for ever")
    return value


def _absolute(text: str, name: str) -> Path | None:
    if text and not Path(text).is_absolute():
        raise Invalid(f"{name} = {text!r} is refused; write an absolute path")
    return Path(text) if text else None


def _text(text: str, name: str) -> str:  # noqa: ARG001 - one signature for all parsers
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character)
    return text


def _line_end(text: str, name: str) -> str:
    return _text(text, name) or "\r\n"


def _verbatim(text: str, name: str) -> str:  # noqa: ARG001 - one signature for all parsers
    return text


def _cron(text: str, name: str) -> CronSpec:
    try:
        return CronSpec(text)
    except Invalid as error:
        raise Invalid(f"{name}: {error}") from error


def _mask_value(name: str, text: str) -> str:
    return MASK if is_secret(name) else repr(text)


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "protocol": _one_of(get_args(Protocol), _PROTOCOL_ALIASES),
    "compression": _one_of(get_args(Compression)),
    "terminator": _line_end,
    "enable-tidb-extension": _boolean,
    "only-output-updated-columns": _boolean,
    "worker-count": _clamp(_integer, 1, 512, positive=True),
    "flush-interval": _clamp(_duration, 0.1, 600),
    "file-size": _clamp(parse_size, 1024, 512 * _MIB),
    "flush-concurrency": _within(1, 512, 1),
    "spool-disk-quota": _positive_size,
    "spool-base-dir": _absolute,
    "use-table-id-as-path": _boolean,
    "date-separator": _one_of(get_args(DateSeparator)),
    "enable-partition-separator": _boolean,
    "enable-table-across-nodes": _boolean,
    "file-index-digit": _within(6, 20, 20),
    "output-column-id": _boolean,
    "schema-files": _one_of(get_args(SchemaFiles)),
    "file-expiration-days": _days,
    "file-cleanup-cron-spec": _cron,
}
_CSV_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "delimiter": _text,
    "quote": _verbatim,
    "null": _verbatim,
    "include-commit-ts": _boolean,
    "binary-encoding-method": _one_of(get_args(BinaryEncoding)),
    "output-old-value": _boolean,
    "output-field-header": _boolean,
}
_FIELD_NAMES = {"flush-interval": "flush_interval_s"}
