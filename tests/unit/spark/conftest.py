"""Code of Spark's workers, run in the process of the tests."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _tracebacks_are_shown_again() -> Iterator[None]:
    """Code of workers, which end after an error, may have hidden them in the process of the tests."""
    yield
    os.environ.pop("SPARK_HIDE_TRACEBACK", None)
