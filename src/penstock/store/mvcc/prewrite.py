"""The first phase of a commit: locks that announce what will be written.

Two passes: every mutation is checked first, then the form of the commit is chosen once for all (two
phases, async, or one phase) and the locks or versions are written.
"""

from dataclasses import dataclass

from penstock.errors import show_key
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.store.mvcc import failures
from penstock.store.mvcc.effects import Effects
from penstock.store.mvcc.failures import KeyRefused, Reason
from penstock.store.mvcc.reader import MvccReader, Outcome
from penstock.store.mvcc.records import LockKind, LockRecord, Write, WriteKind

_Action = kvrpcpb.PrewriteRequest.PessimisticAction
_SKIP = kvrpcpb.PrewriteRequest.SKIP_PESSIMISTIC_CHECK
_PESSIMISTIC = kvrpcpb.PrewriteRequest.DO_PESSIMISTIC_CHECK
_CONSTRAINT = kvrpcpb.PrewriteRequest.DO_CONSTRAINT_CHECK
_KINDS = {
    kvrpcpb.Put: LockKind.PUT,
    kvrpcpb.Insert: LockKind.PUT,
    kvrpcpb.Del: LockKind.DELETE,
    kvrpcpb.Lock: LockKind.LOCK,
    kvrpcpb.CheckNotExists: None,
}
_NEW_KEY_OPS = (kvrpcpb.Insert, kvrpcpb.CheckNotExists)


def reads_existence(request: kvrpcpb.PrewriteRequest) -> bool:
    """Return whether a prewrite reads: then later commits must come after its start timestamp."""
    return any(mutation.op in _NEW_KEY_OPS for mutation in request.mutations)


def prewrite(
    reader: MvccReader, effects: Effects, request: kvrpcpb.PrewriteRequest, max_ts: int
) -> kvrpcpb.PrewriteResponse:
    """Prewrite the mutations of a request, all or none.

    `max_ts` is the newest timestamp anybody has read at: an async or one-phase commit comes after it.
    """
    check = _Check(reader, request)
    checked: list[_CheckedMutation] = []
    locked: list[kvrpcpb.KeyError] = []
    for index, mutation in enumerate(request.mutations):
        try:
            checked.append(check.mutation(index, mutation))
        except KeyRefused as refused:
            if refused.may_be_retry:
                record = reader.txn_record(mutation.key, request.start_version)
                if record.outcome is Outcome.COMMITTED:
                    return _repeated_answer(request, record.commit_ts)
            if refused.lock is None:
                return kvrpcpb.PrewriteResponse(errors=[refused.error])
            locked.append(refused.error)
    if locked:
        return kvrpcpb.PrewriteResponse(errors=locked)
    return _write(effects, request, checked, max_ts)


def _repeated_answer(request: kvrpcpb.PrewriteRequest, commit_ts: int) -> kvrpcpb.PrewriteResponse:
    return kvrpcpb.PrewriteResponse(
        min_commit_ts=commit_ts if request.use_async_commit and not request.try_one_pc else 0,
        one_pc_commit_ts=commit_ts if request.try_one_pc else 0,
    )


@dataclass(slots=True)
class _CheckedMutation:
    """A mutation that may be written.

    `kind` is None when there is nothing to write. `own` is the transaction's lock on the key: a pessimistic
    one to convert, or one of an earlier, equal request.
    """

    key: bytes
    value: bytes
    kind: LockKind | None
    own: LockRecord | None = None

    @property
    def is_done(self) -> bool:
        return self.own is not None and not self.own.is_pessimistic

    @property
    def is_to_write(self) -> bool:
        return self.kind is not None and not self.is_done


