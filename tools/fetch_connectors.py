"""Fetch the jars of all connectors for the installed Spark, once. When that fails, say so and go on."""

import sys

from penstock.errors import PenstockError
from penstock.spark import connectors

rows = connectors.CONNECTORS.get(connectors.spark_version(), ())
names = tuple(connector.name for connector in rows)
try:
    connectors.connector_conf(*names)
except PenstockError as error:
    sys.stdout.write(f"tests of {' and '.join(names)} on Spark will be skipped: {error}\n")
