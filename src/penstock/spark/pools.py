"""One scheduler pool for each account, so that nobody's jobs starve another's."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from penstock.spark.jvm import driver_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.settings import PoolSettings

_POOL = "spark.scheduler.pool"


def allocation_file(pools: Mapping[str, "PoolSettings"]) -> str:
    """Spark's allocation file for the pools of the settings; jobs within a pool share it fairly too."""
    root = ElementTree.Element("allocations")
    for name, pool in pools.items():
        element = ElementTree.SubElement(root, "pool", name=name)
        ElementTree.SubElement(element, "schedulingMode").text = "FAIR"
        ElementTree.SubElement(element, "weight").text = str(pool.weight)
        ElementTree.SubElement(element, "minShare").text = str(pool.min_share)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def enter_pool(spark: "SparkSession", account: str) -> None:
    """Run all jobs that this thread starts from now on in the account's pool; raise as `driver_context`."""
    driver_context(spark).setLocalProperty(_POOL, account)


@contextmanager
def in_pool(spark: "SparkSession", account: str) -> Iterator[None]:
    """Run the jobs that this thread starts inside the block in the account's pool; see `enter_pool`."""
    context = driver_context(spark)
    before = context.getLocalProperty(_POOL)
    context.setLocalProperty(_POOL, account)
    try:
        yield
    finally:
        # Spark takes None as "no pool of its own", though its annotation does not say so
        context.setLocalProperty(_POOL, before)  # type: ignore[arg-type]
