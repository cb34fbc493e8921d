"""The second phase: `Commit` turns locks into committed versions, `Cleanup` rolls prewrites back."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.errors import PenstockError, Undetermined, show_key
from penstock.kv.backoff import Backoffer
from penstock.kv.batch_executor import MutationBatch
from penstock.kv.locks import to_error
from penstock.kv.protocol import check_commit_ts_expired
from penstock.kv.scope import CommitScope, TxnScope, write_context
from penstock.kv.sender import RegionStale
from penstock.proto import kvrpcpb_pb2 as kvrpcpb

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Commit:
    """Commits keys at the scope's commit timestamp.

    In two phases the primary goes first and decides: once it is committed, so is the transaction,
    and the rest may follow later. Raises Undetermined when the primary's commit got no answer.
    """

    scope: CommitScope
    primary_first: bool
    # Errors of attempts that may have committed the primary.
    _lost: list[Exception] = field(default_factory=list, init=False)

    name = "2pc_commit"
    with_values = False
    is_one_request = False
    stops_on_error = False

    def note_batches(self, batches: Sequence[MutationBatch]) -> None:
        """Do nothing: the action works with any number of batches."""

    async def apply(self, bo: Backoffer, batch: MutationBatch) -> None:
        """Commit the keys of one batch."""
        decides = batch.is_primary and self.primary_first and not self.scope.committed
        while True:
            answer = await self._send(bo, batch, decides=decides)
            if not answer.HasField("error"):
                self.scope.committed = self.scope.committed or decides
                return
            if not decides or not answer.error.HasField("commit_ts_expired"):
                raise self._failure(batch, answer.error)
            expired = answer.error.commit_ts_expired
            check_commit_ts_expired(expired.attempted_commit_ts, expired.min_commit_ts)
            self.scope.commit_ts = await self.scope.txn.session.pd.timestamp()

    async def _send(self, bo: Backoffer, batch: MutationBatch, *, decides: bool) -> kvrpcpb.CommitResponse:
        request = kvrpcpb.CommitRequest(
            context=write_context(retry=batch.regrouped),
            start_version=self.scope.txn.start_ts,
            keys=batch.mutations.keys,
            commit_version=self.scope.commit_ts,
        )
        try:
            answer = await self.scope.txn.session.router.sender.send(
                bo,
                "KvCommit",
                request,
                batch.location.region,
                on_rpc_error=self._lost.append if decides else None,
            )
        except RegionStale as stale:
            if decides and self._lost:
                stale.in_doubt = self._undetermined_error()
            raise
        except PenstockError as error:
            if decides and self._lost:
                raise self._undetermined_error() from error
            raise
        assert isinstance(answer, kvrpcpb.CommitResponse)
        if decides:
            self._lost.clear()  # the store looks for the record of an earlier attempt, so this settles it
        return answer

    def _undetermined_error(self) -> Undetermined:
        return Undetermined(
            f"transaction {self.scope.txn.start_ts} may or may not be committed: the store did not"
            " answer the commit of its primary key; read the keys before running it again"
        )

    def _failure(self, batch: MutationBatch, error: kvrpcpb.KeyError) -> PenstockError:
        found = to_error(error, self.scope.txn.start_ts)
        if self.scope.committed:
            _log.error(
                "a key could not be committed although its transaction is",
                extra={
                    "start_ts": self.scope.txn.start_ts,
                    "key": show_key(batch.mutations.keys[0]),
                    "error": str(found),
                },
            )
        return found


@dataclass(slots=True)
class Cleanup:
    """Rolls keys back, so that a late prewrite of the transaction is refused too.

    The primary goes first: once it is rolled back, readers that meet the other locks know the outcome.
    """

    scope: TxnScope

    name = "2pc_cleanup"
    with_values = False
    primary_first = True
    is_one_request = False
    stops_on_error = False

    def note_batches(self, batches: Sequence[MutationBatch]) -> None:
        """Do nothing: the action works with any number of batches."""

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
