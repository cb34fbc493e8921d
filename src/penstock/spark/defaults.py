"""What a user's `spark-defaults.conf` says, for the sessions that Penstock builds itself.

It counts above Penstock's own defaults and below the settings file, as for any other program of Spark.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import Invalid
from penstock.settings import SparkSettings
from penstock.spark.jvm import HOME

__all__ = ["memory_mib", "parse_properties", "read_defaults", "with_defaults"]

_FIELDS = {
    "spark.master": "master",
    "spark.driver.memory": "driver_memory",
    "spark.executor.memory": "executor_memory",
}
_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t]*")
_ENTRY = re.compile(r"(?P<key>(?:\\.|[^\\\s=:])+)\s*[=:\s]?\s*(?P<value>.*)")


def with_defaults(wanted: SparkSettings, environ: Mapping[str, str] = os.environ) -> SparkSettings:
    """Return settings with gaps filled from the user's defaults. Raises Invalid if they are unreadable."""
    defaults = read_defaults(environ)
    given = wanted.model_fields_set
    conf = {key: value for key, value in defaults.items() if key not in _FIELDS} | wanted.conf
    if "ui_port" in given:
        conf = {key: value for key, value in conf.items() if key in wanted.conf or "spark.ui." not in key}
    fields = {
        field: defaults[key] for key, field in _FIELDS.items() if key in defaults and field not in given
    }
    return wanted.model_copy(update={**fields, "conf": conf}) if defaults else wanted


def read_defaults(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the entries of `spark-defaults.conf`; none when there is no such file."""
    folder = environ.get("SPARK_CONF_DIR") or (f"{environ[HOME]}/conf" if environ.get(HOME) else "")
    path = Path(folder, "spark-defaults.conf")
    if not folder or not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'}); correct it"
        ) from error
    return parse_properties(text)


def parse_properties(text: str) -> dict[str, str]:
    """Return the entries of a Java properties file whose keys begin with `spark.`, as Spark reads them."""
    entries = {}
    for line in _CONTINUED.sub(r"\1", text).splitlines():
        stripped = line.strip()
        found = None if stripped.startswith(("#", "!")) else _ENTRY.match(stripped)
        if found and found["key"].startswith("spark."):
            entries[_unescape(found["key"])] = _unescape(found["value"])
    return entries


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)")


def _unescape(text: str) -> str:
    def read(found: "re.Match[str]") -> str:
        escaped = found[1]
        return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _ESCAPES.get(escaped, escaped)

    return _ESCAPED.sub(read, text)


_UNITS = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(?P<number>-?[0-9]+)(?P<unit>[bkmgt]?)b?")


def memory_mib(text: str, *, unit: str = "m") -> int:
    """Return a size of Spark's configuration in MiB; a number without a unit has the given one."""
    found = _SIZE.fullmatch(text.strip().lower())
    if not found:
        raise Invalid(f"{text!r} is not a size of Spark's configuration; write it as 512m or 2g")
    return int(found["number"]) * _UNITS[found["unit"] or unit] // 2**20
