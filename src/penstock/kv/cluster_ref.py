"""A cluster as a value that can be pickled: its addresses, and one client of it in each process."""

import os
import threading
from dataclasses import dataclass, field

from penstock.kv.blocking import Client
from penstock.settings import KvSettings, Settings, TlsSettings

_lock = threading.Lock()
_clients: dict[tuple[int, "ClusterRef"], Client] = {}


@dataclass(frozen=True)
class ClusterRef:
    """How to find a cluster. Can be pickled; paths of TLS files are looked up where it is used."""

    pd_addrs: tuple[str, ...]
    tls: TlsSettings | None = None
    kv: KvSettings = field(default_factory=KvSettings)

    @classmethod
    def of(cls, settings: Settings) -> "ClusterRef":
        """Return the cluster that settings name."""
        return cls(settings.pd_addrs, settings.tls, settings.kv)

    def client(self) -> Client:
        """Return the process's client, connected at the first call; it lives as long as the process.

        Raises Unavailable when no placement driver answers.
        """
        key = os.getpid(), self  # connections do not survive a fork
        with _lock:
            found = _clients.get(key)
            if found is None:
                found = _clients[key] = Client.connect(self.pd_addrs, tls=self.tls, settings=self.kv)
            return found

    def close(self) -> None:
        """Close the process's client, if there is one; the next `client` connects again."""
        with _lock:
            found = _clients.pop((os.getpid(), self), None)
        if found is not None:
            found.close()
