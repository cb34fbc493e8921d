"""Settings: frozen values, checked when they are made.

One YAML file, with ${NAME} and ${NAME:-default} taken from the environment. A wrong value is
refused with its key, the value and what is allowed.
"""

import os
import re
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from penstock.errors import Invalid

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
_SECRET_KEYS = ("password", "secret", "token", "key_path", "storage_options", "spark.conf", ".sink")
_FEED_NAME = re.compile(r"(?!.{129})[A-Za-z0-9]+(-[A-Za-z0-9]+)*")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,}")
_BAD_BEARER = "a token has at least 16 characters, of letters, digits and -._~+/="


class _Frozen(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True
    )


class TlsSettings(_Frozen):
    """Paths of PEM files; with a certificate and key the peer can check us as well."""

    ca_path: Path
    """Authority that the servers' certificates must come from."""
    cert_path: Path | None = None
    """Certificate to show to the servers."""
    key_path: Path | None = None
    """Key of that certificate."""

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> "TlsSettings":
        if (self.cert_path is None) != (self.key_path is None):
            raise ValueError("cert_path and key_path are given together or not at all")
        return self

    def read(self) -> tuple[bytes, bytes | None, bytes | None]:
        """Return authority, certificate and key; raise Invalid when a file cannot be read."""
        certificate = _read_pem(self.cert_path) if self.cert_path is not None else None
        key = _read_pem(self.key_path) if self.key_path is not None else None
        return _read_pem(self.ca_path), certificate, key


