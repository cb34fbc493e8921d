"""Settings of the embedded store."""

from pathlib import Path

from pydantic import Field

from penstock.settings.frozen import Frozen
from penstock.settings.network import ServerTlsSettings


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
