"""Writing more in a commit under way, because the schema asks for it."""

from collections.abc import Sequence

from penstock.kv import budgets
from penstock.kv.actions.pessimistic import LockWait, PessimisticLock
from penstock.kv.batch_executor import BatchExecutor
from penstock.kv.hooks import Write
from penstock.kv.mutations import DELETE, PUT, Mutations
from penstock.kv.scope import TxnScope

_WAIT_S = 5.0


async def amend(txn: TxnScope, executor: BatchExecutor, extra: Sequence[Write], *, at_ts: int) -> Mutations:
    """Lock the keys of more writes at `at_ts` and return them as mutations to prewrite.

    Raises what locking raises; the caller then gives the transaction up.
    """
    mutations = Mutations()
    for key, value in sorted(extra, key=lambda write: write[0]):
        mutations.append(key, value or b"", DELETE if value is None else PUT, locked=True)
    txn.for_update_ts = max(txn.for_update_ts, at_ts)
    wait = LockWait(deadline=txn.session.clock.monotonic() + _WAIT_S, no_wait=False)
    bo = txn.session.backoffer(budgets.PESSIMISTIC_LOCK_MS, "amend")
    await executor.run(bo, PessimisticLock(txn, wait, mutations.keys), mutations, txn.primary)
    return mutations
