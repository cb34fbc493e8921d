"""Transactions on the storage as text: one command a line in, what came of it as lines out.

    prewrite 10 primary=a put:a=1 del:b async secondaries=b     lock 10 for_update=12 a b wait=1000 &first
    commit 10 20 a b        rollback 10 a      cleanup 10 a now=5s       unlock 10 for_update=12 a
    status 10 a caller=15 now=5s verify        secondaries 10 a b        beat 10 a ttl=9000
    resolve 10 20 a         resolve-all 10:20 11:0                       locks max=30
    get 15 a                mget 15 a b        scan 15 from=a to=d limit=5 reverse
    gc 30                   destroy a c        state a b                 waits      max-ts
    advance 20              join first

A timestamp is a number, or a time such as `5s` or `40ms`. A command ending in `&name` runs on while the
script goes on; `join name` prints its outcome. Changes told to the observer are printed as `> ...`.
"""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path

from penstock.clock import SYSTEM, compose_ts
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.settings import StoreSettings
from penstock.store.bounds import EVERYTHING
from penstock.store.engine import Engine
from penstock.store.observe import Change
from penstock.store.storage import TxnStorage
from penstock.testing.clock import ManualClock
from support.mvcc_text import error_text, lock_outcome, lock_text, outcome, pairs, text, versions

_JOIN_S = 10.0
_OPS = {
    "put": kvrpcpb.Put,
    "del": kvrpcpb.Del,
    "lock": kvrpcpb.Lock,
    "insert": kvrpcpb.Insert,
    "check": kvrpcpb.CheckNotExists,
}
_ASSERTIONS = {"exist": kvrpcpb.Exist, "absent": kvrpcpb.NotExist}
_LEVELS = {"off": kvrpcpb.Off, "fast": kvrpcpb.Fast, "strict": kvrpcpb.Strict}
_ACTIONS = {
    "skip": kvrpcpb.PrewriteRequest.SKIP_PESSIMISTIC_CHECK,
    "pessimistic": kvrpcpb.PrewriteRequest.DO_PESSIMISTIC_CHECK,
    "constraint": kvrpcpb.PrewriteRequest.DO_CONSTRAINT_CHECK,
}
_ISOLATION = {"rc": kvrpcpb.RC, "check-ts": kvrpcpb.RCCheckTS}


def parse_ts(word: str) -> int:
    """Read a timestamp."""
    if word.endswith("ms"):
        return compose_ts(int(word[:-2]))
    if word.endswith("s"):
        return compose_ts(int(word[:-1]) * 1000)
    return int(word)


