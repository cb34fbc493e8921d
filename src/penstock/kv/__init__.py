"""The transactional client: TiKV's protocol, asyncio inside, blocking and async faces."""

from penstock.kv.blocking import Client, Snapshot, Transaction
from penstock.kv.client import AsyncClient
from penstock.kv.details import CommitDetails
from penstock.kv.membuffer import Assertion
from penstock.kv.protocol import BinlogHook, SchemaHook
from penstock.kv.snapshot import AsyncSnapshot
from penstock.kv.transaction import AsyncTransaction, TxnPhase

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
