"""`penstock init`: a settings file that says what there is, made of the settings themselves.

What people set first is set, to its default; the rest is commented out: `#key: value` is a key with its
default, `# text` is about the key below it.
"""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from penstock.errors import Invalid
from penstock.settings import Settings
from penstock.settings.frozen import meanings

__all__ = ["EXAMPLES", "rendered", "write"]

_WIDTH = 108
_INDENT = "  "
_ORDER = (
    "pd_addrs",
    "store",
    "capture",
    "changefeeds",
    "jobs",
    "api",
    "up",
    "spark",
    "metrics_addr",
    "tracing",
)
"""What comes first; the other sections follow as they are declared."""
_SET = {
    "pd_addrs": ...,
    "store": ("data", "pd_addr"),
    "capture": ("data", "storage", "tables"),
    "jobs": ("data",),
    "api": ("addr",),
    "up": ("data", "captures", "changefeeds", "jobs", "api"),
}
"""Keys that are set."""
EXAMPLES: dict[str, dict[str, Any]] = {
    "tls": {"ca_path": "ca.pem", "cert_path": "client.pem", "key_path": "client-key.pem"},
    "changefeeds": {
        "orders-to-lake": {
            "sink_uri": "s3://lake/orders?protocol=canal-json",
            "storage_options": {
                "aws_access_key_id": "${AWS_ACCESS_KEY_ID}",
                "aws_secret_access_key": "${AWS_SECRET_ACCESS_KEY}",
            },
            "tables": ["shop.orders"],
            "start": "snapshot",
        }
    },
    "api.accounts": {
        "operator": {"token": "${PENSTOCK_OPERATOR_TOKEN}", "admin": True},
        "shop": {"token_path": "secrets/shop.token", "targets": ["s3://lake/shop/"]},
    },
    "spark.pools": {"shop": {"weight": 2, "min_share": 1}},
}
"""How keys without a default that says enough are written."""
_HEAD = """\
Settings of a Penstock deployment: penstock up --config {path}

Keys that are commented out have the value that is shown; take the # away to change one, and that of its
section. ${{NAME}} and ${{NAME:-default}} are taken from the environment: that is where secrets belong.
docs/configuration.md has the same as a page."""


def write(path: Path, *, force: bool = False) -> None:
    """Write the file; raise Invalid when one is there, unless `force`, or when it cannot be written."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(rendered(path))
    except FileExistsError:
        raise Invalid(
            f"{path} is there already; choose another name, or write over it with --force"
        ) from None
    except OSError as error:
        raise Invalid(f"{path} cannot be written ({error.strerror}); choose another place") from error


def rendered(path: Path) -> str:
    """The text of the file."""
    fields, said = Settings.model_fields, meanings(Settings)
    names = [*_ORDER, *(name for name in fields if name not in _ORDER)]
    lines = [*_prose(_HEAD.format(path=path), "")]
    for name in names:
        lines += ["", *_field(name, fields[name], said.get(name, ""), "", live=name in _SET)]
    return "\n".join(lines) + "\n"


def _field(key: str, field: FieldInfo, said: str, indent: str, *, live: bool) -> Iterator[str]:
    """A key with what is said of it: a section with its keys, or one value."""
    name = key.rpartition(".")[2]
    mark = "" if live else "#"
    section = field.default if isinstance(field.default, BaseModel) else None
    yield from _prose(_about(said, section), indent)
    if key in EXAMPLES:
        yield from _example(name, EXAMPLES[key], indent)
    if section is None:
        yield f"{indent}{mark}{name}: {_value(field)}"
        return
    yield f"{indent}{mark}{name}:"
    set_here = _SET.get(key, ())
    inside = meanings(type(section))
    for each, inner in type(section).model_fields.items():
        set_it = isinstance(set_here, tuple) and each in set_here
        yield from _field(f"{key}.{each}", inner, inside.get(each, ""), indent + _INDENT, live=set_it)


def _about(said: str, section: BaseModel | None) -> str:
    return _paragraphs(section.__doc__) if section is not None and section.__doc__ and not said else said


def _paragraphs(text: str) -> str:
    """A docstring without its indentation; lines of a paragraph are one."""
    return "\n".join(" ".join(each.split()) for each in textwrap.dedent(text).strip().split("\n\n"))


def _prose(text: str, indent: str) -> Iterator[str]:
    for paragraph in text.splitlines():
        width = _WIDTH - len(indent)
        yield from (f"{indent}# {line}".rstrip() for line in textwrap.wrap(paragraph, width) or [""])


def _example(name: str, tree: dict[str, Any], indent: str) -> Iterator[str]:
    yield f"{indent}# For example:"
    for line in yaml.safe_dump({name: tree}, sort_keys=False, width=_WIDTH).splitlines():
        yield f"{indent}#     {line}"


def _value(field: FieldInfo) -> str:
    """The default as YAML, on one line."""
    value = _plain(field.get_default(call_default_factory=True, validated_data={}))
    return yaml.safe_dump(value, default_flow_style=True, width=float("inf")).splitlines()[0]


def _plain(value: Any) -> Any:
    assert not isinstance(value, SecretStr), "no secret has a default"
    if isinstance(value, Path):
        return str(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
