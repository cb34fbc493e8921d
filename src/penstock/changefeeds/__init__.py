"""Changefeeds: they replicate the changes of tables to files on object storage, and read such files back."""

from importlib import import_module

__all__ = [
    "Ddl",
    "DirectoryLayout",
    "DirectoryReader",
    "FileOptions",
    "TableChanges",
    "open_storage",
]

# What type checkers know of them is in __init__.pyi. Each is imported
# when it is first used: executors import this package, and read no directory.
_MODULES = {
    "Ddl": "directory.reader",
    "DirectoryLayout": "directory.listing",
    "DirectoryReader": "directory.reader",
    "FileOptions": "codecs.decoder",
    "TableChanges": "directory.reader",
    "open_storage": ".object_storage",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
