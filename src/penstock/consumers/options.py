"""The options of a consumer in its job's spec: texts by name, checked once and turned into a frozen value.

    class PostgresOptions(ConsumerOptions):
        dsn: SecretStr
        table: str
        batch: ByteSize = 8 << 20
        storage: Properties = Field(default_factory=dict, repr=False)

    options = PostgresOptions.parse(job.info)

A field that is a dict takes all options that begin with its name and a dot, such as `storage.region`. A name
that pydantic itself uses is given as an alias: `schema_name: str = Field("public", alias="schema")`. Options
that name places are listed in `places`: a relative one is made absolute where the job is registered.
"""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_origin
from urllib.parse import unquote

from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr, ValidationError

from penstock.durations import parse_duration
from penstock.errors import Invalid
from penstock.jobs.spec import ConsumerInfo

_SIZE = re.compile(r"([1-9]\d*)\s*(KiB|MiB|GiB|)", re.IGNORECASE)
_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def _parse_names(given: Any) -> Any:
    return tuple(filter(None, map(str.strip, given.split(",")))) if isinstance(given, str) else given


def _parse_seconds(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return parse_duration(given)
    except Invalid:
        raise ValueError("write a duration such as 500ms, 10s, 5m or 1h30m") from None


def _parse_bytes(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    size = _SIZE.fullmatch(given.strip())
    if not size:
        raise ValueError("write a size such as 65536, 512KiB, 8MiB or 1GiB")
    return int(size[1]) * _UNITS[size[2].lower()]


Names = Annotated[tuple[str, ...], BeforeValidator(_parse_names)]
"""Names separated by commas."""
Seconds = Annotated[float, BeforeValidator(_parse_seconds)]
"""A duration such as 10s."""
ByteSize = Annotated[int, BeforeValidator(_parse_bytes)]
"""A size such as 8MiB."""
Properties = dict[str, SecretStr]
"""A group of options for a library; any of them may be a secret. `reveal_secrets` returns their values."""


def absolute_place(place: str) -> str:
    """Return a path or URL that names the same folder or file in every process of this machine.

    A relative one refers to the working directory of this process. URLs that do not name files stay as they
    are.
    """
    scheme, separator, rest = place.partition("://")
    if not separator:
        return str(Path(place).absolute())
    if scheme.lower() != "file" or rest.startswith("/"):
        return place
    return Path(unquote(rest)).absolute().as_uri()


def reveal_secrets(properties: Mapping[str, SecretStr]) -> dict[str, str]:
    """Return a group with its secrets as plain texts, for the library that uses them."""
    return {name: value.get_secret_value() for name, value in properties.items()}


class ConsumerOptions(BaseModel):
    """The options of one kind of consumer: one field for each, a SecretStr for what must not be shown.

    An empty option counts as not given, so that an update of a job can remove one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    places: ClassVar[tuple[str, ...]] = ()
    """The options that name a folder or a file, or a URL of one."""

    @classmethod
    def absolute_options(cls, options: Mapping[str, str]) -> dict[str, str]:
        """Return the options with absolute places."""
        return {
            name: absolute_place(value) if value and name in cls.places else value
            for name, value in options.items()
        }

    @classmethod
    def parse(cls, info: ConsumerInfo) -> Self:
        """Check the options of a job; raise Invalid, with the names of valid ones but never a value."""
        tree: dict[str, Any] = {}
        groups = cls._groups()
        for option, value in cls.absolute_options(info.options).items():
            name, dot, rest = option.partition(".")
            if name not in groups or bool(dot and rest) != groups[name]:
                raise cls._unknown_option(info, option)
            if not value:
                continue
            if dot:
                tree.setdefault(name, {})[rest] = value
            else:
                tree[name] = value
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise cls._refused_option(info, error) from None

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the options, groups as `name.*`."""
        return [f"{name}.*" if is_group else name for name, is_group in cls._groups().items()]

    @classmethod
    def _groups(cls) -> dict[str, bool]:
        """Return for each option, by its name or alias, whether it is a group."""
        return {
            field.alias or name: get_origin(field.annotation) is dict
            for name, field in cls.model_fields.items()
        }

    @classmethod
    def _unknown_option(cls, info: ConsumerInfo, option: str) -> Invalid:
        names = cls.names()
        close = difflib.get_close_matches(option.lower(), names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ";"
        known = f"there are {', '.join(names)}" if names else "it takes none"
        return Invalid(f"consumer {info.consumer} has no option {option}{hint} {known}")

    @classmethod
    def _refused_option(cls, info: ConsumerInfo, error: ValidationError) -> Invalid:
        first = error.errors(include_input=False, include_url=False)[0]
        option = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            return Invalid(f"consumer {info.consumer} needs the option {option}")
        why = first["msg"].removeprefix("Value error, ")
        subject = f"option {option} of" if option else "the options of"
        return Invalid(f"{subject} consumer {info.consumer}: {why}")
