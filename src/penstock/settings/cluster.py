"""Settings of the key-value client and of the embedded store."""

from pathlib import Path

from pydantic import Field

from penstock.settings.frozen import Frozen
from penstock.settings.network import ServerTlsSettings


class KvSettings(Frozen):
    """The key-value client."""

    grpc_connection_count: int = Field(4, ge=1, le=64)
    """Connections to each store."""
    max_batch_size: int = Field(128, ge=0, le=10_000)
    """Requests in one batch message; 0 sends each request alone."""
    overload_threshold: int = Field(200, ge=0)
    """Load reported by a store from which the client waits for fuller batches."""
    max_batch_wait_ms: float = Field(0, ge=0, le=1000)
    """Milliseconds to wait for fuller batches; 0 never waits."""
    batch_wait_size: int = Field(8, ge=1)
    """Requests that end the wait for a fuller batch early."""
    keepalive_time_ms: int = Field(10_000, ge=1000)
    """Milliseconds without traffic after which a connection is probed."""
    keepalive_timeout_ms: int = Field(3_000, ge=100)
    """Milliseconds that such a probe may take."""
    dial_timeout_ms: int = Field(5_000, ge=1)
    """Milliseconds that opening a connection may take."""
    pd_timeout_ms: int = Field(3_000, ge=1)
    """Milliseconds that the placement driver may take to answer."""
    read_timeout_ms: int = Field(30_000, ge=1)
    """Milliseconds that one read request may take."""
    write_timeout_ms: int = Field(30_000, ge=1)
    """Milliseconds that one write request may take."""
    backoff_weight: int = Field(2, ge=1)
    """Factor on the time that every kind of retry may take."""
    tso_batch_max: int = Field(10_000, ge=1)
    """Timestamps to ask for in one request."""
    region_cache_ttl_s: int = Field(600, ge=1)
    """Seconds without use after which a cached region is loaded again."""
    region_cache_size: int = Field(100_000, ge=2)
    """Regions in the cache. Beyond that the least recently used ones are dropped."""
    safe_point_refresh_ms: int = Field(5_000, ge=1)
    """Milliseconds between reads of the safe point. Garbage collection waits for clients twice as long."""
    store_liveness_timeout_ms: int = Field(1_000, ge=1)
    """Milliseconds that a store's health check may take."""
    async_commit_keys_max: int = Field(256, ge=1)
    """Mutations up to which a transaction may use async commit."""
    async_commit_key_bytes_max: int = Field(4096, ge=1)
    """Bytes of keys up to which a transaction may use async commit."""
    async_commit_safe_window_ms: int = Field(2_000, ge=0)
    """Milliseconds by which an async commit or 1PC may commit ahead of now."""
    resolve_lock_lite_keys: int = Field(512, ge=0)
    """Keys below which a transaction's locks are resolved key by key; above, region by region."""
    resolved_cache_size: int = Field(2048, ge=1)
    """Finished transactions that the lock resolver remembers."""
    committer_concurrency: int = Field(128, ge=1)
    """Batches of one transaction to send at the same time."""
    txn_batch_bytes: int = Field(16 * 1024, ge=1)
    """Size at which a batch of mutations is sent."""
    presplit_keys_min: int = Field(100_000, ge=1)
    """Mutations in one region from which the region may be split before the write."""
    presplit_bytes: int = Field(32 * 1024 * 1024, ge=1)
    """Bytes of mutations between two such splits."""
    lock_ttl_ms: int = Field(20_000, ge=1000)
    """Milliseconds that a pessimistic or refreshed lock lives."""
    txn_ttl_max_ms: int = Field(3_600_000, ge=1000)
    """Age in milliseconds from which a transaction's locks are no longer refreshed."""
    ttl_refreshed_txn_bytes: int = Field(32 * 1024 * 1024, ge=0)
    """Size from which an optimistic transaction refreshes its locks."""
    scan_page_rows: int = Field(4096, ge=1)
    """Most rows of one scan request. A scan begins with smaller ones."""
    batch_get_keys: int = Field(5120, ge=1)
    """Keys of one batch-get request."""
    slow_commit_ms: float = Field(300, ge=0)
    """Milliseconds from which a commit is logged with what each of its steps took."""
    local_latches: int = Field(0, ge=0)
    """Latch slots for optimistic commits, rounded up to a power of two; 0 turns latches off."""


class StoreSettings(Frozen):
    """The embedded store."""

    data: Path = Path("penstock-data/store")
    """Directory for the data of the store."""
    pd_addr: str = "127.0.0.1:2379"
    """Address of the placement driver; port 0 takes a free port. All but loopback need tls.ca_path."""
    insecure: bool = False
    """Let other machines connect without client certificates. Everyone who can connect can do everything."""
    stores: int = Field(1, ge=1, le=64)
    """Number of TiKV stores."""
    region_split_bytes: int = Field(96 * 1024 * 1024, ge=1024)
    """Size at which a region splits."""
    sync: bool = True
    """Force each write to the disk (fsync) before it is acknowledged."""
    lock_wait_timeout_ms: int = Field(1_000, ge=1)
    """Milliseconds that one request may wait for a pessimistic lock."""
    wake_up_delay_ms: int = Field(20, ge=0)
    """Head start in milliseconds of the oldest waiter when a lock is released."""
    resolved_ts_interval_ms: int = Field(200, ge=1)
    """Milliseconds between advances of the resolved timestamps."""
    gc_life_time_s: float = Field(600, ge=0)
    """Seconds that old versions, and the keys of dropped tables, are kept at least; 0 keeps them for ever."""
    gc_run_interval_s: float = Field(600, gt=0)
    """Seconds between two rounds of garbage collection. The first one begins 5 seconds after the start."""
    cdc_memory_bytes: int = Field(512 * 1024 * 1024, ge=1024)
    """Memory for events that clients of change streams have not received yet."""
    faults: bool = False
    """Let the admin service set fault switches. For tests only."""
    tls: ServerTlsSettings | None = None
    """Certificate of the servers, and the authority that signs client certificates."""