class Script:
    """A storage on a fresh directory, and the commands it is told."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.engine = Engine.open(path, sync=False)
        settings = StoreSettings(lock_wait_timeout_ms=1000, wake_up_delay_ms=20)
        self.storage = TxnStorage(self.engine, clock=self.clock, settings=settings, max_ts=0)
        self.storage.observer = self
        self._told: list[str] = []
        self._running: dict[str, asyncio.Task[list[str]]] = {}

    def observe(self, changes: Sequence[Change]) -> None:
        """Note what the storage tells its observer."""
        for change in changes:
            at = f"@{change.commit_ts}" if change.commit_ts else ""
            value = f" {text(change.value)}" if change.value else ""
            what = f"{change.start_ts}{at} {change.op.name.lower()}{value}"
            self._told.append(f"> {change.kind.name} {text(change.key)} {what}")

    async def run(self, line: str) -> list[str]:
        """Carry out one command and return the lines that tell its outcome."""
        verb, *words = line.split()
        name = words.pop()[1:] if words and words[-1].startswith("&") else None
        call = getattr(self, "_" + verb.replace("-", "_"))
        work: Awaitable[Iterator[str] | list[str]] = call(_Arguments(words))
        if name is not None:
            return await self._start(name, work)
        lines = list(await asyncio.wait_for(work, _JOIN_S))
        told, self._told = self._told, []
        return [*told, *lines]

    async def close(self) -> None:
        """Stop everything; raise when a command is still running."""
        assert not self._running, f"commands without a join: {sorted(self._running)}"
        await self.storage.close()
        self.engine.close()

    async def _start(self, name: str, work: Awaitable[Iterator[str] | list[str]]) -> list[str]:
        async def finish() -> list[str]:
            return list(await work)

        waiting = len(await self._waits(_Arguments([])))
        task = self._running[name] = asyncio.ensure_future(finish())
        while not task.done() and len(await self._waits(_Arguments([]))) == waiting:
            await SYSTEM.sleep(0.001)
        return [f"{name} is done" if task.done() else f"{name} waits"]

    async def _join(self, args: "_Arguments") -> list[str]:
        (name,) = args.keys
        return await asyncio.wait_for(self._running.pop(name), _JOIN_S)

    async def _advance(self, args: "_Arguments") -> list[str]:
        self.clock.advance(int(args.keys[0]) / 1000)
        for _ in range(5):  # let those who were woken go on
            await SYSTEM.sleep(0)
        return []

    async def _prewrite(self, args: "_Arguments") -> list[str]:
        mutations = [_mutation(word) for word in args.words if ":" in word]
        request = kvrpcpb.PrewriteRequest(
            mutations=mutations,
            start_version=args.ts(0),
            primary_lock=args.raw("primary", mutations[0].key),
            lock_ttl=args.number("ttl", 3000),
            for_update_ts=args.number("for_update"),
            min_commit_ts=args.number("min_commit"),
            max_commit_ts=args.number("max_commit"),
            use_async_commit=args.flag("async"),
            try_one_pc=args.flag("1pc"),
            skip_constraint_check=args.flag("skip-check"),
            secondaries=args.key_list("secondaries"),
            pessimistic_actions=[_ACTIONS[word] for word in args.words_of("actions")],
            assertion_level=_LEVELS[args.option("level", "off")],
            context=kvrpcpb.Context(is_retry_request=args.flag("retry")),
        )
        for pair in args.words_of("constraints"):
            index, ts = pair.split("@")
            request.for_update_ts_constraints.add(index=int(index), expected_for_update_ts=int(ts))
        response = await self.storage.kv_prewrite(request, EVERYTHING)
        if response.errors:
            return [error_text(error) for error in response.errors]
        numbers = (("min_commit_ts", response.min_commit_ts), ("one_pc_commit_ts", response.one_pc_commit_ts))
        return ["ok" + "".join(f" {name}={ts}" for name, ts in numbers if ts)]

    async def _commit(self, args: "_Arguments") -> list[str]:
        request = kvrpcpb.CommitRequest(
            start_version=args.ts(0), commit_version=args.ts(1), keys=args.raw_keys(2)
        )
        return outcome(await self.storage.kv_commit(request, EVERYTHING), "commit_version")

    async def _rollback(self, args: "_Arguments") -> list[str]:
        request = kvrpcpb.BatchRollbackRequest(start_version=args.ts(0), keys=args.raw_keys(1))
        return outcome(await self.storage.kv_batch_rollback(request, EVERYTHING))

    async def _cleanup(self, args: "_Arguments") -> list[str]:
        request = kvrpcpb.CleanupRequest(
            start_version=args.ts(0), key=args.raw_keys(1)[0], current_ts=args.number("now")
        )
        return outcome(await self.storage.kv_cleanup(request, EVERYTHING), "commit_version")

    async def _lock(self, args: "_Arguments") -> list[str]:
        assertion = kvrpcpb.NotExist if args.flag("absent") else kvrpcpb.NoAssertion
        keys = args.raw_keys(1)
        request = kvrpcpb.PessimisticLockRequest(
            mutations=[
                kvrpcpb.Mutation(op=kvrpcpb.PessimisticLock, key=key, assertion=assertion) for key in keys
            ],
            primary_lock=args.raw("primary", keys[0]),
            start_version=args.ts(0),
            for_update_ts=args.number("for_update", args.ts(0)),
            lock_ttl=args.number("ttl", 3000),
            wait_timeout=args.number("wait", -1),
            min_commit_ts=args.number("min_commit"),
            is_first_lock=args.flag("first"),
            return_values=args.flag("values"),
            check_existence=args.flag("existence"),
            lock_only_if_exists=args.flag("if-exists"),
            wake_up_mode=kvrpcpb.WakeUpModeForceLock if args.flag("force") else kvrpcpb.WakeUpModeNormal,
        )
        response = await self.storage.kv_pessimistic_lock(request, EVERYTHING)
        return list(lock_outcome(response))

    async def _unlock(self, args: "_Arguments") -> list[str]:
        request = kvrpcpb.PessimisticRollbackRequest(
            start_version=args.ts(0),
            for_update_ts=args.number("for_update", args.ts(0)),
            keys=args.raw_keys(1),
        )
        await self.storage.kv_pessimistic_rollback(request, EVERYTHING)
        return ["ok"]

    async def _status(self, args: "_Arguments") -> list[str]:
        request = kvrpcpb.CheckTxnStatusRequest(
            lock_ts=args.ts(0),
            primary_key=args.raw_keys(1)[0],
            caller_start_ts=args.number("caller"),
            current_ts=args.number("now"),
            rollback_if_not_exist=args.flag("roll-back"),
            force_sync_commit=args.flag("force-sync"),
            resolving_pessimistic_lock=args.flag("pessimistic"),
            verify_is_primary=args.flag("verify"),
        )
        response = await self.storage.kv_check_txn_status(request, EVERYTHING)
        if response.HasField("error"):
            return [error_text(response.error)]
        if response.commit_version:
            return [f"committed at {response.commit_version}"]
        action = kvrpcpb.Action.Name(response.action)
        if not response.HasField("lock_info"):
            return [f"{action} rolled back"]
        return [f"{action} ttl={response.lock_ttl} min_commit_ts={response.lock_info.min_commit_ts}"]

    async def _secondaries(self, args: "_Arguments") -> list[str]:
        request = kvrpcpb.CheckSecondaryLocksRequest(start_version=args.ts(0), keys=args.raw_keys(1))
        response = await self.storage.kv_check_secondary_locks(request, EVERYTHING)
        if response.locks:
            return [f"locked {text(lock.key)} min_commit_ts={lock.min_commit_ts}" for lock in response.locks]
        return [f"commit_ts={response.commit_ts}"]

    async def _beat(self, args: "_Arguments") -> list[str]:
        request = kvrpcpb.TxnHeartBeatRequest(
            start_version=args.ts(0), primary_lock=args.raw_keys(1)[0], advise_lock_ttl=args.number("ttl")
        )
        return outcome(await self.storage.kv_txn_heart_beat(request, EVERYTHING), "lock_ttl")

    async def _resolve(self, args: "_Arguments") -> list[str]:
        request = kvrpcpb.ResolveLockRequest(
            start_version=args.ts(0), commit_version=args.ts(1), keys=args.raw_keys(2)
        )
        return outcome(await self.storage.kv_resolve_lock(request, EVERYTHING))

    async def _resolve_all(self, args: "_Arguments") -> list[str]:
        fates = [word.split(":") for word in args.words]
        infos = [kvrpcpb.TxnInfo(txn=int(txn), status=int(status)) for txn, status in fates]
        request = kvrpcpb.ResolveLockRequest(txn_infos=infos)
        return outcome(await self.storage.kv_resolve_lock(request, EVERYTHING))

    async def _locks(self, args: "_Arguments") -> list[str]:
        request = kvrpcpb.ScanLockRequest(
            max_version=args.number("max"),
            start_key=args.raw("from"),
            end_key=args.raw("to"),
            limit=args.number("limit"),
        )
        response = await self.storage.kv_scan_lock(request, EVERYTHING)
        if response.HasField("error"):
            return [error_text(response.error)]
        return [lock_text(lock) for lock in response.locks] or ["none"]

    async def _get(self, args: "_Arguments") -> list[str]:
        request = kvrpcpb.GetRequest(
            version=args.ts(0), key=args.raw_keys(1)[0], need_commit_ts=True, context=args.context()
        )
        response = await self.storage.kv_get(request, EVERYTHING)
        if response.HasField("error"):
            return [error_text(response.error)]
        return ["none" if response.not_found else f"{text(response.value)} @{response.commit_ts}"]

    async def _mget(self, args: "_Arguments") -> list[str]:
        request = kvrpcpb.BatchGetRequest(version=args.ts(0), keys=args.raw_keys(1), context=args.context())
        return pairs(await self.storage.kv_batch_get(request, EVERYTHING))

    async def _scan(self, args: "_Arguments") -> list[str]:
        request = kvrpcpb.ScanRequest(
            version=args.ts(0),
            start_key=args.raw("from"),
            end_key=args.raw("to"),
            limit=args.number("limit", 100),
            reverse=args.flag("reverse"),
            key_only=args.flag("keys"),
            sample_step=args.number("step"),
            context=args.context(),
        )
        return pairs(await self.storage.kv_scan(request, EVERYTHING))

    async def _gc(self, args: "_Arguments") -> list[str]:
        await self.storage.kv_gc(kvrpcpb.GCRequest(safe_point=args.ts(0)), EVERYTHING)
        return ["ok"]

    async def _destroy(self, args: "_Arguments") -> list[str]:
        start, end = args.raw_keys(0)
        request = kvrpcpb.UnsafeDestroyRangeRequest(start_key=start, end_key=end)
        await self.storage.unsafe_destroy_range(request, EVERYTHING)
        return ["ok"]

    async def _state(self, args: "_Arguments") -> list[str]:
        lines = []
        for key in args.raw_keys(0):
            request = kvrpcpb.MvccGetByKeyRequest(key=key)
            info = (await self.storage.mvcc_get_by_key(request, EVERYTHING)).info
            lines.append(f"{text(key)}: {', '.join(versions(info)) or 'nothing'}")
        return lines

    async def _waits(self, _: "_Arguments") -> list[str]:
        response = await self.storage.get_lock_wait_info(kvrpcpb.GetLockWaitInfoRequest(), EVERYTHING)
        return [f"{e.txn} waits for {e.wait_for_txn} on {text(e.key)}" for e in response.entries]

    async def _max_ts(self, _: "_Arguments") -> list[str]:
        return [str(self.storage.concurrency.max_ts)]


class _Arguments:
    """The words of a command: flags and keys, and options as name=value."""

    _FLAGS = frozenset({"async", "1pc", "skip-check", "retry", "absent", "first", "values", "existence"})
    _FLAGS |= {"if-exists", "force", "roll-back", "force-sync", "pessimistic", "verify", "reverse", "keys"}

    def __init__(self, words: Sequence[str]) -> None:
        self.words = [word for word in words if ":" in word or ("=" not in word and word not in self._FLAGS)]
        self.keys = self.words
        self._flags = {word for word in words if word in self._FLAGS}
        self._options = dict(word.split("=", 1) for word in words if "=" in word and ":" not in word)

    def flag(self, name: str) -> bool:
        return name in self._flags

    def option(self, name: str, default: str = "") -> str:
        return self._options.get(name, default)

    def number(self, name: str, default: int = 0) -> int:
        return parse_ts(self._options[name]) if name in self._options else default

    def raw(self, name: str, default: bytes = b"") -> bytes:
        return self._options[name].encode() if name in self._options else default

    def words_of(self, name: str) -> list[str]:
        return self.option(name).split(",") if self.option(name) else []

    def key_list(self, name: str) -> list[bytes]:
        return [word.encode() for word in self.words_of(name)]

    def ts(self, index: int) -> int:
        return parse_ts(self.words[index])

    def raw_keys(self, start: int) -> list[bytes]:
        return [word.encode() for word in self.words[start:]]

    def context(self) -> kvrpcpb.Context:
        isolation = [level for name, level in _ISOLATION.items() if self.option("isolation") == name]
        return kvrpcpb.Context(
            isolation_level=isolation[0] if isolation else kvrpcpb.SI,
            resolved_locks=[int(word) for word in self.words_of("passed")],
            committed_locks=[int(word) for word in self.words_of("committed")],
        )


def _mutation(word: str) -> kvrpcpb.Mutation:
    op, rest = word.split(":", 1)
    rest, _, assertion = rest.partition("!")
    key, _, value = rest.partition("=")
    if "*" in value:  # x*2000: a long value
        unit, times = value.split("*")
        value = unit * int(times)
    return kvrpcpb.Mutation(
        op=_OPS[op],
        key=key.encode(),
        value=value.encode(),
        assertion=_ASSERTIONS[assertion] if assertion else kvrpcpb.NoAssertion,
    )
