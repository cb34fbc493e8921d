"""What a user gave Spark: `spark-defaults.conf` and the arguments of `spark-submit`.

In sessions that Penstock builds itself the file counts above Penstock's own defaults and below the settings
file. In all others `launch_defaults` finds the options of the data source, `spark.penstock.*`: Spark gives a
Python data source the options of a read, and nothing of the session.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from penstock.errors import Invalid
from penstock.settings import SparkSettings
from penstock.spark.jvm import HOME

__all__ = [
    "PREFIX",
    "launch_defaults",
    "memory_mib",
    "parse_properties",
    "parse_submit",
    "read_defaults",
    "with_defaults",
]

PREFIX = "spark.penstock."
"""Of the keys of Spark's configuration that are options of the data source."""

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
    return _read_properties(path) if folder and path.is_file() else {}


def _read_properties(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'}); correct it"
        ) from error
    return parse_properties(text)


_SUBMIT = "org.apache.spark.deploy.SparkSubmit"  # Java's main class, whoever started it
_DEFAULTS_TOO = "--load-spark-defaults"  # also with a file of properties
_SWITCHES = frozenset({_DEFAULTS_TOO, "--verbose", "-v", "--supervise", "--help", "-h", "--version"})
"""Arguments without a value."""
_ANCESTORS_MAX = 8  # a process that plans a read is a child of Java, or of Spark's daemon


def launch_defaults(
    environ: Mapping[str, str] = os.environ, commands: Sequence[Sequence[str]] | None = None
) -> dict[str, str]:
    """Return the options of the data source with which Spark was started, for a process that plans a read.

    They are the `spark.penstock.*` of `spark-defaults.conf`, and of the arguments of the Java that this
    process descends from: `spark-submit --conf`, and `SparkSession.builder.config` of the program that
    started Spark. `commands` are the command lines of its ancestors. Raises Invalid when a file of
    properties cannot be read.
    """
    found: dict[str, str] = {}
    for command in _ancestors() if commands is None else commands:
        if _SUBMIT in command:
            given, properties = parse_submit(command[list(command).index(_SUBMIT) + 1 :])
            if properties is None or _DEFAULTS_TOO in command:
                found = read_defaults(environ)
            # A launcher may remove its file once Java has read it, as our own sessions do.
            if properties is not None and Path(properties).exists():
                found |= _read_properties(Path(properties))
            found |= given
            break
    else:
        found = read_defaults(environ)
    return {key.removeprefix(PREFIX): value for key, value in found.items() if key.startswith(PREFIX)}


def parse_submit(arguments: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """Return the configuration among the arguments of `spark-submit`, and its file of properties. Pure.

    What follows the program belongs to the program.
    """
    conf: dict[str, str] = {}
    properties = None
    rest = iter(arguments)
    for argument in rest:
        if argument in _SWITCHES:
            continue
        if not argument.startswith("-"):
            break
        name, assigned, value = argument.partition("=")
        if not assigned:
            value = next(rest, "")
        if name in {"--conf", "-c"}:
            key, _, entry = value.partition("=")
            conf[key.strip()] = entry
        elif name == "--properties-file":
            properties = value
    return conf, properties


def _ancestors() -> Iterator[list[str]]:
    """Yield the command lines of the processes above this one, as far as the system shows them."""
    pid = os.getppid()
    for _ in range(_ANCESTORS_MAX):
        folder = Path("/proc", str(pid))
        try:
            command = folder.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
            pid = int(folder.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):  # it has ended, or there is no such folder
            return
        yield command


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
