"""The placement driver's members: which of them leads, and a connection to it."""

import asyncio
import logging
from collections.abc import Sequence

import grpc

from penstock.errors import Invalid, Unavailable
from penstock.kv.rpc.connections import Dialer
from penstock.proto import pdpb_pb2 as pdpb
from penstock.proto.services import Stub

_LOG = logging.getLogger(__name__)
_SERVICE = "pdpb.PD"


def bare_addr(url: str) -> str:
    """Return host:port of an address that may be written as a URL."""
    return url.split("://", 1)[-1].rstrip("/")


class Members:
    """Follows the leader among the members.

    `stub` calls the leader that was found last; after a failure `refresh` looks for it again, and
    concurrent callers share one search.
    """

    def __init__(self, addrs: Sequence[str], dialer: Dialer, timeout_s: float) -> None:
        if not addrs:
            raise Invalid("pd_addrs is empty; give the address of at least one placement driver")
        self._addrs = [bare_addr(addr) for addr in addrs]
        self._dialer = dialer
        self._timeout_s = timeout_s
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stubs: dict[str, Stub] = {}
        self._stamp = dialer.stamp()
        self._search: asyncio.Task[None] | None = None
        self.leader = ""
        self.cluster_id = 0

    @property
    def stub(self) -> Stub:
        """Calls of the leader."""
        return self._stub(self.leader)

    def header(self) -> pdpb.RequestHeader:
        """Return the header that every request carries."""
        return pdpb.RequestHeader(cluster_id=self.cluster_id)

    async def refresh(self) -> None:
        """Ask the members for their leader; raise Unavailable when none of them knows it."""
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._find_leader())
            self._search.add_done_callback(_retrieve)
        await asyncio.shield(self._search)

    async def _find_leader(self) -> None:
        await self._take_over_certificates()
        problems = []
        for addr in list(self._addrs):
            try:
                answer = await self._stub(addr).GetMembers(
                    pdpb.GetMembersRequest(header=self.header()), timeout=self._timeout_s
                )
            except grpc.aio.AioRpcError as error:
                problems.append(f"{addr}: {error.details() or error.code().name}")
                continue
            if answer.leader.client_urls:
                self._follow(answer)
                return
            problems.append(f"{addr}: {answer.header.error.message or 'no leader yet'}")
        raise Unavailable(f"no placement driver answers ({'; '.join(problems)}); check pd_addrs")

    def _follow(self, answer: pdpb.GetMembersResponse) -> None:
        cluster_id = answer.header.cluster_id
        if self.cluster_id and cluster_id != self.cluster_id:
            raise Invalid(f"the placement driver now serves cluster {cluster_id}, not {self.cluster_id}")
        self.cluster_id = cluster_id
        leader = bare_addr(answer.leader.client_urls[0])
        known = [bare_addr(url) for member in answer.members for url in member.client_urls[:1]]
        # The leader is asked first next time; addresses of the settings stay as a last resort.
        self._addrs = list(dict.fromkeys([leader, *known, *self._addrs]))
        if leader != self.leader:
            _LOG.info("following the placement driver's leader", extra={"leader": leader})
        self.leader = leader

    async def _take_over_certificates(self) -> None:
        stamp = self._dialer.stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            await self._close_channels()

    def _stub(self, addr: str) -> Stub:
        stub = self._stubs.get(addr)
        if stub is None:
            channel = self._channels[addr] = self._dialer.open(addr)
            stub = self._stubs[addr] = Stub(channel, _SERVICE)
        return stub

    async def _close_channels(self) -> None:
        channels, self._channels, self._stubs = self._channels, {}, {}
        for channel in channels.values():
            await channel.close(None)

    async def close(self) -> None:
        """Close the connections."""
        if self._search is not None:
            self._search.cancel()
            await asyncio.gather(self._search, return_exceptions=True)
        await self._close_channels()


def _retrieve(search: "asyncio.Task[None]") -> None:
    """Retrieve the error of a search even when every caller was cancelled: asyncio would log it."""
    if not search.cancelled():
        search.exception()
