"""A Spark session that is built when it is first needed: most processes that run jobs never need one."""

import logging
import threading
from typing import TYPE_CHECKING

from penstock.settings import Settings
from penstock.spark.java import require_java
from penstock.spark.masters import parse_master, require_master
from penstock.spark.pools import enter_pool
from penstock.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


class LateSession:
    """The session of this process, for any number of threads. It is built once."""

    def __init__(self, settings: Settings, *, app_name: str) -> None:
        self._settings = settings
        self._app_name = app_name
        self._lock = threading.Lock()
        self._spark: SparkSession | None = None

    def check(self) -> None:
        """Raise as `build_session` does where Java is missing or no master answers; start nothing."""
        require_java()
        require_master(parse_master(self._settings.spark.master))

    def __call__(self, account: str) -> "SparkSession":
        """The session, with the account's pool for what this thread runs; raises as `build_session` does."""
        spark = self.get()
        enter_pool(spark, account)
        return spark

    def get(self) -> "SparkSession":
        """The session; raises as `build_session` does."""
        with self._lock:
            if self._spark is None:
                _log.info("starting Spark", extra={"master": self._settings.spark.master})
                self._spark = build_session(self._settings, app_name=self._app_name)
            return self._spark

    def stop(self) -> None:
        """End the session, if there is one."""
        with self._lock:
            if self._spark is not None:
                self._spark.stop()
                self._spark = None
