"""Change propagation: jobs that keep indexes, tables and other databases up to date with a table."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.jobs.api import Jobs, check_spec, make_paths_absolute
    from penstock.jobs.consumer import (
        Comparable,
        Consumer,
        DataRetriever,
        DataType,
        JobContext,
        Retrieved,
        iter_batches,
        read_net_changes,
    )
    from penstock.jobs.freshness import FreshnessReader
    from penstock.jobs.job import ErrorCode, Job, JobId, JobState, JobStatus
    from penstock.jobs.runner.custom_triggers import TriggerContext
    from penstock.jobs.spec import ConsumerInfo, JobSpec, UpdateOptions
    from penstock.tables.arrow import arrow_schema

__all__ = [
    "Comparable",
    "Consumer",
    "ConsumerInfo",
    "DataRetriever",
    "DataType",
    "ErrorCode",
    "FreshnessReader",
    "Job",
    "JobContext",
    "JobId",
    "JobSpec",
    "JobState",
    "JobStatus",
    "Jobs",
    "Retrieved",
    "TriggerContext",
    "UpdateOptions",
    "arrow_schema",
    "check_spec",
    "iter_batches",
    "make_paths_absolute",
    "read_net_changes",
]

# Each module is imported when one of its names is first used: code that only names a job, or defines a
# consumer, loads no client of the cluster.
_MODULES = {
    "api": ("Jobs", "check_spec", "make_paths_absolute"),
    "consumer": (
        "Comparable",
        "Consumer",
        "DataRetriever",
        "DataType",
        "JobContext",
        "Retrieved",
        "iter_batches",
        "read_net_changes",
    ),
    "freshness": ("FreshnessReader",),
    "job": ("ErrorCode", "Job", "JobId", "JobState", "JobStatus"),
    "runner.custom_triggers": ("TriggerContext",),
    "spec": ("ConsumerInfo", "JobSpec", "UpdateOptions"),
    ".tables.arrow": ("arrow_schema",),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
