"""The example of an AUTO CDC flow, as far as it goes without a target that supports MERGE."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark import pipelines

from support.itemtables import item, item_table
from support.servedworld import ServedWorld

EXAMPLE = Path(__file__).parents[3] / "examples" / "autocdc"


@pytest.mark.skipif(
    not hasattr(pipelines, "create_auto_cdc_flow"),
    reason=f"AUTO CDC needs Spark 4.2; this is Spark {pyspark.__version__}",
)
@pytest.mark.timeout(300)
def test_the_example_is_a_valid_pipeline_that_lacks_nothing_but_a_target_with_merge(tmp_path: Path):
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    source = project / "transformations" / "orders.py"
    text = source.read_text()
    assert 'format="delta"' in text
    source.write_text(text.replace("shop.orders", "shop.items").replace('format="delta"', 'format="parquet"'))
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/tmp/orders-pipeline", str(tmp_path / "state")))
    with ServedWorld(tmp_path / "world", item_table()) as world:
        world.commit(*(item("integer", number, "x") for number in range(3)))
        world.flush()
        config = tmp_path / "penstock.yaml"
        config.write_text(f"capture: {{storage: '{world.storage.url}'}}\nkv: {{pd_timeout_ms: 500}}\n")
        done = subprocess.run(
            [str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"), "run"],
            cwd=project,
            env={
                **os.environ,
                "PENSTOCK_CONFIG": str(config),
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_TESTING": "0",  # Spark's way to a free port: another server may have the usual one
            },
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    said = done.stdout + done.stderr
    assert "Starting run" in said
    assert "[AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE]" in said
    assert "`orders_copy` (format: parquet)" in said