class _Check:
    """The checks of one request."""

    def __init__(self, reader: MvccReader, request: kvrpcpb.PrewriteRequest) -> None:
        self._reader = reader
        self._request = request
        self._start_ts = request.start_version
        self._for_update_ts = request.for_update_ts
        self._actions = list(request.pessimistic_actions)
        self._expected = {c.index: c.expected_for_update_ts for c in request.for_update_ts_constraints}

    def mutation(self, index: int, mutation: kvrpcpb.Mutation) -> _CheckedMutation:
        """Check one mutation; raise KeyRefused when it must not be written."""
        if mutation.op not in _KINDS:
            raise failures.abort(f"a prewrite cannot carry operation {mutation.op}; it is not supported")
        action = self._actions[index] if index < len(self._actions) else _SKIP
        own = self._check_lock(index, mutation, action)
        result = _CheckedMutation(mutation.key, mutation.value, _KINDS[mutation.op], own)
        if not result.is_done:
            skipped = self._skips_constraint(action)
            found = None if skipped else self._check_newer(mutation, action)
            self._check_assertion(mutation, action, found, loaded=not skipped)
        return result

    def _check_lock(
        self,
        index: int,
        mutation: kvrpcpb.Mutation,
        action: _Action,
    ) -> LockRecord | None:
        key = mutation.key
        lock = self._reader.load_lock(key)
        if lock is None:
            if action == _PESSIMISTIC:
                self._check_untouched(key)
            return None
        if lock.start_ts != self._start_ts:
            if action == _PESSIMISTIC:
                raise failures.pessimistic_lock_not_found(
                    key, self._start_ts, f"transaction {lock.start_ts} holds the key"
                )
            raise failures.key_is_locked(key, lock, resolve_now=self._for_update_ts != 0)
        if lock.is_pessimistic:
            if not self._for_update_ts:
                raise failures.lock_type_not_match(key, self._start_ts, lock)
            expected = self._expected.get(index)
            if expected is not None and lock.for_update_ts != expected:
                raise failures.pessimistic_lock_not_found(
                    key, self._start_ts, f"for_update_ts is {lock.for_update_ts}, not {expected}"
                )
        return lock

    def _check_untouched(self, key: bytes) -> None:
        """Accept a lost pessimistic lock if no transaction used the gap.

        A pessimistic lock is taken at or after the start timestamp. If nothing committed since then, the key
        is as the lock left it.
        """
        newest = self._reader.seek_write(key)
        if newest is not None and newest[0] >= self._start_ts:
            raise failures.pessimistic_lock_not_found(
                key, self._start_ts, f"it is gone and the key changed at {newest[0]}"
            )

    def _skips_constraint(self, action: _Action) -> bool:
        if not self._for_update_ts:
            return self._request.skip_constraint_check
        if action == _SKIP:
            # A repeated request could meet its own commit, or a change after its own rollback.
            return not self._request.context.is_retry_request
        return bool(action == _PESSIMISTIC)

    def _check_newer(self, mutation: kvrpcpb.Mutation, action: _Action) -> tuple[int, Write] | None:
        """Refuse the mutation when the key changed since; return the newest version that was read."""
        key = mutation.key
        found = self._reader.seek_write(key)
        while found is not None:
            commit_ts, write = found
            if write.rolls_back(self._start_ts, commit_ts):
                raise self._conflict(key, commit_ts, write, Reason.SelfRolledBack)
            if not self._for_update_ts and commit_ts > self._start_ts:
                raise self._conflict(key, commit_ts, write, Reason.Optimistic)
            if action == _CONSTRAINT and commit_ts > self._start_ts:
                raise self._conflict(key, commit_ts, write, Reason.LazyUniquenessCheck)
            if not self._for_update_ts or commit_ts <= self._for_update_ts:
                break
            if write.kind is not WriteKind.ROLLBACK:
                raise failures.pessimistic_lock_not_found(
                    key, self._start_ts, f"the key changed at {commit_ts} and was not locked"
                )
            # Other transactions may be rolled back on a locked key: their records do not change it.
            found = self._reader.seek_write(key, commit_ts - 1)
        if found is not None and mutation.op in _NEW_KEY_OPS:
            check_absent(self._reader, key, found)
        return found

    def _check_assertion(
        self,
        mutation: kvrpcpb.Mutation,
        action: _Action,
        found: tuple[int, Write] | None,
        *,
        loaded: bool,
    ) -> None:
        level = self._request.assertion_level
        if mutation.assertion == kvrpcpb.NoAssertion or level == kvrpcpb.Off:
            return
        has_data = found is None or found[1].kind in {WriteKind.PUT, WriteKind.DELETE}
        if not loaded or not has_data:
            if level != kvrpcpb.Strict:
                return  # only what was read anyway is checked
            found = self._reader.newest_put(mutation.key)
        exists = found is not None and found[1].kind is WriteKind.PUT
        if exists == (mutation.assertion == kvrpcpb.Exist):
            return
        if not loaded:
            self._check_newer(mutation, action)  # a late request: a conflict explains more
        raise failures.assertion_failed(mutation.key, self._start_ts, mutation.assertion, found)

    def _conflict(self, key: bytes, commit_ts: int, write: Write, reason: Reason) -> KeyRefused:
        return failures.write_conflict(
            key,
            start_ts=self._start_ts,
            primary=self._request.primary_lock,
            conflict_ts=write.start_ts,
            commit_ts=commit_ts,
            reason=reason,
        )


