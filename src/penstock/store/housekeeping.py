"""Commands that concern a store itself rather than the data of a region."""

from collections.abc import Mapping

from penstock.errors import Invalid
from penstock.proto import errorpb_pb2 as errorpb
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.proto.codec import encode_bytes
from penstock.proto.services import methods
from penstock.store.bounds import KeyBounds
from penstock.store.commands import SERVICE, Command, Effect
from penstock.store.health import StoreHealth
from penstock.store.refusals import epoch_not_match, key_not_in_region, region_not_found
from penstock.store.regions import Regions
from penstock.store.safe_ts import SafeTs

__all__ = ["Housekeeping"]


class Housekeeping:
    """Splitting on request, health, and the timestamp up to which reads find everything settled."""

    def __init__(self, regions: Regions, health: StoreHealth, safe_ts: SafeTs) -> None:
        self._regions = regions
        self._health = health
        self._safe_ts = safe_ts

    def commands(self) -> Mapping[str, Command]:
        known = methods(SERVICE)

        def command(name: str, run: object, effect: Effect, *, local: bool) -> Command:
            return Command(name, run, known[name].response, effect, local=local)  # type: ignore[arg-type]

        listed = (
            command("SplitRegion", self.split_region, Effect.CHANGES, local=False),
            command("GetStoreSafeTS", self.get_store_safe_ts, Effect.READS, local=True),
            command("GetHealthFeedback", self.get_health_feedback, Effect.READS, local=True),
            command("BroadcastTxnStatus", self.broadcast_txn_status, Effect.READS, local=True),
        )
        return {one.name: one for one in listed}

    async def split_region(
        self, request: kvrpcpb.SplitRegionRequest, _: KeyBounds
    ) -> kvrpcpb.SplitRegionResponse:
        """Cut the region at the keys; the answer lists its parts in order."""
        keys = list(request.split_keys) or [request.split_key]
        encoded = keys if request.is_raw_kv else [encode_bytes(key) for key in keys]
        region_id = request.context.region_id
        region = self._regions.by_id(region_id)
        assert region is not None, "the region was checked just now"
        for key in encoded:
            if not region.contains(key):
                return kvrpcpb.SplitRegionResponse(region_error=key_not_in_region(region, key))
        try:
            parts = await self._regions.split(region_id, encoded)
        except Invalid:  # it changed while this waited for another change
            return kvrpcpb.SplitRegionResponse(region_error=self._changed(region_id))
        shown = [part.to_proto() for part in parts]
        return kvrpcpb.SplitRegionResponse(
            regions=shown, left=shown[0], right=shown[1] if len(shown) == 2 else None
        )

    def _changed(self, region_id: int) -> errorpb.Error:
        region = self._regions.by_id(region_id)
        return region_not_found(region_id) if region is None else epoch_not_match(region)

    async def get_store_safe_ts(
        self, _: kvrpcpb.StoreSafeTSRequest, __: KeyBounds
    ) -> kvrpcpb.StoreSafeTSResponse:
        return kvrpcpb.StoreSafeTSResponse(safe_ts=await self._safe_ts.get())

    async def get_health_feedback(
        self, _: kvrpcpb.GetHealthFeedbackRequest, __: KeyBounds
    ) -> kvrpcpb.GetHealthFeedbackResponse:
        return kvrpcpb.GetHealthFeedbackResponse(health_feedback=self._health.feedback())

    async def broadcast_txn_status(
        self, _: kvrpcpb.BroadcastTxnStatusRequest, __: KeyBounds
    ) -> kvrpcpb.BroadcastTxnStatusResponse:
        """A hint that spares lookups elsewhere; the store looks at the locks themselves."""
        return kvrpcpb.BroadcastTxnStatusResponse()
