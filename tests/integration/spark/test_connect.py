"""The data source on Spark Connect: a program without a Java of its own, and the server that it starts."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.changefeeds.codecs.options import EncoderOptions
from penstock.changefeeds.engines.encode import encode_part
from penstock.changefeeds.engines.engine import EncodeWork
from penstock.changes.limits import ReadLimit
from penstock.follow.scans import scan_tail
from penstock.follow.slices import Position, SliceRange, TableSpan, plan_slice
from penstock.follow.source import TableScan
from penstock.object_storage import StorageRef
from support.itemtables import item, item_table
from support.servedworld import ServedWorld
from support.spark import SMALL
from support.tableworld import START

pytestmark = pytest.mark.timeout(600)

CLIENT = Path(__file__).with_name("connect_client.py")
LOOPBACK = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def work_of(world: ServedWorld) -> tuple[EncodeWork, TableScan]:
    """Return all changes, for a changefeed and for a job."""
    view = world.view(world.flight_rows())
    schema = world.schemas.versions(1, START, world.ts)[-1]
    wanted = SliceRange(TableSpan.of("feed", 1), Position(START), world.ts, ReadLimit(), snapshot=False)
    found = plan_slice(view, schema, wanted)
    assert found is not None
    return EncodeWork(found, EncoderOptions(encoded_at_ms=5)), scan_tail(view, START, world.ts, ReadLimit())


def test_reads_streams_changefeeds_and_jobs_work_through_spark_connect(tmp_path: Path) -> None:
    with ServedWorld(tmp_path / "world", item_table()) as world:
        world.commit(*(item("integer", number, "a") for number in (1, 2, 3)))
        world.flush()
        world.commit(item("integer", 4, "b"), delete=[(1,)])
        world.resolve()
        target = StorageRef(f"file://{tmp_path}/remote")
        encode, scan = work_of(world)
        (tmp_path / "work").write_bytes(pickle.dumps((encode, target, scan)))
        asked = {
            "work": str(tmp_path / "work"),
            "options": world.options(),
            "conf": {**SMALL, **LOOPBACK},
            "checkpoint": str(tmp_path / "checkpoint"),
        }
        done = subprocess.run(
            [sys.executable, str(CLIENT), json.dumps(asked)],
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(Path(__file__).parents[2]),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_TESTING": "0",  # Spark's way to a free port: another server may have the usual one
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        payloads = [encoded.payload for encoded in encode_part(encode.slice, 0, encode.options)]
    assert done.returncode == 0, done.stderr
    told = [1, 1, 2, 3, 4]
    found = json.loads(done.stdout)
    assert found == {
        "rows": [2, 3, 4],
        "configured": [2, 3, 4],
        "feed": told,
        "function": told,
        "view": told,
        "stream": [2, 3, 4],
        "pieces": [0, 2, 4, 6, 8],
        "tables": [2, 3, 4],
        "range of tables": told,
        "set": "3",
        "errors": [""],
        "failure": None,
        "changed": [1, 2, 3, 4],
        "read in a round": [2, 3, 4],
        "tasks": 2,
        "given back": ["the Spark session has ended; build a new one and repeat the call"],
        "refused": found["refused"],
        "stopped": True,
    }
    assert found["refused"].startswith(("the Spark session died", "Spark did not start", "Spark master sc:"))
    for name in ("1.json", "2.json"):
        assert target.open().read(name) == b"".join(payloads)
    assert done.stderr.count("Spark Connect has no scheduler pools") == 1
