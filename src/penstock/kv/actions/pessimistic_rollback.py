"""Giving up pessimistic locks."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.kv.backoff import Backoffer
from penstock.kv.batch_executor import MutationBatch
from penstock.kv.keyerrors import to_error
from penstock.kv.scope import TxnScope, write_context
from penstock.proto import kvrpcpb_pb2 as kvrpcpb


@dataclass(slots=True)
class PessimisticRollback:
    """Removes pessimistic locks taken at `for_update_ts` or before; later ones of the transaction stay."""

    scope: TxnScope
    for_update_ts: int

    name = "2pc_pessimistic_rollback"
    with_values = False
    primary_first = False
    stops_on_error = False

    def planned(self, batches: Sequence[MutationBatch]) -> None:
        """Any number of batches will do."""

    async def apply(self, bo: Backoffer, batch: MutationBatch) -> None:
        """Unlock the keys of one batch."""
        request = kvrpcpb.PessimisticRollbackRequest(
            context=write_context(),
            start_version=self.scope.start_ts,
            for_update_ts=self.for_update_ts,
            keys=batch.mutations.keys,
        )
        answer = await self.scope.session.router.send_to_region(
            bo, "KVPessimisticRollback", request, batch.location, kvrpcpb.PessimisticRollbackResponse
        )
        if answer.errors:
            raise to_error(answer.errors[0], self.scope.start_ts)
