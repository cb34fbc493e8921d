"""Change data capture and change propagation in Python, on Spark."""

import logging
import os

__version__ = "0.1.0"

# gRPC's fork handlers now and then crash the child between fork and exec: Spark starts Java that way.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# A library says nothing by itself: on executors, and where it is imported, only who wants its logs has them.
logging.getLogger(__name__).addHandler(logging.NullHandler())
