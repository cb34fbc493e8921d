"""Settings of the client.

Settings of the embedded store.
"""

from pathlib import Path

from pydantic import Field

from penstock.settings.frozen import Frozen
from penstock.settings.network import ServerTlsSettings


class KvSettings(Frozen):
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


class StoreSettings(Frozen):
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
