"""Search indexes on Lance: a dataset that knows its watermark, its writers, its upkeep and searches."""

import warnings

# Java for Spark and other programs are started by fork and exec: the child never uses Lance.
warnings.filterwarnings("ignore", message="lance is not fork-safe")
