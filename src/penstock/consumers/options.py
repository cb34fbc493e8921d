"""What a consumer is told in its job's spec: texts by name, checked once and turned into a frozen value.

    class PostgresOptions(ConsumerOptions):
        dsn: SecretStr
        table: str
        batch: ByteSize = 8 << 20
        storage: Properties = Field(default_factory=dict, repr=False)

    options = PostgresOptions.parse(job.info)

A field that is a dict takes all options that begin with its name and a dot: `storage.region`. A name that
pydantic has itself is given as an alias: `schema_name: str = Field("public", alias="schema")`. Options that
name places are listed in `places`: a relative one is made absolute where the job is registered.
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


def _names(given: Any) -> Any:
    return tuple(filter(None, map(str.strip, given.split(",")))) if isinstance(given, str) else given


def _seconds(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return parse_duration(given)
    except Invalid:
        raise ValueError("write a duration such as 500ms, 10s, 5m or 1h30m") from None


def _bytes(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    size = _SIZE.fullmatch(given.strip())
    if not size:
        raise ValueError("write a size such as 65536, 512KiB, 8MiB or 1GiB")
    return int(size[1]) * _UNITS[size[2].lower()]


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
"""Names with commas between them."""
Seconds = Annotated[float, BeforeValidator(_seconds)]
"""A duration such as 10s."""
ByteSize = Annotated[int, BeforeValidator(_bytes)]
"""A size such as 8MiB."""
Properties = dict[str, SecretStr]
"""A group of options that are handed on to a library; any of them may be a secret. See `revealed`."""


def absolute_place(place: str) -> str:
    """A path, or a URL, that names the same folder or file in every process of this machine.

    A relative one is relative to this process's folder. URLs of other things than files stay as they are.
    """
    scheme, separator, rest = place.partition("://")
    if not separator:
        return str(Path(place).absolute())
    if scheme.lower() != "file" or rest.startswith("/"):
        return place
    return Path(unquote(rest)).absolute().as_uri()


def revealed(properties: Mapping[str, SecretStr]) -> dict[str, str]:
    """A group as the library wants it."""
    return {name: value.get_secret_value() for name, value in properties.items()}


class ConsumerOptions(BaseModel):
    """The options of one kind of consumer: a field for each, SecretStr for what nobody may see.

    An option that is empty counts as not given, so that an update of a job can take one back.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    places: ClassVar[tuple[str, ...]] = ()
    """The options that name a folder or a file, or a URL of one."""

    @classmethod
    def absolute_options(cls, options: Mapping[str, str]) -> dict[str, str]:
        """Options whose places are absolute."""
        return {
            name: absolute_place(value) if value and name in cls.places else value
            for name, value in options.items()
        }

    @classmethod
    def parse(cls, info: ConsumerInfo) -> Self:
        """Check what a job says; raise Invalid naming the option, never its value, and those that exist."""
        tree: dict[str, Any] = {}
        groups = cls._groups()
        for option, value in cls.absolute_options(info.options).items():
            name, dot, rest = option.partition(".")
            if name not in groups or bool(dot and rest) != groups[name]:
                raise cls._unknown(info, option)
            if not value:
                continue
            if dot:
                tree.setdefault(name, {})[rest] = value
            else:
                tree[name] = value
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise cls._refused(info, error) from None

    @classmethod
    def names(cls) -> list[str]:
        """The options that exist, groups as `name.*`."""
        return [f"{name}.*" if is_group else name for name, is_group in cls._groups().items()]

    @classmethod
    def _groups(cls) -> dict[str, bool]:
        """The options by name, or by alias where the name is taken in pydantic; whether they are groups."""
        return {
            field.alias or name: get_origin(field.annotation) is dict
            for name, field in cls.model_fields.items()
        }

    @classmethod
    def _unknown(cls, info: ConsumerInfo, option: str) -> Invalid:
        names = cls.names()
        close = difflib.get_close_matches(option.lower(), names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ";"
        there = f"there are {', '.join(names)}" if names else "it takes none"
        return Invalid(f"consumer {info.consumer} has no option {option}{hint} {there}")

    @classmethod
    def _refused(cls, info: ConsumerInfo, error: ValidationError) -> Invalid:
        first = error.errors(include_input=False, include_url=False)[0]
        option = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            return Invalid(f"consumer {info.consumer} needs the option {option}")
        why = first["msg"].removeprefix("Value error, ")
        subject = f"option {option} of" if option else "the options of"
        return Invalid(f"{subject} consumer {info.consumer}: {why}")
