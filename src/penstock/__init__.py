"""Change data capture and change propagation in Python, on Spark.

    from penstock import Catalog, Client

    with Client.connect(["127.0.0.1:2379"]) as client:
        print(Catalog(client).databases())

These are the names that a user starts with. Each is imported when it is first used: `import penstock` loads
neither gRPC nor Arrow nor Spark.
"""

import logging
import os
from importlib import import_module

__all__ = [
    "AsyncClient",
    "Catalog",
    "Client",
    "Consumer",
    "DataRetriever",
    "Hint",
    "JobId",
    "JobSpec",
    "Jobs",
    "Settings",
    "build_session",
    "collect_changes",
    "open_table",
    "search",
]

__version__ = "0.1.0"

_MODULES = {  # what type checkers know of them is in __init__.pyi
    "AsyncClient": "kv",
    "Catalog": "tables",
    "Client": "kv",
    "Consumer": "jobs",
    "DataRetriever": "jobs",
    "Hint": "changes",
    "JobId": "jobs",
    "JobSpec": "jobs",
    "Jobs": "jobs",
    "Settings": "settings",
    "build_session": "spark.session",
    "collect_changes": "changes",
    "open_table": "follow.captures",
    "search": "consumers.search_index.search",
}

# gRPC's fork handlers now and then crash the child between fork and exec: Spark starts Java that way.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# A library says nothing by itself: on executors, and where it is imported, only who wants its logs has them.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found  # the next use asks nobody
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
