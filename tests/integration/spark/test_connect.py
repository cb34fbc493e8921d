"""The data source on Spark Connect: a program without a Java of its own, and the server that it starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

from support.itemtables import item, item_table
from support.servedworld import ServedWorld
from support.spark import SMALL

CLIENT = Path(__file__).with_name("connect_client.py")
LOOPBACK = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def test_tables_changes_and_streams_are_read_through_spark_connect(tmp_path: Path) -> None:
    with ServedWorld(tmp_path / "world", item_table()) as world:
        world.commit(*(item("integer", number, "a") for number in (1, 2, 3)))
        world.flush()
        world.commit(item("integer", 4, "b"), delete=[(1,)])
        world.resolve()
        asked = {
            "options": world.options(),
            "conf": {**SMALL, **LOOPBACK},
            "checkpoint": str(tmp_path / "checkpoint"),
        }
        done = subprocess.run(
            [sys.executable, str(CLIENT), json.dumps(asked)],
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_TESTING": "0",  # Spark's way to a free port: another server may have the usual one
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    told = [1, 1, 2, 3, 4]
    assert json.loads(done.stdout) == {
        "rows": [2, 3, 4],
        "configured": [2, 3, 4],
        "feed": told,
        "function": told,
        "view": told,
        "stream": [2, 3, 4],
        "pieces": [0, 2, 4, 6, 8],
        "refused": "this is a session of Spark Connect; changefeeds, jobs, pools and shipping need a driver"
        " in this process: build a session with penstock.spark.session.build_session",
    }
