"""Change propagation: jobs that keep indexes, tables and other databases up to date with a table."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.jobs.api import Jobs
    from penstock.jobs.consumer import (
        Consumer,
        DataRetriever,
        DataType,
        JobContext,
        Retrieved,
        iter_batches,
        read_net_changes,
    )
    from penstock.jobs.job import ErrorCode, Job, JobId, JobState, JobStatus
    from penstock.jobs.runner.custom_triggers import TriggerContext
    from penstock.jobs.spec import ConsumerInfo, JobSpec, UpdateOptions

__all__ = [
    "Consumer",
    "ConsumerInfo",
    "DataRetriever",
    "DataType",
    "ErrorCode",
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
    "iter_batches",
    "read_net_changes",
]

# Each module is imported when one of its names is first used: code that only names a job, or defines a
# consumer, loads no client of the cluster.
_MODULES = {
    "api": ("Jobs",),
    "consumer": (
        "Consumer",
        "DataRetriever",
        "DataType",
        "JobContext",
        "Retrieved",
        "iter_batches",
        "read_net_changes",
    ),
    "job": ("ErrorCode", "Job", "JobId", "JobState", "JobStatus"),
    "runner.custom_triggers": ("TriggerContext",),
    "spec": ("ConsumerInfo", "JobSpec", "UpdateOptions"),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
