"""A region: a range of keys, the peers that hold it and which of them leads."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from penstock.errors import Corrupt, Invalid
from penstock.proto import metapb_pb2 as metapb
from penstock.store.bounds import KeyBounds, raw_bounds

__all__ = ["Peer", "Region"]

INITIAL_TERM = 5  # the term that a region of TiKV has before its first change of leader
_HEAD = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class Peer:
    """A replica of a region on a store."""

    id: int
    store_id: int

    def to_proto(self) -> metapb.Peer:
        return metapb.Peer(id=self.id, store_id=self.store_id)


@dataclass(frozen=True, slots=True)
class Region:
    """One version of a region.

    `start` and `end` are encoded as the placement driver shows them; an empty `end` is the end of
    the key space. Every change of the range raises `version`, every change of the peers raises
    `conf_ver`, every change of the leader raises `term`. The leader is always one of the peers.
    """

    id: int
    start: bytes
    end: bytes
    conf_ver: int
    version: int
    peers: tuple[Peer, ...]
    leader_store: int
    term: int = INITIAL_TERM
    leader: Peer = field(init=False, repr=False, compare=False)
    _bounds: KeyBounds = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert not self.end or self.start < self.end, "a region has at least one possible key"
        leader = self.peer_on(self.leader_store)
        assert leader is not None, "the leader is one of the peers"
        object.__setattr__(self, "leader", leader)
        object.__setattr__(self, "_bounds", raw_bounds(self.start, self.end))

    def bounds(self) -> KeyBounds:
        """Return the region's range in the raw key space of transactions."""
        return self._bounds

    def contains(self, encoded: bytes) -> bool:
        return self.start <= encoded and (not self.end or encoded < self.end)

    def peer_on(self, store_id: int) -> Peer | None:
        for peer in self.peers:
            if peer.store_id == store_id:
                return peer
        return None

    def to_proto(self) -> metapb.Region:
        return metapb.Region(
            id=self.id,
            start_key=self.start,
            end_key=self.end,
            region_epoch=metapb.RegionEpoch(conf_ver=self.conf_ver, version=self.version),
            peers=[peer.to_proto() for peer in self.peers],
        )

    def to_bytes(self) -> bytes:
        """Return the form that is stored on disk."""
        return _HEAD.pack(self.leader_store, self.term) + self.to_proto().SerializeToString()

    @classmethod
    def from_bytes(cls, stored: bytes) -> "Region":
        """Read the form that is stored on disk; raise Corrupt when it is damaged."""
        try:
            leader_store, term = _HEAD.unpack_from(stored)
            meta = metapb.Region.FromString(stored[_HEAD.size :])
        except Exception as error:
            raise Corrupt("a region's record is damaged; restore the data directory from a copy") from error
        return cls(
            id=meta.id,
            start=meta.start_key,
            end=meta.end_key,
            conf_ver=meta.region_epoch.conf_ver,
            version=meta.region_epoch.version,
            peers=tuple(Peer(peer.id, peer.store_id) for peer in meta.peers),
            leader_store=leader_store,
            term=term,
        )

    def split(
        self, keys: Sequence[bytes], newcomers: Sequence[tuple[int, Sequence[int]]]
    ) -> tuple["Region", ...]:
        """Split at `keys` (sorted, distinct, inside); each newcomer is a region id with the ids of its peers.

        The last part keeps this region's id; all parts carry the same new version.
        """
        assert len(keys) == len(newcomers)
        version = self.version + len(keys)
        edges = (self.start, *keys)
        parts = [
            replace(
                self,
                id=region_id,
                start=edges[i],
                end=keys[i],
                version=version,
                term=INITIAL_TERM,
                peers=tuple(
                    Peer(peer_id, peer.store_id) for peer_id, peer in zip(peer_ids, self.peers, strict=True)
                ),
            )
            for i, (region_id, peer_ids) in enumerate(newcomers)
        ]
        return (*parts, replace(self, start=keys[-1], version=version))

    def absorb(self, source: "Region") -> "Region":
        """Return this region with the range of an adjacent region, which ceases to exist."""
        adjacent_left = source.end == self.start and bool(self.start)
        adjacent_right = self.end == source.start and bool(self.end)
        if not adjacent_left and not adjacent_right:
            raise Invalid(f"regions {source.id} and {self.id} are not neighbours; merge adjacent regions")
        return replace(
            self,
            start=source.start if adjacent_left else self.start,
            end=self.end if adjacent_left else source.end,
            # Preparing the merge has raised the source's version once already.
            version=max(source.version + 1, self.version) + 1,
        )

    def with_leader(self, store_id: int) -> "Region":
        """Return this region with another of its peers as the leader."""
        if self.peer_on(store_id) is None:
            raise Invalid(f"region {self.id} has no peer on store {store_id}; choose one of its stores")
        if store_id == self.leader_store:
            return self
        return replace(self, leader_store=store_id, term=self.term + 1)

    def with_peer(self, peer: Peer) -> "Region":
        """Return this region with a peer on another store."""
        assert self.peer_on(peer.store_id) is None
        return replace(self, peers=(*self.peers, peer), conf_ver=self.conf_ver + 1)

    def without_peer(self, store_id: int) -> "Region":
        """Return this region without a peer that does not lead."""
        assert store_id != self.leader_store
        return replace(
            self,
            peers=tuple(peer for peer in self.peers if peer.store_id != store_id),
            conf_ver=self.conf_ver + 1,
        )
