"""Finding a consumer by its name: ours, one that an installed package offers, or `module:Class`."""

from importlib import import_module
from importlib.metadata import entry_points

from penstock.errors import Invalid
from penstock.jobs.consumer import Consumer

GROUP = "penstock.consumers"
"""The group of entry points in which packages offer consumers by name."""

_OURS = {
    "delta": "penstock.consumers.lake.delta:Delta",
    "fulltext": "penstock.consumers.search_index.fulltext:Fulltext",
    "iceberg": "penstock.consumers.lake.iceberg:Iceberg",
    "kv": "penstock.consumers.kv:KvTable",
    "parquet": "penstock.consumers.lake.parquet:ParquetCopy",
    "postgres": "penstock.consumers.postgres:Postgres",
    "vector": "penstock.consumers.search_index.vector:Vector",
    "webhook": "penstock.consumers.webhook:Webhook",
}
BUILT_IN = frozenset(_OURS)
"""The short names of those that come with Penstock."""


def consumer_names() -> list[str]:
    """The short names that there are."""
    return sorted({*_OURS, *(each.name for each in entry_points(group=GROUP))})


def find_consumer(name: str) -> type[Consumer]:
    """The class of a consumer; raise Invalid when there is none of that name, or it is something else.

    Runs the code of its module: who may register jobs may run code in the process of the runner.
    """
    found = _load(_place(name), name)
    if not (isinstance(found, type) and issubclass(found, Consumer)):
        raise Invalid(f"{name!r} is no consumer; a consumer is a subclass of penstock.jobs.Consumer")
    return found


def _place(name: str) -> str:
    if ":" in name:
        return name
    if name in _OURS:
        return _OURS[name]
    offered = [each.value for each in entry_points(group=GROUP, name=name)]
    if not offered:
        raise Invalid(
            f"there is no consumer {name!r}; there are {', '.join(consumer_names())}, or module:Class"
        )
    return offered[0]


def _load(place: str, name: str) -> object:
    module_name, _, path = place.partition(":")
    try:
        found: object = import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:  # its module is code of somebody else's, and may raise anything
        why = str(error) if isinstance(error, ImportError | AttributeError) else type(error).__name__
        raise Invalid(
            f"consumer {name!r} cannot be loaded ({why}); check its module and class, and that the runner's"
            " Python has it"
        ) from error
    return found
