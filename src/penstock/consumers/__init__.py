"""The targets that jobs can keep up to date: each module is a consumer that a user could have written."""

from importlib import import_module

__all__ = [
    "live_files",
    "plan_evolution",
]

# What type checkers know of them is in __init__.pyi. Each is imported
# when it is first used: no consumer loads the libraries of another.
_MODULES = {
    "live_files": "lake.parquet",
    "plan_evolution": "schema_evolution",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
