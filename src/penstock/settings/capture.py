"""Settings of a capture: the log puller and the event store."""

from pathlib import Path

from pydantic import Field, SecretStr, field_validator, model_validator

from penstock.settings.frozen import Frozen
from penstock.settings.network import ServerTlsSettings, TlsSettings, check_token, read_token


class UpkeepSettings(Frozen):
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


class CaptureSettings(Frozen):
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
        return check_token(token)

    @model_validator(mode="after")
    def _token_has_one_source(self) -> "CaptureSettings":
        if self.flight_token is not None and self.flight_token_path is not None:
            raise ValueError("flight_token and flight_token_path exclude each other")
        return self

    def read_flight_token(self) -> SecretStr | None:
        """Return the token of either source; raise Invalid when its file cannot be used."""
        return read_token(self.flight_token, self.flight_token_path, key="capture.flight_token_path")


class PullerSettings(Frozen):
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
