"""Fetch the jars of all connectors for the installed Spark, once. When that fails, say so and go on."""

import sys

from penstock.errors import PenstockError
from penstock.settings import SparkSettings
from penstock.spark import connectors

names = tuple(connector.name for connector in connectors.CONNECTORS.get(connectors.spark_version(), ()))
wanted = SparkSettings.model_validate({"connectors": names})
try:
    if connectors.missing_jars(connectors.needed_jars(wanted), connectors.jar_folder(wanted)):
        sys.stdout.write(f"fetching Spark's connectors for {' and '.join(names)}, about 70 MB\n")
        sys.stdout.flush()
        connectors.session_conf(wanted)
except PenstockError as error:
    sys.stdout.write(f"tests of {' and '.join(names)} on Spark will be skipped: {error}\n")
