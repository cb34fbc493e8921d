"""`penstock init`: a settings file with every key, generated from the settings classes.

Keys that most deployments set are active, with their defaults. The others are commented out: `#key: value`
is a key with its default, `# text` explains the key below it.
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
from penstock.settings.frozen import field_texts

__all__ = ["EXAMPLES", "render_file", "write_file"]

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
"""These sections come first; the others follow in the order of declaration."""
_ACTIVE = {
    "pd_addrs": ...,
    "store": ("data", "pd_addr"),
    "capture": ("data", "storage", "tables"),
    "jobs": ("data",),
    "api": ("addr",),
    "up": ("data", "captures", "changefeeds", "jobs", "api"),
}
"""Keys that are not commented out; `...` means the section itself."""
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
"""Examples of keys whose defaults do not show their form."""
_HEAD = """\
Settings of a Penstock deployment: penstock up --config {path}

A key that is commented out has the value shown; to change it, remove its # and that of its section.
${{NAME}} and ${{NAME:-default}} are replaced from the environment: keep secrets there.
docs/configuration.md is the same as a page."""


def secrets_folder(path: Path) -> Path:
    """Return the folder of the tokens of a deployment whose settings file is at `path`.

    For a file of the working directory it is the default, which moves with it. Otherwise it is beside the
    file, and absolute: commands find it from everywhere.
    """
    folder = path.absolute().parent
    default = Settings().secrets_dir
    return default if folder.resolve() == Path.cwd().resolve() else folder / default


def write_file(path: Path, *, force: bool = False) -> None:
    """Write the file; raise Invalid when it cannot be written, or exists and `force` is off."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(render_file(path, secrets_folder(path)))
    except FileExistsError:
        raise Invalid(f"{path} exists already; choose another name, or overwrite it with --force") from None
    except OSError as error:
        raise Invalid(f"{path} cannot be written ({error.strerror}); choose another path") from error


def render_file(path: Path, secrets_dir: Path | None = None) -> str:
    """Return the text of the file; a `secrets_dir` that is not the default is active."""
    fields, texts = Settings.model_fields, field_texts(Settings)
    names = [*_ORDER, *(name for name in fields if name not in _ORDER)]
    lines = [*_comment_lines(_HEAD.format(path=path), "")]
    for name in names:
        field, active = fields[name], name in _ACTIVE
        if name == "secrets_dir" and secrets_dir not in {None, field.default}:
            field, active = FieldInfo(annotation=Path, default=secrets_dir), True
        lines += ["", *_field_lines(name, field, texts.get(name, ""), "", active=active)]
    return "\n".join(lines) + "\n"


def _field_lines(key: str, field: FieldInfo, text: str, indent: str, *, active: bool) -> Iterator[str]:
    """Yield the lines of a key and its explanation: a section with its keys, or one value."""
    name = key.rpartition(".")[2]
    mark = "" if active else "#"
    section = field.default if isinstance(field.default, BaseModel) else None
    yield from _comment_lines(_field_text(text, section), indent)
    if key in EXAMPLES:
        yield from _example_lines(name, EXAMPLES[key], indent)
    if section is None:
        yield f"{indent}{mark}{name}: {_default_text(field)}"
        return
    yield f"{indent}{mark}{name}:"
    active_here = _ACTIVE.get(key, ())
    inside = field_texts(type(section))
    for inner_name, inner in type(section).model_fields.items():
        is_active = isinstance(active_here, tuple) and inner_name in active_here
        yield from _field_lines(
            f"{key}.{inner_name}", inner, inside.get(inner_name, ""), indent + _INDENT, active=is_active
        )


def _field_text(text: str, section: BaseModel | None) -> str:
    """Return the text of a key; for a section without one, the docstring of its class."""
    return _paragraphs(section.__doc__) if section is not None and section.__doc__ and not text else text


def _paragraphs(text: str) -> str:
    """Return a docstring without indentation, with one line for each paragraph."""
    return "\n".join(" ".join(paragraph.split()) for paragraph in textwrap.dedent(text).strip().split("\n\n"))


def _comment_lines(text: str, indent: str) -> Iterator[str]:
    for paragraph in text.splitlines():
        width = _WIDTH - len(indent)
        yield from (f"{indent}# {line}".rstrip() for line in textwrap.wrap(paragraph, width) or [""])


def _example_lines(name: str, tree: dict[str, Any], indent: str) -> Iterator[str]:
    yield f"{indent}# For example:"
    for line in yaml.safe_dump({name: tree}, sort_keys=False, width=_WIDTH).splitlines():
        yield f"{indent}#     {line}"


def _default_text(field: FieldInfo) -> str:
    """Return the default as YAML, on one line."""
    value = _yaml_value(field.get_default(call_default_factory=True, validated_data={}))
    return yaml.safe_dump(value, default_flow_style=True, width=float("inf")).splitlines()[0]


def _yaml_value(value: Any) -> Any:
    assert not isinstance(value, SecretStr), "no secret has a default"
    if isinstance(value, Path):
        return str(value)
    return [_yaml_value(item) for item in value] if isinstance(value, tuple) else value
