"""Undoing the prewrites of a transaction that does not commit."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.kv.backoff import Backoffer
from penstock.kv.batch_executor import MutationBatch
from penstock.kv.keyerrors import to_error
from penstock.kv.scope import TxnScope, write_context
from penstock.proto import kvrpcpb_pb2 as kvrpcpb


@dataclass(slots=True)
class Cleanup:
    """Rolls keys back, so that a late prewrite of the transaction is refused too.

    The primary goes first: once it is rolled back, readers that meet the other locks know the outcome.
    """

    scope: TxnScope

    name = "2pc_cleanup"
    with_values = False
    primary_first = True
    stops_on_error = False

    def planned(self, batches: Sequence[MutationBatch]) -> None:
        """Any number of batches will do."""

    async def apply(self, bo: Backoffer, batch: MutationBatch) -> None:
        """Roll back the keys of one batch."""
        request = kvrpcpb.BatchRollbackRequest(
            context=write_context(), start_version=self.scope.start_ts, keys=batch.mutations.keys
        )
        answer = await self.scope.session.router.send_to_region(
            bo, "KvBatchRollback", request, batch.location, kvrpcpb.BatchRollbackResponse
        )
        if answer.HasField("error"):
            raise to_error(answer.error, self.scope.start_ts)
