"""Settings of a capture: the log puller and the event store."""

from pathlib import Path

from pydantic import Field, SecretStr, field_validator, model_validator

from penstock.settings.frozen import Frozen
from penstock.settings.network import ServerTlsSettings, TlsSettings, check_token, read_token


class UpkeepSettings(Frozen):
    """Merges and garbage collection of the tables that a capture owns."""

    merge: bool = True
    """Merge small objects and objects with many deleted rows."""
    merge_interval_s: float = Field(60, gt=0)
    """Seconds between checks whether a changed table has objects to merge."""
    merge_target_bytes: int = Field(128 * 1024 * 1024, ge=1024)
    """Target size of merged objects."""
    history_ttl_s: float = Field(3600, ge=0)
    """Seconds to keep replaced objects for reads of older timestamps. History holds keep them longer."""
    collect_interval_s: float = Field(600, gt=0)
    """Seconds between garbage collections of a table."""
    orphan_age_s: float = Field(24 * 3600, ge=3600)
    """Delete files that no manifest names at this age. It must be over twice the longest flush or merge."""
    threads: int = Field(1, ge=1, le=64)
    """Tables to merge or collect at the same time. Each merge sorts up to sort_bytes in memory."""


class CaptureSettings(Frozen):
    """A capture: the log puller and the event store in one process.

    Its memory is bounded by the sum of: memory_bytes for rows that wait to be flushed; twice wal_queue_bytes
    for rows on their way to the disk; for every flush thread, upkeep thread and read of unflushed rows over
    Flight, sort_bytes, large_txn_bytes and about 100 MiB for row groups; about 50 MiB for the primary-key
    index. The defaults add up to 1.2 GiB. The puller adds prewrite_memory_bytes, region_queue_bytes, and
    quota_bytes while the disk cannot keep up.
    """

    id: str = Field("capture-1", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Name of this process, unique among the captures of a deployment."""
    data: Path = Path("penstock-data/capture")
    """Directory for the log, the primary-key index and scratch files. Each capture needs its own."""
    storage: str = "file://penstock-data/events"
    """URL where tables are stored: file://, s3://, gs://, az:// or memory://. All captures share it."""
    storage_options: dict[str, str] = Field({}, repr=False)
    """Endpoint, region and credentials by obstore's names. The cloud's environment variables apply too."""
    tables: tuple[str, ...] = ("*.*",)
    """Tables to capture, as database.table; * and ? match any characters, but no system table."""
    flush_bytes: int = Field(64 * 1024 * 1024, ge=1)
    """Flush a table once its unflushed rows have this size."""
    flush_interval_s: float = Field(60, gt=0)
    """Flush a table once its oldest unflushed row has this age in seconds."""
    idle_flush_interval_s: float = Field(600, gt=0)
    """Seconds by which the manifest of a table without changes may lag."""
    flush_threads: int = Field(2, ge=1, le=64)
    """Tables to flush at the same time."""
    memory_bytes: int = Field(256 * 1024 * 1024, ge=1)
    """Memory for unflushed rows. Rows beyond it are read back from the log when they are needed."""
    sort_bytes: int = Field(64 * 1024 * 1024, ge=1024, le=1024 * 1024 * 1024)
    """Memory in which one flush, or one read over Flight, sorts rows. More rows are sorted on disk."""
    large_txn_bytes: int = Field(64 * 1024 * 1024, ge=1)
    """Transactions from this size on get an object of their own. A flush holds one of up to this size."""
    wal_bytes: int = Field(16 * 1024 * 1024 * 1024, ge=1)
    """Size of the log at which capture waits for flushes."""
    wal_segment_bytes: int = Field(64 * 1024 * 1024, ge=1024)
    """Size of one file of the log."""
    wal_queue_bytes: int = Field(64 * 1024 * 1024, ge=1)
    """Bytes of batches that may wait for the disk. They take twice as much memory."""
    flight_addr: str = "127.0.0.1:8815"
    """Address of Arrow Flight; port 0 takes a free port. All but loopback need TLS and a token."""
    flight_advertise_addr: str | None = Field(None, pattern=r"^\S+:[0-9]{1,5}$")
    """Address at which others reach Flight, unless flight_addr; port 0 means the port of flight_addr."""
    flight_tls: ServerTlsSettings | None = None
    """Certificate of the Flight service, and the authority of its clients; keys as in store.tls."""
    flight_client_tls: TlsSettings | None = None
    """Certificates with which changefeeds and jobs reach the Flight service; keys as in tls."""
    flight_token: SecretStr | None = None
    """Bearer token of every Flight call, from the environment with ${NAME}; else that of secrets_dir."""
    flight_token_path: Path | None = None
    """File with the token, in place of flight_token. White space around the token is ignored."""
    lease_ttl_s: float = Field(10, gt=0)
    """Seconds after which other captures take over the tables of a silent one."""
    upkeep: UpkeepSettings = UpkeepSettings()
    """Merges and garbage collection."""

    @field_validator("flight_token")
    @classmethod
    def _token_fits_a_header(cls, token: SecretStr | None) -> SecretStr | None:
        return check_token(token)

    @model_validator(mode="after")
    def _token_has_one_source(self) -> "CaptureSettings":
        if self.flight_token is not None and self.flight_token_path is not None:
            raise ValueError("flight_token and flight_token_path exclude each other; set one of them")
        return self

    def read_flight_token(self) -> SecretStr | None:
        """Return the token from the settings or from its file; raise Invalid when the file cannot be used."""
        return read_token(self.flight_token, self.flight_token_path, key="capture.flight_token_path")


class PullerSettings(Frozen):
    """The log puller, which brings change streams to the event store."""

    workers: int = Field(2, ge=1, le=256)
    """Threads that hand batches and resolved timestamps to the event store."""
    queue_size: int = Field(4096, ge=1)
    """Batches and timestamps that may wait for each of these threads."""
    quota_bytes: int = Field(1 << 30, ge=1)
    """Bytes of rows that may wait to be persisted. More rows wait in the stores."""
    region_workers: int = Field(1, ge=1, le=256)
    """Threads that match prewrites with commits."""
    region_queue_size: int = Field(4096, ge=1)
    """Region events that may wait for each of these threads."""
    region_queue_bytes: int = Field(64 << 20, ge=1)
    """Bytes of region events that may wait for all of these threads together."""
    prewrite_memory_bytes: int = Field(256 << 20, ge=0)
    """Memory for uncommitted rows. More rows go to disk."""
    spill_dir: Path | None = None
    """Directory for uncommitted rows on disk; by default the system's temporary directory."""
    pending_regions_per_store: int = Field(32, ge=1)
    """Regions whose history one store may read at the same time for this client."""
