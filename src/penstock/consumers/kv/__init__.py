"""kv: another table of the key-value store that follows its source."""

from penstock.consumers.kv.consumer import KvOptions, KvTable

__all__ = ["KvOptions", "KvTable"]
