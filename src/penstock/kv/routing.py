"""Sending a request to the region of a key, again and again while regions change underneath."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from penstock.kv.backoff import Backoffer
from penstock.kv.concurrently import run_all
from penstock.kv.region_table import KeyLocation
from penstock.kv.regions import RegionCache
from penstock.kv.sender import RegionSender, RegionStale

Answer = TypeVar("Answer", bound=Message)


class Router:
    """Finds the region of a request and follows it through splits, merges and leader changes."""

    def __init__(self, cache: RegionCache, sender: RegionSender) -> None:
        self.cache = cache
        self.sender = sender

    async def send_to_key(
        self, bo: Backoffer, method: str, request: Message, key: bytes, answer: type[Answer]
    ) -> Answer:
        """Send a request that concerns one key to the region that holds it."""
        while True:
            location = await self.cache.locate(bo, key)
            try:
                response = await self.sender.send(bo, method, request, location.region)
            except RegionStale:
                continue
            assert isinstance(response, answer)
            return response

    async def send_to_region(
        self, bo: Backoffer, method: str, request: Message, location: KeyLocation, answer: type[Answer]
    ) -> Answer:
        """Send a request to a region as it was located; raise RegionStale when it is no longer so."""
        response = await self.sender.send(bo, method, request, location.region)
        assert isinstance(response, answer)
        return response

    async def send_by_region(
        self,
        bo: Backoffer,
        method: str,
        keys: Sequence[bytes],
        make: Callable[[Sequence[bytes]], Message],
        answer: type[Answer],
    ) -> list[tuple[Sequence[bytes], Answer]]:
        """Send one request to each region that holds some of the sorted keys; return all answers."""
        groups = await self.cache.group_keys(bo, keys)

        async def ask(location: KeyLocation, part: Sequence[bytes]) -> list[tuple[Sequence[bytes], Answer]]:
            mine = bo.fork() if len(groups) > 1 else bo
            try:
                return [(part, await self.send_to_region(mine, method, make(part), location, answer))]
            except RegionStale:
                return await self.send_by_region(mine, method, part, make, answer)

        answers = await run_all(ask(location, keys[part]) for location, part in groups)
        return [pair for pairs in answers for pair in pairs]
