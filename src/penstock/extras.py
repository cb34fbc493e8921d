"""Optional packages: which extra of Penstock installs each, and what a user reads where one is missing."""

from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from penstock.errors import Invalid

__all__ = ["EXTRAS", "Extra", "import_with_extra"]


class Extra(NamedTuple):
    """The extra of pyproject.toml that installs a module, and the package that has it."""

    name: str
    package: str


EXTRAS = {
    "boto3": Extra("aws", "boto3"),
    "deltalake": Extra("delta", "deltalake"),
    "lance": Extra("lance", "pylance"),
    "opentelemetry": Extra("otel", "opentelemetry-sdk"),
    "psycopg": Extra("postgres", "psycopg"),
    "pyiceberg": Extra("iceberg", "pyiceberg"),
}
"""By the name that Python imports."""


def import_with_extra(module: str, *, needed_by: str) -> ModuleType:
    """Import a module that uses an optional package.

    Raises Invalid, in one line with the command that installs it, when that package is missing.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise Invalid(
            f"{needed_by} needs the package {extra.package};"
            f" install it with: pip install 'penstock[{extra.name}]'"
        ) from error
