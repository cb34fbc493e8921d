"""The options of the data source: camelCase as Spark's own, parsed once into a frozen value.

`parse_options` checks all options of a read. `parse_version`, `parse_first_ts` and `parse_last_ts` turn a
text into a timestamp; `handle_bounds` turns rangeFrom and rangeTo into the handles at which a read begins and
ends.
"""

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

from pydantic import SecretStr

from penstock import settings as penstock_settings
from penstock.clock import LOGICAL_MAX, TS_MAX, compose_ts
from penstock.errors import Invalid
from penstock.settings import ApiSettings, Settings, TlsSettings, TracingSettings
from penstock.tables.keys import encode_handle
from penstock.tables.schema import HandleKind, TableInfo
from penstock.tables.table_patterns import TablePatterns

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def parse_version(option: str, text: str) -> int:
    """Return a commit timestamp given as an integer; raise Invalid when the text is not one."""
    try:
        version = int(text)
    except ValueError:
        version = -1
    if not 0 <= version <= TS_MAX:
        instead = option.replace("Version", "Timestamp").replace("version", "timestamp")
        raise Invalid(
            f"option {option} = {text!r} is not a commit timestamp; give a whole number of 0 or more,"
            f" or a date and time with {instead}"
        )
    return version


def parse_first_ts(option: str, text: str) -> int:
    """Return the first timestamp of the millisecond that a text names; raise Invalid when it names none."""
    return compose_ts(_milliseconds(option, text))


def parse_last_ts(option: str, text: str) -> int:
    """Return the last timestamp of the millisecond that a text names: every commit up to its end counts."""
    return compose_ts(_milliseconds(option, text), LOGICAL_MAX)


def _milliseconds(option: str, text: str) -> int:
    """Return the milliseconds since 1970 of a time in ISO 8601.

    A time without an offset is UTC, whatever the session's time zone: workers do not know that.
    """
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        time = _EPOCH - _MILLISECOND  # refused below
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    if time < _EPOCH:
        raise Invalid(
            f"option {option} = {text!r} is not a date and time since 1970; write it as 2026-01-31,"
            " 2026-01-31 09:30:00 or 2026-01-31T09:30:00.250+02:00 (UTC without an offset)"
        )
    return (time - _EPOCH) // _MILLISECOND


CONFIG_VARIABLE = "PENSTOCK_CONFIG"
PARTITION_BYTES = 128 * 1024 * 1024

