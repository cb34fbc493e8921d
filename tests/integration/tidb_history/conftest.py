"""The session of Spark's own tests."""

from integration.spark.conftest import _no_session_is_left, spark

__all__ = ["_no_session_is_left", "spark"]
