"""Calls about regions: find the region of a key, split regions, scatter their leaders."""

from collections.abc import Iterable

from penstock.errors import Invalid
from penstock.proto import pdpb_pb2 as pdpb
from penstock.store.pd.answers import Behaviour, PdRefused
from penstock.store.pd.stores import LeaderScheduler
from penstock.store.region import Region
from penstock.store.regions import Regions
from penstock.store.tso import Ids

__all__ = ["Routing"]

_SPLIT_MAX = 1024


def _answer(region: Region | None) -> pdpb.GetRegionResponse:
    if region is None:  # the caller asks again
        return pdpb.GetRegionResponse()
    return pdpb.GetRegionResponse(region=region.to_proto(), leader=region.leader.to_proto())


def _region_entry(region: Region) -> pdpb.Region:
    return pdpb.Region(region=region.to_proto(), leader=region.leader.to_proto())


class Routing:
    """Answers which region holds a key and which store leads it. All keys are encoded."""

    def __init__(self, regions: Regions, scheduler: LeaderScheduler, ids: Ids) -> None:
        self._regions = regions
        self._scheduler = scheduler
        self._ids = ids

    def behaviours(self) -> dict[str, Behaviour]:
        return {
            "GetRegion": self.get_region,
            "GetPrevRegion": self.get_previous_region,
            "GetRegionByID": self.get_region_by_id,
            "ScanRegions": self.scan_regions,
            "BatchScanRegions": self.batch_scan_regions,
            "AskBatchSplit": self.ask_batch_split,
            "ReportBatchSplit": self.report_batch_split,
            "ScatterRegion": self.scatter_region,
            "GetOperator": self.get_operator,
            "SplitRegions": self.split_regions,
        }

    async def get_region(self, request: pdpb.GetRegionRequest) -> pdpb.GetRegionResponse:
        return _answer(self._regions.by_key(request.region_key))

    async def get_previous_region(self, request: pdpb.GetRegionRequest) -> pdpb.GetRegionResponse:
        return _answer(self._regions.previous(request.region_key))

    async def get_region_by_id(self, request: pdpb.GetRegionByIDRequest) -> pdpb.GetRegionResponse:
        return _answer(self._regions.by_id(request.region_id))

    def query(self, request: pdpb.QueryRegionRequest) -> pdpb.QueryRegionResponse:
        """Answer many queries at once: the id of the region of each key, and the regions by id."""
        held = [self._regions.by_key(key) for key in request.keys]
        before = [self._regions.previous(key) for key in request.prev_keys]
        named = [self._regions.by_id(region_id) for region_id in request.ids]
        response = pdpb.QueryRegionResponse(
            key_id_map=[region.id for region in held],
            prev_key_id_map=[region.id if region else 0 for region in before],
        )
        for region in (*held, *before, *named):
            if region is not None:
                found = response.regions_by_id[region.id]
                found.region.CopyFrom(region.to_proto())
                found.leader.CopyFrom(region.leader.to_proto())
        return response

    async def scan_regions(self, request: pdpb.ScanRegionsRequest) -> pdpb.ScanRegionsResponse:
        found = self._regions.scan(request.start_key, request.end_key, request.limit)
        listed = [_region_entry(region) for region in found]
        return pdpb.ScanRegionsResponse(
            region_metas=[one.region for one in listed],
            leaders=[one.leader for one in listed],
            regions=listed,
        )

    async def batch_scan_regions(
        self, request: pdpb.BatchScanRegionsRequest
    ) -> pdpb.BatchScanRegionsResponse:
        found: list[Region] = []
        edge = b""
        for i, wanted in enumerate(request.ranges):
            if wanted.end_key and wanted.start_key > wanted.end_key:
                raise PdRefused(pdpb.INVALID_VALUE, "a range ends before it starts; order its keys")
            if i and (not edge or edge > wanted.start_key):
                raise PdRefused(pdpb.INVALID_VALUE, "the ranges overlap or are not in order; sort them")
            edge = wanted.end_key
            for region in self._regions.scan(wanted.start_key, wanted.end_key, 0):
                if not found or found[-1].id != region.id:
                    found.append(region)
        limited = found[: request.limit] if request.limit > 0 else found
        return pdpb.BatchScanRegionsResponse(regions=[_region_entry(region) for region in limited])

    async def ask_batch_split(self, request: pdpb.AskBatchSplitRequest) -> pdpb.AskBatchSplitResponse:
        if self._regions.by_id(request.region.id) is None:
            raise PdRefused(pdpb.REGION_NOT_FOUND, f"region {request.region.id} is not found")
        if not 1 <= request.split_count <= _SPLIT_MAX:
            raise Invalid(f"a region cannot be split {request.split_count} times; ask for 1 to {_SPLIT_MAX}")
        peers = len(request.region.peers)
        response = pdpb.AskBatchSplitResponse()
        for _ in range(request.split_count):
            first = await self._ids.allocate(1 + peers)
            response.ids.add(new_region_id=first, new_peer_ids=range(first + 1, first + 1 + peers))
        return response

    async def report_batch_split(self, _: pdpb.ReportBatchSplitRequest) -> pdpb.ReportBatchSplitResponse:
        """Ignore the report: regions are kept and split here, so it has nothing new."""
        return pdpb.ReportBatchSplitResponse()

    async def scatter_region(self, request: pdpb.ScatterRegionRequest) -> pdpb.ScatterRegionResponse:
        single = request.region_id or request.region.id
        wanted = list(request.regions_id) or [single]
        missing = [region_id for region_id in wanted if self._regions.by_id(region_id) is None]
        if missing and not request.regions_id:
            raise PdRefused(pdpb.REGION_NOT_FOUND, f"region {single} is not found")
        for region_id in wanted:
            if region_id not in missing:
                await self._scheduler.scatter(region_id)
        return pdpb.ScatterRegionResponse(
            finished_percentage=_percentage(wanted, missing), failed_regions_id=missing
        )

    async def get_operator(self, request: pdpb.GetOperatorRequest) -> pdpb.GetOperatorResponse:
        if not self._scheduler.was_scattered(request.region_id):
            raise PdRefused(pdpb.REGION_NOT_FOUND, f"region {request.region_id} has no operator")
        # Leaders move at once, so the operator is always finished.
        return pdpb.GetOperatorResponse(
            region_id=request.region_id, desc=b"scatter-region", status=pdpb.SUCCESS, kind=b"leader"
        )

    async def split_regions(self, request: pdpb.SplitRegionsRequest) -> pdpb.SplitRegionsResponse:
        parts = await self._regions.split_at(request.split_keys)
        return pdpb.SplitRegionsResponse(finished_percentage=100, regions_id=[part.id for part in parts])


def _percentage(wanted: Iterable[int], missing: Iterable[int]) -> int:
    total = len(list(wanted))
    return 100 * (total - len(list(missing))) // total
