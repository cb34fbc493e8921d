"""Make the archive of Spark's classes for this environment, once. When that fails, say so and go on."""

import os
import sys
from pathlib import Path

from penstock.errors import PenstockError
from penstock.spark.class_archive import archive_path, build_archive
from penstock.spark.jvm import find_java, quick_home

home, java = Path(quick_home()), find_java(os.environ)
if not archive_path(home, java).exists():
    sys.stdout.write("archiving Spark's classes, for half a minute: sessions start faster afterwards\n")
    try:
        build_archive(home, java)
    except PenstockError as error:
        sys.stdout.write(f"Spark will start without it: {error}\n")
