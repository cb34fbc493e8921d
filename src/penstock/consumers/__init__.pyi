from penstock.consumers.lake.parquet import live_files
from penstock.consumers.schema_evolution import plan_evolution

__all__ = [
    "live_files",
    "plan_evolution",
]
