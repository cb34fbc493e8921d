"""Is there a Java that Spark can run on? Asked before Spark starts, whose script would answer vaguely."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import Invalid

JAVA_MIN = 17
_VERSION = re.compile(r'version "(?P<first>\d+)(?:\.(?P<second>\d+))?')
_REMEDY = f"install Java {JAVA_MIN} or newer (for instance: apt-get install openjdk-{JAVA_MIN}-jre-headless)"


def require_java(environ: Mapping[str, str] = os.environ) -> None:
    """Raise Invalid with the remedy when the Java that Spark would take is missing or too old."""
    path = _find(environ)
    try:
        # the same program that Spark would run
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - Java itself
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Invalid(f"Java at {path} cannot be run; {_REMEDY} and set JAVA_HOME to it") from error
    found = major_version(done.stderr + done.stdout)
    if found is None:
        raise Invalid(f"Java at {path} does not tell its version; {_REMEDY} and set JAVA_HOME to it")
    if found < JAVA_MIN:
        raise Invalid(f"Java at {path} is version {found}; {_REMEDY} and set JAVA_HOME to it")


def major_version(text: str) -> int | None:
    """The version in what `java -version` writes; 1.8 counts as 8. None when there is none."""
    match = _VERSION.search(text)
    if match is None:
        return None
    first, second = int(match["first"]), match["second"]
    return int(second) if first == 1 and second else first


def _find(environ: Mapping[str, str]) -> str:
    """The same choice as Spark's start script."""
    home = environ.get("JAVA_HOME")
    if home:
        path = Path(home, "bin", "java")
        if not path.is_file():
            raise Invalid(f"JAVA_HOME is {home}, which has no bin/java; correct it or unset it")
        return str(path)
    found = shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise Invalid(f"Spark needs Java, and there is none on the PATH; {_REMEDY}")
    return found