def _read_pem(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Invalid(f"TLS file {path} cannot be read ({error.strerror}); check tls.*_path") from error


class ServerTlsSettings(_Frozen):
    """Paths of PEM files of a server; with an authority, clients must show a certificate it signed."""

    cert_path: Path
    """Certificate of the server."""
    key_path: Path
    """Key of that certificate."""
    ca_path: Path | None = None
    """Authority that client certificates must come from; without it none are asked for."""

    def read(self) -> tuple[bytes, bytes, bytes | None]:
        """Return certificate, key and authority; raise Invalid when a file cannot be read."""
        authority = _read_pem(self.ca_path) if self.ca_path is not None else None
        return _read_pem(self.cert_path), _read_pem(self.key_path), authority


class KvSettings(_Frozen):
    """The client. Durations are in milliseconds unless the name says otherwise."""

    grpc_connection_count: int = Field(4, ge=1, le=64)
    """Connections to each store."""
    max_batch_size: int = Field(128, ge=0, le=10_000)
    """Requests in one batch message; 0 sends each request alone."""
    overload_threshold: int = Field(200, ge=0)
    """A store's reported load from which the client waits for fuller batches."""
    max_batch_wait_ms: float = Field(0, ge=0, le=1000)
    """How long it waits then; 0 never waits."""
    batch_wait_size: int = Field(8, ge=1)
    """How many requests end that wait early."""
    keepalive_time_ms: int = Field(10_000, ge=1000)
    """Idle time after which a connection is probed."""
    keepalive_timeout_ms: int = Field(3_000, ge=100)
    """How long the probe may take."""
    dial_timeout_ms: int = Field(5_000, ge=1)
    """How long opening a connection may take."""
    pd_timeout_ms: int = Field(3_000, ge=1)
    """How long the placement driver may take to answer."""
    read_timeout_ms: int = Field(30_000, ge=1)
    """How long one read request may take."""
    write_timeout_ms: int = Field(30_000, ge=1)
    """How long one write request may take."""
    backoff_weight: int = Field(2, ge=1)
    """Multiplies every retry budget."""
    tso_batch_max: int = Field(10_000, ge=1)
    """Timestamps asked for in one request."""
    region_cache_ttl_s: int = Field(600, ge=1)
    """Seconds after which a cached region that nobody used is loaded anew."""
    region_cache_size: int = Field(100_000, ge=2)
    """Regions kept in the cache; beyond that the least recently used are forgotten."""
    safe_point_refresh_ms: int = Field(5_000, ge=1)
    """Half of how long a known safe point is relied on; garbage collection waits for twice this."""
    store_liveness_timeout_ms: int = Field(1_000, ge=1)
    """How long a store's health check may take."""
    async_commit_keys_max: int = Field(256, ge=1)
    """Mutations above which a transaction does not use async commit."""
    async_commit_key_bytes_max: int = Field(4096, ge=1)
    """Sum of key lengths above which it does not."""
    async_commit_safe_window_ms: int = Field(2_000, ge=0)
    """How far ahead of now an async commit or 1PC may commit."""
    resolve_lock_lite_keys: int = Field(512, ge=0)
    """Transactions below this size are resolved key by key, larger ones by region."""
    resolved_cache_size: int = Field(2048, ge=1)
    """Finished transactions remembered by the lock resolver."""
    committer_concurrency: int = Field(128, ge=1)
    """Batches of one transaction in flight."""
    txn_batch_bytes: int = Field(16 * 1024, ge=1)
    """Size at which a batch of mutations is sent."""
    presplit_keys_min: int = Field(100_000, ge=1)
    """Mutations in one region from which a split is considered before the write."""
    presplit_bytes: int = Field(32 * 1024 * 1024, ge=1)
    """Bytes of mutations between two such splits."""
    lock_ttl_ms: int = Field(20_000, ge=1000)
    """Life of pessimistic and heart-beaten locks."""
    txn_ttl_max_ms: int = Field(3_600_000, ge=1000)
    """Age from which locks are no longer refreshed."""
    ttl_refreshed_txn_bytes: int = Field(32 * 1024 * 1024, ge=0)
    """Size from which an optimistic transaction refreshes its locks."""
    scan_page_rows: int = Field(4096, ge=1)
    """Rows of one scan request, once the scan has grown."""
    batch_get_keys: int = Field(5120, ge=1)
    """Keys of one batch-get request."""
    local_latches: int = Field(0, ge=0)
    """Latch slots for optimistic commits, rounded up to a power of two; 0 turns latches off."""


class StoreSettings(_Frozen):
    """The embedded store."""

    data: Path = Path("penstock-data/store")
    """Directory of the store."""
    pd_addr: str = "127.0.0.1:2379"
    """Address of the placement driver; port 0 takes a free one."""
    stores: int = Field(1, ge=1, le=64)
    """Number of TiKV stores."""
    region_split_bytes: int = Field(96 * 1024 * 1024, ge=1024)
    """Size at which a region splits."""
    sync: bool = True
    """Whether a write reaches the disk (fsync) before it is answered."""
    lock_wait_timeout_ms: int = Field(1_000, ge=1)
    """Longest wait for a pessimistic lock in one request."""
    wake_up_delay_ms: int = Field(20, ge=0)
    """Head start of the oldest waiter when a lock is released."""
    resolved_ts_interval_ms: int = Field(200, ge=1)
    """How often resolved timestamps advance."""
    cdc_memory_bytes: int = Field(512 * 1024 * 1024, ge=1024)
    """Memory for events that a change stream has not taken yet."""
    faults: bool = False
    """Whether the admin service may set fault switches."""
    tls: ServerTlsSettings | None = None
    """Certificate of the servers, and the authority that client certificates must come from."""


class UpkeepSettings(_Frozen):
    """Merges and garbage collection of the tables that a capture owns."""

    merge: bool = True
    """Whether small and heavily deleted objects are merged."""
    merge_interval_s: float = Field(60, gt=0)
    """How often a table that has changed is looked at for something to merge."""
    merge_target_bytes: int = Field(128 * 1024 * 1024, ge=1024)
    """Size of objects that merges aim at."""
    history_ttl_s: float = Field(3600, ge=0)
    """How long replaced objects stay, so that older timestamps can be read; watermarks keep them longer."""
    collect_interval_s: float = Field(600, gt=0)
    """How often each table is collected."""
    orphan_age_s: float = Field(24 * 3600, ge=3600)
    """Age at which files that no manifest names are deleted; no flush or merge may take half as long."""
    threads: int = Field(1, ge=1, le=64)
    """Tables looked after at the same time; each merge sorts in memory what a flush does (sort_bytes)."""


class CaptureSettings(_Frozen):
    """A capture: the log puller and the event store in one process.

    What bounds its memory: memory_bytes, for rows that wait to be flushed; twice wal_queue_bytes, for rows on
    their way to the disk; for every flush thread, upkeep thread, and read of unflushed rows over Flight,
    sort_bytes, large_txn_bytes and about 100 MiB for row groups; about 50 MiB for the primary-key index. At
    the defaults that is 1.2 GiB. The puller adds prewrite_memory_bytes, region_queue_bytes, and quota_bytes
    while the disk cannot keep up.
    """

    id: str = Field("capture-1", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Name of this process among the captures of a deployment."""
    data: Path = Path("penstock-data/capture")
    """Directory of the log, the primary-key index and scratch files; each capture has its own."""
    storage: str = "file://penstock-data/events"
    """Where tables are kept: file://, s3://, gs://, az:// or memory://; shared by all captures."""
    storage_options: dict[str, str] = Field({}, repr=False)
    """Endpoint, region and credentials by obstore's names; the cloud's environment variables count too."""
    tables: tuple[str, ...] = ("*.*",)
    """Tables to capture: database.table, where * and ? stand for any characters."""
    flush_bytes: int = Field(64 * 1024 * 1024, ge=1)
    """Size of a table's unflushed rows at which they become an object."""
    flush_interval_s: float = Field(60, gt=0)
    """Age at which they do."""
    idle_flush_interval_s: float = Field(600, gt=0)
    """How far a table without changes may fall behind in the manifest."""
    flush_threads: int = Field(2, ge=1, le=64)
    """Tables flushed at the same time."""
    memory_bytes: int = Field(256 * 1024 * 1024, ge=1)
    """Unflushed rows kept in memory; those above it are read back from the log when they are needed."""
    sort_bytes: int = Field(64 * 1024 * 1024, ge=1024, le=1024 * 1024 * 1024)
    """Rows that one flush, or one read over Flight, sorts in memory; more are sorted on disk."""
    large_txn_bytes: int = Field(64 * 1024 * 1024, ge=1)
    """Size from which a transaction becomes an object of its own; a flush holds one of up to this size."""
    wal_bytes: int = Field(16 * 1024 * 1024 * 1024, ge=1)
    """Size of the log at which capture waits for flushes."""
    wal_segment_bytes: int = Field(64 * 1024 * 1024, ge=1024)
    """Size of one file of the log."""
    wal_queue_bytes: int = Field(64 * 1024 * 1024, ge=1)
    """Batches waiting for the disk; they take twice that in memory."""
    flight_addr: str = "127.0.0.1:8815"
    """Address of the Arrow Flight service; port 0 takes a free one. Any but loopback needs TLS and token."""
    flight_advertise_addr: str | None = Field(None, pattern=r"^\S+:[0-9]{1,5}$")
    """Address at which others reach it, where that is not flight_addr; port 0 is the one it listens on."""
    flight_tls: ServerTlsSettings | None = None
    """Certificate of that service, and the authority of its clients; keys as in store.tls."""
    flight_client_tls: TlsSettings | None = None
    """How changefeeds and jobs check that certificate where they read; keys as in tls."""
    flight_token: SecretStr | None = None
    """Bearer token that every Flight call must carry; take it from the environment with ${NAME}."""
    flight_token_path: Path | None = None
    """File that holds the token instead; white space around it does not count."""
    lease_ttl_s: float = Field(10, gt=0)
    """How long the tables of a silent capture stay its own."""
    upkeep: UpkeepSettings = UpkeepSettings()
    """Merges and garbage collection."""

    @field_validator("flight_token")
    @classmethod
    def _token_fits_a_header(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not _TOKEN.fullmatch(token.get_secret_value()):
            raise ValueError(_BAD_BEARER)
        return token

    @model_validator(mode="after")
    def _token_has_one_source(self) -> "CaptureSettings":
        if self.flight_token is not None and self.flight_token_path is not None:
            raise ValueError("flight_token and flight_token_path exclude each other")
        return self

    def read_flight_token(self) -> SecretStr | None:
        """Return the token of either source; raise Invalid when its file cannot be used."""
        if self.flight_token_path is None:
            return self.flight_token
        try:
            token = self.flight_token_path.read_text(encoding="ascii", errors="replace").strip()
        except OSError as error:
            raise Invalid(
                f"token file {self.flight_token_path} cannot be read ({error.strerror});"
                " check capture.flight_token_path"
            ) from error
        if not _TOKEN.fullmatch(token):
            raise Invalid(f"token file {self.flight_token_path} is refused: {_BAD_BEARER}")
        return SecretStr(token)


class PullerSettings(_Frozen):
    """The log puller: from change streams to the event store."""

    workers: int = Field(2, ge=1, le=256)
    """Threads that hand batches and resolved timestamps to the event store."""
    queue_size: int = Field(4096, ge=1)
    """Batches and timestamps that may wait for each of them."""
    quota_bytes: int = Field(1 << 30, ge=1)
    """Bytes of rows handed over and not persisted yet; more waits in the stores."""
    region_workers: int = Field(1, ge=1, le=256)
    """Threads that match prewrites and commits."""
    region_queue_size: int = Field(4096, ge=1)
    """Region events that may wait for each of them."""
    region_queue_bytes: int = Field(64 << 20, ge=1)
    """Bytes of region events that may wait for all of them."""
    prewrite_memory_bytes: int = Field(256 << 20, ge=0)
    """Bytes of uncommitted rows kept in memory; more goes to disk."""
    spill_dir: Path | None = None
    """Directory for uncommitted rows on disk; none takes the system's temporary directory."""
    pending_regions_per_store: int = Field(32, ge=1)
    """Regions whose history a store reads at the same time for this client."""


class PoolSettings(_Frozen):
    """The share of a Spark session that the jobs of one account get."""

    weight: int = Field(1, ge=1, le=1000)
    """Share against the other pools."""
    min_share: int = Field(0, ge=0)
    """Cores that it gets first, before the rest is shared by weight."""


class SparkSettings(_Frozen):
    """The Spark session that Penstock builds, and what its jobs may use."""

    master: str = "local[*]"
    """Where jobs run: local[*], local[N], spark://host:port, yarn or k8s://https://host:port."""
    driver_memory: str = Field("2g", pattern=r"^[1-9][0-9]*[mgt]$")
    """Java heap of the driver; with a local master all work is done in it."""
    executor_memory: str = Field("2g", pattern=r"^[1-9][0-9]*[mgt]$")
    """Java heap of each executor."""
    python: str | None = None
    """Python of executors and of planning; none takes PYSPARK_PYTHON, or else the one that is running."""
    ui_port: int = Field(0, ge=0, le=65535)
    """Port of Spark's own web pages; 0 leaves them off."""
    log_level: Literal["off", "error", "warn", "info", "debug"] = "error"
    """The least important lines that Spark may write to the console."""
    pools: dict[str, PoolSettings] = {}
    """Shares by account; an account that is not listed has a pool of weight 1."""
    conf: dict[str, str] = Field({}, repr=False)
    """Further Spark configuration, spark.* keys; it wins over what Penstock sets."""

    @field_validator("conf", mode="before")
    @classmethod
    def _conf_is_text(cls, conf: Any) -> Any:
        if not isinstance(conf, dict):
            return conf
        return {key: _as_text(value) for key, value in conf.items()}

    @field_validator("conf")
    @classmethod
    def _conf_is_for_spark(cls, conf: dict[str, str]) -> dict[str, str]:
        foreign = sorted(key for key in conf if not key.startswith("spark."))
        if foreign:
            raise ValueError(f"{foreign[0]!r} is no key of Spark's; its keys begin with 'spark.'")
        return conf


def _as_text(value: Any) -> Any:
    """YAML's numbers and booleans, the way Spark and sink URIs write them."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class ColumnSelectorSettings(_Frozen):
    """Columns of some tables. Of several selectors the first that fits a table counts."""

    tables: tuple[str, ...] = Field(min_length=1)
    """The tables it is for: database.table with * and ?; !pattern leaves some out."""
    columns: tuple[str, ...] = Field(min_length=1)
    """Columns to send, with * and ?, and !column for those not to; primary keys are always sent."""


class RowFilterSettings(_Frozen):
    """Rows of some tables. Of several filters the first that fits a table counts."""

    tables: tuple[str, ...] = Field(min_length=1)
    """The tables it is for: database.table with * and ?; !pattern leaves some out."""
    where: str = Field(min_length=1)
    """A SQL predicate; a row that does not satisfy it does not exist for the consumer."""


class ChangefeedSettings(_Frozen):
    """A changefeed: the changes of some tables, as files on object storage."""

    sink_uri: SecretStr
    """Where files go, and how: s3://bucket/prefix?protocol=canal-json; see docs/changefeed.md."""
    sink: dict[str, str] = Field({}, repr=False)
    """Parameters of the sink by the names that the URI uses; those in the URI win."""
    storage_options: dict[str, str] = Field({}, repr=False)
    """Endpoint, region and credentials by obstore's names; the cloud's environment variables count too."""
    tables: tuple[str, ...] = ("*.*",)
    """Tables to send: database.table with * and ?; !pattern leaves some out; the last that fits counts."""
    start: Literal["now", "snapshot"] | int = "now"
    """Where it begins: now, with a snapshot of every table, or after a timestamp."""
    target_ts: int | None = Field(None, ge=1)
    """Timestamp at which it ends; none goes on for ever."""
    column_selectors: tuple[ColumnSelectorSettings, ...] = ()
    """Columns to send, for tables of which not all are."""
    row_filters: tuple[RowFilterSettings, ...] = ()
    """Rows to send, for tables of which not all are."""
    split_rows: int = Field(0, ge=0)
    """Rows of a key range with a dispatcher of its own in large tables; 0 gives each table one dispatcher."""

    @field_validator("sink", mode="before")
    @classmethod
    def _parameters_are_text(cls, sink: Any) -> Any:
        if not isinstance(sink, dict):
            return sink
        return {key: _as_text(value) for key, value in sink.items()}

    @field_validator("start")
    @classmethod
    def _starts_after_the_beginning(cls, start: str | int) -> str | int:
        if isinstance(start, int) and start < 1:
            raise ValueError("write now, snapshot, or a timestamp of 1 or more")
        return start

    @model_validator(mode="after")
    def _ends_after_it_starts(self) -> "ChangefeedSettings":
        if isinstance(self.start, int) and self.target_ts is not None and self.target_ts <= self.start:
            raise ValueError("target_ts must be after start")
        return self


class Settings(_Frozen):
    """Everything penstock.yaml may say."""

    pd_addrs: tuple[str, ...] = ("127.0.0.1:2379",)
    tls: TlsSettings | None = None
    kv: KvSettings = KvSettings()
    store: StoreSettings = StoreSettings()
    puller: PullerSettings = PullerSettings()
    capture: CaptureSettings = CaptureSettings()
    spark: SparkSettings = SparkSettings()
    changefeeds: dict[str, ChangefeedSettings] = {}

    @field_validator("changefeeds")
    @classmethod
    def _feeds_have_plain_names(cls, feeds: dict[str, ChangefeedSettings]) -> dict[str, ChangefeedSettings]:
        for name in feeds:
            if not _FEED_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name; use letters, digits and single hyphens, at most 128")
        return feeds


def load(path: Path) -> Settings:
    """Read a settings file; raise Invalid with the key, the value and what is allowed."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Invalid(f"settings file {path} cannot be read ({error.strerror}); check --config") from error
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        at = f" at line {where.line + 1}" if where else ""
        raise Invalid(f"settings file {path} is not valid YAML{at}; mend its syntax") from error
    return parse(expand(tree or {}), origin=str(path))


def parse(tree: Any, *, origin: str = "settings") -> Settings:
    """Check a parsed tree; raise Invalid naming the first wrong key."""
    if not isinstance(tree, dict):
        raise Invalid(f"{origin} must be a mapping of keys to values, not a {type(tree).__name__}")
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise Invalid(f"{origin}: {_describe(error)}") from None


def parse_changefeed(tree: Any, *, origin: str) -> ChangefeedSettings:
    """Check the section of one changefeed; raise Invalid naming the first wrong key."""
    try:
        return ChangefeedSettings.model_validate(tree)
    except ValidationError as error:
        raise Invalid(f"{origin}: {_describe(error, within='changefeeds.')}") from None


def expand(tree: Any) -> Any:
    """Replace ${NAME} and ${NAME:-default} in every string; raise Invalid when NAME is not set."""
    if isinstance(tree, dict):
        return {key: expand(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [expand(value) for value in tree]
    if isinstance(tree, str):
        return _VARIABLE.sub(_variable, tree)
    return tree


def _variable(match: re.Match[str]) -> str:
    name, default = match["name"], match["default"]
    value = os.environ.get(name, default)
    if value is None:
        raise Invalid(
            f"settings use ${{{name}}}, which is not set; export {name} or write ${{{name}:-default}}"
        )
    return value


def _describe(error: ValidationError, *, within: str = "") -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "settings"
    if first["type"] == "extra_forbidden":
        return f"unknown key {key!r}; see docs/configuration.md for the keys there are"
    return f"{key} = {_shown(within + key, first['input'])} is refused: {first['msg']}"


def _shown(key: str, value: Any) -> str:
    """A refused value; nothing that is a secret, or may hold one."""
    if any(word in key for word in _SECRET_KEYS):
        return "***"
    return "{...}" if isinstance(value, dict | BaseModel) else repr(value)