def check_absent(reader: MvccReader, key: bytes, newest: tuple[int, Write]) -> None:
    """Raise KeyRefused when the key exists, `newest` being its newest version of any kind."""
    commit_ts, write = newest
    if write.kind is WriteKind.DELETE:
        return
    if write.kind is WriteKind.PUT or reader.newest_put(key, commit_ts - 1) is not None:
        raise failures.already_exists(key)


def _write(
    effects: Effects, request: kvrpcpb.PrewriteRequest, checked: list[_CheckedMutation], max_ts: int
) -> kvrpcpb.PrewriteResponse:
    commit_ts = _compute_commit_ts(request, checked, max_ts)
    if commit_ts and request.try_one_pc:
        _write_versions(effects, request, checked, commit_ts)
        return kvrpcpb.PrewriteResponse(one_pc_commit_ts=commit_ts)
    for mutation in checked:
        if mutation.is_to_write:
            lock = _lock(request, mutation, commit_ts)
            effects.prewrite(mutation.key, lock, mutation.value)
            if commit_ts:
                effects.guards.append((mutation.key, lock))
    return kvrpcpb.PrewriteResponse(min_commit_ts=commit_ts)


def _compute_commit_ts(request: kvrpcpb.PrewriteRequest, checked: list[_CheckedMutation], max_ts: int) -> int:
    """Return the earliest timestamp an async or one-phase commit may have; 0 means two phases.

    It must lie after every read so far, so that no snapshot changes under its reader. After `max_commit_ts`
    the client no longer guarantees its schema: it must use a second phase.
    """
    if not request.use_async_commit and not request.try_one_pc:
        return 0
    floor = max(request.min_commit_ts, request.start_version + 1)
    writes = False
    for mutation in checked:
        if mutation.is_done:
            assert mutation.own is not None
            if request.try_one_pc or not mutation.own.use_async_commit:
                return 0  # the earlier request fell back to two phases, and this one must agree
            floor = max(floor, mutation.own.min_commit_ts)
        elif mutation.kind is not None:
            writes = True
            if mutation.own is not None:
                floor = max(floor, mutation.own.min_commit_ts)
    if writes:
        floor = max(floor, max_ts + 1, request.for_update_ts + 1)
    return 0 if request.max_commit_ts and floor > request.max_commit_ts else floor


def _lock(request: kvrpcpb.PrewriteRequest, mutation: _CheckedMutation, commit_ts: int) -> LockRecord:
    """Build the lock of a mutation; with `commit_ts` it is an async commit's."""
    assert mutation.kind is not None, f"nothing is locked on {show_key(mutation.key)}"
    lock = LockRecord(
        mutation.kind,
        request.start_version,
        request.primary_lock,
        request.lock_ttl,
        for_update_ts=request.for_update_ts,
        txn_size=request.txn_size,
        min_commit_ts=commit_ts or request.min_commit_ts,
        txn_source=request.context.txn_source,
    )
    if mutation.own is not None:
        lock.ttl = max(lock.ttl, mutation.own.ttl)
        lock.for_update_ts = max(lock.for_update_ts, mutation.own.for_update_ts)
        lock.min_commit_ts = max(lock.min_commit_ts, mutation.own.min_commit_ts)
    if commit_ts:
        lock.use_async_commit = True
        if mutation.key == request.primary_lock:
            lock.secondaries = tuple(request.secondaries)
    return lock


def _write_versions(
    effects: Effects, request: kvrpcpb.PrewriteRequest, checked: list[_CheckedMutation], commit_ts: int
) -> None:
    for mutation in checked:
        if not mutation.is_to_write:
            continue
        lock = _lock(request, mutation, commit_ts)
        if mutation.own is not None:
            effects.release(mutation.key, mutation.own, commit_ts)
        effects.commit_at_once(mutation.key, lock, mutation.value, commit_ts)
        effects.guards.append((mutation.key, lock))
