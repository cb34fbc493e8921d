from penstock.changes import Hint, collect_changes
from penstock.consumers.search_index.search import search
from penstock.follow.captures import open_table
from penstock.jobs import Consumer, DataRetriever, JobId, Jobs, JobSpec
from penstock.kv import AsyncClient, Client
from penstock.settings import Settings
from penstock.spark.session import build_session
from penstock.tables import Catalog

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

__version__: str
