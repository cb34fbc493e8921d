"""What search indexes share: a Lance dataset that knows its watermark, how rows get there, and its upkeep."""

import warnings

# Spark's Java and other programs are started by forking, and run something else at once.
warnings.filterwarnings("ignore", message="lance is not fork-safe")
