"""The etcd beside a placement driver: plain keys with revisions, and the calls that clients make to it.

Global settings use the same keys. Keyspaces are answered here too; there is only the default one.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from penstock.proto import etcdserverpb_pb2 as etcdserverpb
from penstock.proto import keyspacepb_pb2 as keyspacepb
from penstock.proto import mvccpb_pb2 as mvccpb
from penstock.proto import pdpb_pb2 as pdpb
from penstock.proto.services import handler
from penstock.store import meta
from penstock.store.engine import Cf, Engine, Mutation

__all__ = ["Etcd", "EtcdKeys", "Event", "GlobalConfig", "Keyspaces"]


_HISTORY_MAX = 1000


@dataclass(frozen=True, slots=True)
class Event:
    """A key was put, or deleted when there is no value, at a revision."""

    revision: int
    key: bytes
    value: bytes | None


class EtcdKeys:
    """A small map of plain keys; every change has a revision, and the newest changes can be watched."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.revision = meta.unpack(engine.view().get(Cf.META, meta.ETCD_REVISION)) or 1
        self._oldest = self.revision + 1
        self._history: deque[Event] = deque(maxlen=_HISTORY_MAX)
        self._changed = asyncio.Condition()

    def get(self, key: bytes) -> mvccpb.KeyValue | None:
        stored = self._engine.view().get(Cf.META, meta.ETCD + key)
        return mvccpb.KeyValue.FromString(stored) if stored is not None else None

    def scan(self, start: bytes, end: bytes) -> list[mvccpb.KeyValue]:
        """Return the keys in [start, end), in order; an empty end is no end."""
        upper = meta.ETCD + end if end else meta.after(meta.ETCD)
        pairs = self._engine.view().iterate(Cf.META, meta.ETCD + start, upper)
        return [mvccpb.KeyValue.FromString(value) for _, value in pairs]

    async def write(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Put or (with None) delete keys, all at one new revision."""
        async with self._changed:
            revision = self.revision + 1
            mutations: list[Mutation] = [(Cf.META, meta.ETCD_REVISION, meta.pack(revision))]
            mutations += [self._mutation(key, value, revision) for key, value in changes]
            await self._engine.write(mutations)
            self.revision = revision
            for key, value in changes:
                if len(self._history) == _HISTORY_MAX:
                    self._oldest = self._history[0].revision + 1
                self._history.append(Event(revision, key, value))
            self._changed.notify_all()

    def _mutation(self, key: bytes, value: bytes | None, revision: int) -> Mutation:
        name = meta.ETCD + key
        if value is None:
            return Cf.META, name, None
        old = self.get(key)
        kept = mvccpb.KeyValue(
            key=key,
            value=value,
            create_revision=old.create_revision if old else revision,
            mod_revision=revision,
            version=old.version + 1 if old else 1,
        )
        return Cf.META, name, kept.SerializeToString()

    def remembers(self, revision: int) -> bool:
        """Return whether `changes` still knows every change from `revision` on."""
        return revision >= self._oldest

    async def changes(self, prefix: bytes, revision: int) -> list[Event]:
        """Wait for changes below `prefix` at or after `revision`; return them in order.

        Changes that have left the history are missing: call `remembers` before each call.
        """
        async with self._changed:
            while True:
                events = [e for e in self._history if e.revision >= revision and e.key.startswith(prefix)]
                if events:
                    return events
                await self._changed.wait()


_TO_THE_END = b"\x00"  # a range end that means "every key from the start on"
_DEFAULT_PATH = "/global/config/"
_DEFAULT_KEYSPACE = "DEFAULT"


class Etcd:
    """Members, and reading and writing plain keys."""

    def __init__(self, keys: EtcdKeys, *, cluster_id: int, url: str, member: str) -> None:
        self._keys = keys
        self._cluster_id = cluster_id
        self._url = url
        self._member = member

    def handlers(self) -> "list[grpc.GenericRpcHandler[Any, Any]]":
        return [
            handler("etcdserverpb.KV", {"Range": self.range, "Put": self.put}),
            handler("etcdserverpb.Cluster", {"MemberList": self.member_list}),
        ]

    def _header(self) -> etcdserverpb.ResponseHeader:
        return etcdserverpb.ResponseHeader(
            cluster_id=self._cluster_id, member_id=self._cluster_id, revision=self._keys.revision, raft_term=1
        )

    async def range(self, request: etcdserverpb.RangeRequest, _: Any) -> etcdserverpb.RangeResponse:
        if request.range_end:
            end = b"" if request.range_end == _TO_THE_END else request.range_end
            found = self._keys.scan(request.key, end)
        else:
            one = self._keys.get(request.key)
            found = [one] if one is not None else []
        shown = found[: request.limit] if request.limit > 0 else found
        return etcdserverpb.RangeResponse(
            header=self._header(), kvs=shown, more=len(shown) < len(found), count=len(found)
        )

    async def put(self, request: etcdserverpb.PutRequest, context: Any) -> etcdserverpb.PutResponse:
        if request.lease or request.ignore_value or request.ignore_lease:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "leases are not served")
        old = self._keys.get(request.key) if request.prev_kv else None
        await self._keys.write([(request.key, request.value)])
        return etcdserverpb.PutResponse(header=self._header(), prev_kv=old)

    async def member_list(
        self, _: etcdserverpb.MemberListRequest, __: Any
    ) -> etcdserverpb.MemberListResponse:
        member = etcdserverpb.Member(
            ID=self._cluster_id, name=self._member, peerURLs=[self._url], clientURLs=[self._url]
        )
        return etcdserverpb.MemberListResponse(header=self._header(), members=[member])


class GlobalConfig:
    """Settings that servers of a cluster share, below a path of plain keys."""

    def __init__(self, keys: EtcdKeys, *, cluster_id: int) -> None:
        self._keys = keys
        self._cluster_id = cluster_id

    async def store(self, request: pdpb.StoreGlobalConfigRequest) -> pdpb.StoreGlobalConfigResponse:
        changes = [
            (
                _below(request.config_path, item.name),
                None if item.kind == pdpb.DELETE else item.value.encode() or item.payload,
            )
            for item in request.changes
        ]
        await self._keys.write(changes)
        return pdpb.StoreGlobalConfigResponse()

    async def load(self, request: pdpb.LoadGlobalConfigRequest) -> pdpb.LoadGlobalConfigResponse:
        """Return the named items, or without names all below the path under their full names."""
        if request.names:
            items = [self._item(request.config_path, name) for name in request.names]
        else:
            path = (request.config_path or _DEFAULT_PATH).encode()
            items = [
                pdpb.GlobalConfigItem(name=found.key.decode(), payload=found.value, kind=pdpb.PUT)
                for found in self._keys.scan(path, path[:-1] + bytes([path[-1] + 1]))
            ]
        return pdpb.LoadGlobalConfigResponse(items=items, revision=self._keys.revision)

    def _item(self, path: str, name: str) -> pdpb.GlobalConfigItem:
        found = self._keys.get(_below(path, name))
        if found is None:
            error = pdpb.Error(type=pdpb.GLOBAL_CONFIG_NOT_FOUND, message=f"key {name} not found")
            return pdpb.GlobalConfigItem(name=name, error=error)
        return pdpb.GlobalConfigItem(name=name, payload=found.value, kind=pdpb.PUT)

    async def watch(
        self, request: pdpb.WatchGlobalConfigRequest, _: Any
    ) -> AsyncIterator[pdpb.WatchGlobalConfigResponse]:
        """Stream changes below the path from a revision on (0: from now on)."""
        path = (request.config_path or _DEFAULT_PATH).encode()
        header = pdpb.ResponseHeader(cluster_id=self._cluster_id)
        after = request.revision or self._keys.revision + 1
        while self._keys.remembers(after):
            events = await self._keys.changes(path, after)
            after = events[-1].revision + 1
            yield pdpb.WatchGlobalConfigResponse(
                header=header, revision=events[-1].revision, changes=[_config_item(event) for event in events]
            )
        header.error.type = pdpb.DATA_COMPACTED
        header.error.message = f"revision {after} is forgotten; load again and watch from its revision"
        yield pdpb.WatchGlobalConfigResponse(header=header, revision=self._keys.revision)


def _below(path: str, name: str) -> bytes:
    return f"{(path or _DEFAULT_PATH).rstrip('/')}/{name}".encode()


def _config_item(event: Event) -> pdpb.GlobalConfigItem:
    if event.value is None:
        return pdpb.GlobalConfigItem(name=event.key.decode(), kind=pdpb.DELETE)
    return pdpb.GlobalConfigItem(name=event.key.decode(), payload=event.value, kind=pdpb.PUT)


class Keyspaces:
    """Answers that the only keyspace is the default one."""

    def __init__(self, *, cluster_id: int) -> None:
        self._header = pdpb.ResponseHeader(cluster_id=cluster_id)

    def handler(self) -> "grpc.GenericRpcHandler[Any, Any]":
        return handler("keyspacepb.Keyspace", {"LoadKeyspace": self.load})

    async def load(self, request: keyspacepb.LoadKeyspaceRequest, _: Any) -> keyspacepb.LoadKeyspaceResponse:
        response = keyspacepb.LoadKeyspaceResponse(header=self._header)
        if request.name == _DEFAULT_KEYSPACE:
            response.keyspace.id = 0
            response.keyspace.name = _DEFAULT_KEYSPACE
            response.keyspace.state = keyspacepb.ENABLED
        else:
            response.header.error.type = pdpb.ENTRY_NOT_FOUND
            response.header.error.message = "keyspace does not exist"
        return response
