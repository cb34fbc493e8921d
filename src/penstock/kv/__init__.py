"""The transactional client: TiKV's protocol, asyncio inside, blocking and async faces."""

from penstock.kv.blocking import Client, Snapshot, Transaction
from penstock.kv.client import AsyncClient
from penstock.kv.details import CommitDetails
from penstock.kv.hooks import BinlogHook, SchemaHook
from penstock.kv.snapshot import AsyncSnapshot
from penstock.kv.transaction import AsyncTransaction, TxnPhase
from penstock.kv.writeset import Assertion

__all__ = [
    "Assertion",
    "AsyncClient",
    "AsyncSnapshot",
    "AsyncTransaction",
    "BinlogHook",
    "Client",
    "CommitDetails",
    "SchemaHook",
    "Snapshot",
    "Transaction",
    "TxnPhase",
]
