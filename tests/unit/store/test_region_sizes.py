import asyncio
from pathlib import Path

from penstock.store.engine import Cf, Engine
from penstock.store.region import Peer, Region
from penstock.store.regions import Regions, SizeWatch, cut_points
from penstock.store.tso import Ids


def test_even_data_is_cut_evenly() -> None:
    samples = [(b"%03d" % i, 10) for i in range(100)]
    assert cut_points(samples, 1000) == []
    assert cut_points(samples, 500) == [b"050"]
    assert cut_points(samples, 250) == [b"025", b"050", b"075"]


def test_one_heavy_key_is_not_cut() -> None:
    assert cut_points([(b"a", 5000)], 1000) == []
    assert cut_points([(b"a", 10), (b"b", 5000), (b"c", 10)], 1000) == [b"c"]


async def test_a_region_that_outgrows_the_limit_is_cut_into_parts_below_it(engine: Engine) -> None:
    region = Region(id=5, start=b"", end=b"", conf_ver=1, version=1, peers=(Peer(6, 1),), leader_store=1)
    regions = Regions(engine, Ids(engine), [region])
    watch = SizeWatch(engine, regions, size_max=10_000)
    for i in range(40):
        await engine.write([(Cf.RAW, b"key%03d" % i, b"x" * 1000)])
    watch.count_written(5, 9_999)
    assert len(regions) == 1
    watch.count_written(5, 1)
    await _until(lambda: len(regions) > 1)
    await watch.close()
    held = [sum(1 for i in range(40) if one.contains(b"key%03d" % i)) for one in regions]
    assert sum(held) == 40
    assert max(held) * 1006 <= 11_000
    assert regions.by_key(b"zzz").id == 5


async def test_a_region_that_only_overwrites_is_measured_and_left_whole(engine: Engine) -> None:
    region = Region(id=5, start=b"", end=b"", conf_ver=1, version=1, peers=(Peer(6, 1),), leader_store=1)
    regions = Regions(engine, Ids(engine), [region])
    watch = SizeWatch(engine, regions, size_max=10_000)
    await engine.write([(Cf.RAW, b"key", b"x" * 1000)])
    watch.count_written(5, 50_000)
    await watch.close()
    watch.count_written(5, 1000)
    await watch.close()
    assert len(regions) == 1


async def _until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.to_thread(lambda: Path("/").exists())