_CONNECTION = (
    *("config", "storage", "pdAddrs", "partitionBytes", "maxRowsPerTrigger", "maxBytesPerTrigger"),
    *("flightAddr", "flightToken", "flightCaPath", "flightCertPath", "flightKeyPath"),
)
_READ = (
    *("table", "tables", "from", "columns", "where", "rangeFrom", "rangeTo"),
    *("versionAsOf", "timestampAsOf", "readChangeFeed", "jsonAsVariant"),
    *("startingVersion", "startingTimestamp", "endingVersion", "endingTimestamp", "consumerId"),
)
_OF_ONE_TABLE = (
    *("columns", "where", "rangeFrom", "rangeTo", "versionAsOf", "timestampAsOf", "jsonAsVariant"),
)
_STORAGE_OPTION = "storageoptions."
_NAMES = {name.lower(): name for name in (*_READ, *_CONNECTION, "path")}
_SIZE = re.compile(r"(?P<count>[1-9]\d*)\s*(?P<unit>KiB|MiB|GiB|)", re.IGNORECASE)
_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_KEY = re.compile(r"0x(?:[0-9a-f]{2})*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one read. `settings` are those of the file, overridden by connection options."""

    settings: Settings
    table: str
    """Empty in a read of many tables."""
    tables: tuple[str, ...] = ()
    """Patterns of a read of many tables, as the filters of changefeeds have them."""
    origin: Literal["eventstore", "kv"] = "eventstore"
    columns: tuple[str, ...] | None = None
    where: str | None = None
    """The condition that rows meet."""
    json_as_variant: bool = False
    """Whether JSON columns are VARIANT rather than texts."""
    as_of_ts: int | None = None
    """The snapshot's timestamp; None takes the newest."""
    read_change_feed: bool = False
    from_ts: int | None = None
    """Changes after this timestamp; None when no start is given."""
    to_ts: int | None = None
    """Changes up to and including this one; None when no end is given."""
    range_from: int | bytes | None = None
    """The first handle: a number, or the bytes of a clustered key."""
    range_to: int | bytes | None = None
    """The first handle after the range."""
    partition_bytes: int = PARTITION_BYTES
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    consumer_id: str | None = None
    """The name under which a stream holds the history that it needs; no two streams may have the same."""
    flight_addr: str | None = None
    """The address to read unflushed rows from, instead of the one that the table's capture advertises."""
    flight_tls: TlsSettings | None = None


def parse_options(
    given: Mapping[str, str], *, defaults: Mapping[str, str] | None = None, settings: Settings | None = None
) -> SourceOptions:
    """Check the options of one read; raise Invalid, with the allowed ones, when an option is refused.

    `given` options override `defaults`, which are connection options, and both override `settings`: without
    these, the settings file that the option `config` or the variable PENSTOCK_CONFIG names.
    """
    explicit = {key.lower(): value for key, value in given.items()}
    _refuse_catalog_table(explicit)
    fallback = {key.lower(): value for key, value in (defaults or {}).items()}
    _refuse_unknown(explicit, fallback)
    options = {**fallback, **explicit}
    _refuse_contradictions(options)
    settings = _override_settings(_base(options, settings), options)
    from_ts, to_ts = _change_range(options)
    range_from, range_to = _key_range(options)
    return SourceOptions(
        settings=settings,
        table="" if "tables" in options else _table(options),
        tables=_table_patterns(options),
        origin=_origin(options),
        columns=_columns(options),
        where=options.get("where") or None,
        json_as_variant=_flag(options, "jsonAsVariant"),
        as_of_ts=_as_of(options),
        read_change_feed=_reads_changes(options),
        from_ts=from_ts,
        to_ts=to_ts,
        range_from=range_from,
        range_to=range_to,
        partition_bytes=_size(options, "partitionBytes") or PARTITION_BYTES,
        max_rows_per_trigger=_size(options, "maxRowsPerTrigger"),
        max_bytes_per_trigger=_size(options, "maxBytesPerTrigger"),
        consumer_id=options.get("consumerid") or None,
        flight_addr=options.get("flightaddr"),
        flight_tls=_flight_tls(options),
    )


def _refuse_catalog_table(options: Mapping[str, str]) -> None:
    """Raise Invalid for CREATE TABLE, whose options Spark passes a second time with a prefix.

    Spark would create the table, and read it without any of its options.
    """
    if any(key.startswith("option.") for key in options):
        raise Invalid(
            "Spark forgets the options of tables of Python data sources; write CREATE TEMPORARY VIEW ..."
            " USING penstock OPTIONS (...), or select from penstock_snapshot"
        )


def check_defaults(defaults: Mapping[str, str]) -> None:
    """Raise Invalid when a default is not a connection option: other options belong to a read."""
    allowed = {name.lower() for name in _CONNECTION}
    for key in defaults:
        if key.lower() not in allowed and not key.lower().startswith(_STORAGE_OPTION):
            raise Invalid(
                f"spark.penstock.{key} is not a default of the data source; there are"
                f" {', '.join(_CONNECTION)} and storageOptions.*"
            )


def _refuse_unknown(explicit: Mapping[str, str], fallback: Mapping[str, str]) -> None:
    check_defaults(fallback)
    for key in explicit:
        if key in _NAMES or key.startswith(_STORAGE_OPTION):
            continue
        close = difflib.get_close_matches(key, _NAMES, n=1)
        hint = f"; did you mean {_NAMES[close[0]]}?" if close else ""
        raise Invalid(
            f"unknown option {key!r}{hint} The options are {', '.join((*_READ, *_CONNECTION))}"
            " and storageOptions.*"
        )


def _refuse_contradictions(options: Mapping[str, str]) -> None:
    for one, other in (
        ("versionAsOf", "timestampAsOf"),
        ("startingVersion", "startingTimestamp"),
        ("endingVersion", "endingTimestamp"),
        ("table", "path"),
        *(("tables", other) for other in ("table", "path", *_OF_ONE_TABLE)),
    ):
        if one.lower() in options and other.lower() in options:
            raise Invalid(f"options {one} and {other} exclude each other; give one of them")
    feed = _reads_changes(options)
    for name in ("startingVersion", "startingTimestamp", "endingVersion", "endingTimestamp"):
        if name.lower() in options and not feed:
            raise Invalid(
                f"option {name} is for changes; give readChangeFeed = true as well, or leave it out"
            )
    for name in ("versionAsOf", "timestampAsOf"):
        if name.lower() in options and feed:
            raise Invalid(f"option {name} is for snapshots; leave it out, or leave out readChangeFeed")
    if feed and _origin(options) == "kv":
        raise Invalid(
            "options readChangeFeed and from = 'kv' exclude each other: the KV store keeps no changes"
        )


def _base(options: Mapping[str, str], settings: Settings | None) -> Settings:
    path = options.get("config")
    if path is None and settings is not None:
        return settings
    path = path or os.environ.get(CONFIG_VARIABLE)
    return penstock_settings.load(Path(path)) if path else penstock_settings.with_tokens(Settings())


def for_reads(settings: Settings) -> Settings:
    """Return settings without what no read needs: tokens of the API, sinks and headers stay here."""
    others = {"api": ApiSettings(), "changefeeds": {}, "tracing": TracingSettings()}
    return settings.model_copy(update=others)


def _override_settings(base: Settings, options: Mapping[str, str]) -> Settings:
    capture = base.capture
    prefix = len(_STORAGE_OPTION)
    storage_options = {
        key[prefix:]: value for key, value in options.items() if key.startswith(_STORAGE_OPTION)
    }
    capture = capture.model_copy(
        update={
            "storage": absolute_url(options.get("storage", capture.storage)),
            "storage_options": {**capture.storage_options, **storage_options},
            "flight_token": _token(options) or capture.read_flight_token(),
            "flight_token_path": None,  # read above: executors have no such file
        }
    )
    addrs = options.get("pdaddrs")
    return for_reads(base).model_copy(
        update={"capture": capture, "pd_addrs": _addresses(addrs) if addrs is not None else base.pd_addrs}
    )


def _token(options: Mapping[str, str]) -> SecretStr | None:
    tree = {"capture": {"flight_token": options.get("flighttoken")}}
    return penstock_settings.parse(tree, origin="option flightToken").capture.flight_token


def absolute_url(url: str) -> str:
    """Return the storage URL with an absolute path, for other processes; raise Invalid for memory://."""
    parts = urlsplit(url)
    if parts.scheme == "memory":
        raise Invalid(
            "storage memory:// belongs to one process, not to Spark's workers; use file:// or s3://"
        )
    if parts.scheme != "file":
        return url
    path = Path(unquote(parts.netloc + parts.path)).absolute()
    return f"file://{quote(str(path))}"


def _addresses(text: str) -> tuple[str, ...]:
    addresses = tuple(address.strip() for address in text.split(","))
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise Invalid(
                f"option pdAddrs has {address!r}, which is not host:port; separate several with commas"
            )
    return addresses


def _table(options: Mapping[str, str]) -> str:
    name = options.get("table") or options.get("path")
    if name is None:
        raise Invalid("no table is named; give option table, for instance 'shop.orders'")
    database, _, table = name.partition(".")
    if not database or not table:
        raise Invalid(f"option table = {name!r} is not database.table, for instance 'shop.orders'")
    return name


def _table_patterns(options: Mapping[str, str]) -> tuple[str, ...]:
    text = options.get("tables")
    if text is None:
        return ()
    patterns = tuple(pattern.strip() for pattern in text.split(",") if pattern.strip())
    if not any(not pattern.startswith("!") for pattern in patterns):
        raise Invalid("option tables selects no table; give patterns, for instance 'shop.*, !shop.log_*'")
    TablePatterns(patterns)  # raises
    return patterns


def _reads_changes(options: Mapping[str, str]) -> bool:
    """Return whether changes are read; many tables are read in no other way."""
    return _flag(options, "readChangeFeed") or "tables" in options


def _origin(options: Mapping[str, str]) -> Literal["eventstore", "kv"]:
    text = options.get("from", "eventstore").lower()
    if text == "eventstore":
        return "eventstore"
    if text == "kv":
        return "kv"
    raise Invalid(f"option from = {options['from']!r} is refused; use eventstore or kv")


def _columns(options: Mapping[str, str]) -> tuple[str, ...] | None:
    text = options.get("columns")
    if text is None:
        return None
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError:
            names = None
    else:
        names = [name.strip() for name in text.split(",")]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise Invalid(
            "option columns is not a list of names; write them as 'id, name' or as '[\"id\", \"name\"]'"
        )
    if len(set(names)) != len(names):
        raise Invalid("option columns names a column twice; name each once")
    return tuple(names)


def _as_of(options: Mapping[str, str]) -> int | None:
    if "versionasof" in options:
        return parse_version("versionAsOf", options["versionasof"])
    if "timestampasof" in options:
        return parse_last_ts("timestampAsOf", options["timestampasof"])
    return None


def _change_range(options: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the range (from_ts, to_ts]; both ends of the options are included, as in Delta's change feed."""
    first = last = None
    if "startingversion" in options:
        first = parse_version("startingVersion", options["startingversion"])
    elif "startingtimestamp" in options:
        first = parse_first_ts("startingTimestamp", options["startingtimestamp"])
    if "endingversion" in options:
        last = parse_version("endingVersion", options["endingversion"])
    elif "endingtimestamp" in options:
        last = parse_last_ts("endingTimestamp", options["endingtimestamp"])
    if first is not None and last is not None and last < first:
        raise Invalid(f"the changes asked for end at {last}, before they start at {first}; exchange the two")
    return (None if first is None else max(first - 1, 0)), last


def _key_range(options: Mapping[str, str]) -> tuple[int | bytes | None, int | bytes | None]:
    first, last = _handle(options, "rangeFrom"), _handle(options, "rangeTo")
    match first, last:
        case (None, _) | (_, None):
            return first, last
        case int(low), int(high):
            ordered = low <= high
        case bytes(low_key), bytes(high_key):
            ordered = low_key <= high_key
        case _:
            raise Invalid(
                "options rangeFrom and rangeTo are of two kinds; give two numbers, or two keys as 0x..."
            )
    if not ordered:
        raise Invalid("option rangeTo is before rangeFrom; exchange the two")
    return first, last


def _handle(options: Mapping[str, str], name: str) -> int | bytes | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if _KEY.fullmatch(text):
        return bytes.fromhex(text[2:])
    try:
        return int(text)
    except ValueError:
        # The text may be part of a row's key, so the message does not show it.
        raise Invalid(f"option {name} is neither a whole number nor a key as 0x...") from None


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name.lower(), "false").lower()
    if text not in {"true", "false"}:
        raise Invalid(f"option {name} = {text!r} is refused; use true or false")
    return text == "true"


def _size(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match["unit"] and "Bytes" not in name):
        units = ", with or without KiB, MiB or GiB" if "Bytes" in name else ""
        raise Invalid(f"option {name} = {text!r} is refused; use a whole number above 0{units}")
    return int(match["count"]) * _UNITS[match["unit"].lower()]


def _flight_tls(options: Mapping[str, str]) -> TlsSettings | None:
    authority = options.get("flightcapath")
    certificate, key = options.get("flightcertpath"), options.get("flightkeypath")
    if authority is None:
        if certificate or key:
            raise Invalid(
                "options flightCertPath and flightKeyPath need flightCaPath: the service's authority"
            )
        return None
    if (certificate is None) != (key is None):
        raise Invalid("options flightCertPath and flightKeyPath are given together or not at all")
    return TlsSettings(
        ca_path=Path(authority),
        cert_path=Path(certificate) if certificate else None,
        key_path=Path(key) if key else None,
    )


_INT64 = range(-(1 << 63), 1 << 63)


def handle_bounds(
    table: TableInfo, range_from: int | bytes | None, range_to: int | bytes | None
) -> tuple[bytes, bytes]:
    """Return the first handle of the range, and the first one after it; empty where there is no bound.

    Raises Invalid when a number is given for a table whose handles are not numbers.
    """
    return _encode_bound(table, "rangeFrom", range_from), _encode_bound(table, "rangeTo", range_to)


def _encode_bound(table: TableInfo, option: str, given: int | bytes | None) -> bytes:
    if given is None or isinstance(given, bytes):
        return given or b""
    if table.handle_kind is HandleKind.COMMON:
        raise Invalid(
            f"option {option}: rows of {table.name} are in the order of their encoded key; give it as 0x..."
        )
    if given not in _INT64:
        raise Invalid(f"option {option} is not a handle: it does not fit 64 bits; give a smaller number")
    return encode_handle(given)
