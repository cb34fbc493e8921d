"""How the outcomes of transactions on the storage are written as text."""

from collections.abc import Iterator
from typing import Any

from penstock.proto import kvrpcpb_pb2 as kvrpcpb


def text(data: bytes) -> str:
    return data.decode() if len(data) <= 16 else f"<{len(data)} bytes>"


def outcome(response: Any, field: str = "") -> list[str]:
    if response.HasField("error"):
        return [error_text(response.error)]
    value = getattr(response, field) if field else 0
    return [f"ok {field}={value}" if value else "ok"]


def lock_text(lock: kvrpcpb.LockInfo) -> str:
    extra = f" min_commit_ts={lock.min_commit_ts}" if lock.min_commit_ts else ""
    extra += f" for_update_ts={lock.lock_for_update_ts}" if lock.lock_for_update_ts else ""
    extra += f" seen {lock.duration_to_last_update_ms}ms" if lock.duration_to_last_update_ms else ""
    kind = kvrpcpb.Op.Name(lock.lock_type)
    return f"locked {text(lock.key)} {kind} by {lock.lock_version} ttl={lock.lock_ttl}{extra}"


def error_text(error: kvrpcpb.KeyError) -> str:
    if error.HasField("locked"):
        return lock_text(error.locked)
    if error.HasField("conflict"):
        c = error.conflict
        reason = kvrpcpb.WriteConflict.Reason.Name(c.reason)
        return f"conflict {text(c.key)}: {c.start_ts} met {c.conflict_ts}@{c.conflict_commit_ts} {reason}"
    if error.HasField("already_exist"):
        return f"exists {text(error.already_exist.key)}"
    if error.HasField("deadlock"):
        d = error.deadlock
        chain = " ".join(f"{e.txn}->{e.wait_for_txn}({text(e.key)})" for e in d.wait_chain)
        return f"deadlock on {text(d.lock_key)} of {d.lock_ts}, closed by {text(d.deadlock_key)}: {chain}"
    if error.HasField("commit_ts_expired"):
        return f"expired {text(error.commit_ts_expired.key)} min={error.commit_ts_expired.min_commit_ts}"
    if error.HasField("txn_not_found"):
        return f"no transaction {error.txn_not_found.start_ts} on {text(error.txn_not_found.primary_key)}"
    if error.HasField("txn_lock_not_found"):
        return f"no lock on {text(error.txn_lock_not_found.key)}"
    if error.HasField("assertion_failed"):
        f = error.assertion_failed
        name = kvrpcpb.Assertion.Name(f.assertion)
        return f"assertion {name} failed on {text(f.key)}: {f.existing_start_ts}@{f.existing_commit_ts}"
    if error.HasField("primary_mismatch"):
        return f"primary is {text(error.primary_mismatch.lock_info.primary_lock)}"
    return f"abort {error.abort.split(':')[0]}"


def lock_outcome(response: kvrpcpb.PessimisticLockResponse) -> Iterator[str]:
    for error in response.errors:
        yield error_text(error)
    for result in response.results:
        kind = kvrpcpb.PessimisticLockKeyResultType.Name(result.type).removeprefix("LockResult")
        conflict = f" over {result.locked_with_conflict_ts}" if result.locked_with_conflict_ts else ""
        value = f" value={text(result.value)}" if result.value else ""
        yield f"{kind}{conflict} exists={'yes' if result.existence else 'no'}{value}"
    if not response.errors and not response.results:
        values = " ".join(text(value) or "none" for value in response.values)
        missing = " ".join("no" if absent else "yes" for absent in response.not_founds)
        yield "ok" + (f" values: {values}" if values else "") + (f" exist: {missing}" if missing else "")


def pairs(response: kvrpcpb.BatchGetResponse | kvrpcpb.ScanResponse) -> list[str]:
    if response.HasField("error"):
        return [f"all: {error_text(response.error)}"]
    lines = []
    for pair in response.pairs:
        if pair.HasField("error"):
            lines.append(error_text(pair.error))
        else:
            lines.append(f"{text(pair.key)}={text(pair.value)}")
    return lines or ["none"]


def versions(info: kvrpcpb.MvccInfo) -> Iterator[str]:
    if info.HasField("lock"):
        lock = info.lock
        rollbacks = f" rollbacks={list(lock.rollback_ts)}" if lock.rollback_ts else ""
        asynchronous = " async" if lock.use_async_commit else ""
        yield f"{kvrpcpb.Op.Name(lock.type)} lock {lock.start_ts}{asynchronous}{rollbacks}"
    for write in info.writes:
        overlapped = " +rollback" if write.has_overlapped_rollback else ""
        yield f"{kvrpcpb.Op.Name(write.type)} {write.start_ts}@{write.commit_ts}{overlapped}"
