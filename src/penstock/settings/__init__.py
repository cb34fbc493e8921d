"""The settings of a deployment, loaded from one YAML file and checked.

${NAME}, ${NAME:-default} and ${file:PATH} in the file are replaced; those in the credentials of changefeeds
are kept for the process that runs them. A wrong value raises Invalid with its key, the value and what is
allowed; values of secrets are masked.
"""

import re
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator

from penstock.errors import Invalid
from penstock.secret_references import UnresolvedReference, escape_references, resolve_references
from penstock.settings.capture import CaptureSettings, PullerSettings, UpkeepSettings
from penstock.settings.changefeed import ChangefeedSettings, ColumnSelectorSettings, RowFilterSettings
from penstock.settings.cluster import KvSettings, StoreSettings
from penstock.settings.frozen import Frozen
from penstock.settings.jobs import JobsSettings, PoolSettings, SparkSettings
from penstock.settings.network import ServerTlsSettings, TlsSettings
from penstock.settings.services import AccountSettings, ApiSettings, TracingSettings, UpSettings
from penstock.settings.tokens import admin_token_path, fill_tokens

__all__ = [
    "AccountSettings",
    "ApiSettings",
    "CaptureSettings",
    "ChangefeedSettings",
    "ColumnSelectorSettings",
    "JobsSettings",
    "KvSettings",
    "PoolSettings",
    "PullerSettings",
    "RowFilterSettings",
    "ServerTlsSettings",
    "Settings",
    "SparkSettings",
    "StoreSettings",
    "TlsSettings",
    "TracingSettings",
    "UpSettings",
    "UpkeepSettings",
    "expand",
    "load",
    "parse",
    "parse_changefeed",
    "read_file",
    "with_tokens",
]

_SECRET_KEYS = (
    "password",
    "secret",
    "token",
    "key_path",
    "storage_options",
    "spark.conf",
    ".sink",
    "headers",
)
_REMOVED_KEYS = (
    (
        re.compile(r"changefeeds\.(?:.*\.)?spark_rows"),
        "remove it: changefeeds of every size run on Spark; to use no Spark, write `engine: local` at the top"
        " of the settings file",
    ),
    (
        re.compile(r"jobs\.spark_rows"),
        "remove it: jobs read ranges of every size on Spark; to use no Spark, write `engine: local` at the"
        " top of the settings file",
    ),
)
"""Keys of earlier releases, and what to write instead."""
_FEED_NAME = re.compile(r"(?!.{129})[A-Za-z0-9]+(-[A-Za-z0-9]+)*")


class Settings(Frozen):
    """All settings that penstock.yaml may contain."""

    pd_addrs: tuple[str, ...] = ("127.0.0.1:2379",)
    """Addresses of the placement drivers, of TiKV or of the embedded store."""
    tls: TlsSettings | None = None
    """Certificates for a cluster that uses TLS."""
    kv: KvSettings = KvSettings()
    store: StoreSettings = StoreSettings()
    puller: PullerSettings = PullerSettings()
    capture: CaptureSettings = CaptureSettings()
    engine: Literal["spark", "local"] = "spark"
    """Who works on rows: Spark, or `local`: the services themselves, for machines without Java."""
    spark: SparkSettings = SparkSettings()
    changefeeds: dict[str, ChangefeedSettings] = Field({})
    """Changefeeds by name; `penstock up` and `changefeed run` create those that are missing."""
    jobs: JobsSettings = JobsSettings()
    api: ApiSettings = ApiSettings()
    up: UpSettings = UpSettings()
    secrets_dir: Path = Path("penstock-data/secrets")
    """Folder of the tokens and keys that the deployment makes for itself, for its owner only."""
    tracing: TracingSettings = TracingSettings()
    metrics_addr: str | None = Field(None, pattern=r"^\S+:[0-9]{1,5}$")
    """Address for a service's metrics; port 0 takes a free port. With `penstock up` the API serves all."""

    @property
    def admin_token_path(self) -> Path | None:
        """The file of the admin's token, if the API accepts the one that the deployment has made."""
        return admin_token_path(self.secrets_dir, self.api)

    @classmethod
    def load(cls, path: Path) -> "Settings":
        """Read a settings file, and find the deployment's own tokens where it names none.

        Raises Invalid with the key, the value and what is allowed.
        """
        return load(path)

    @field_validator("changefeeds")
    @classmethod
    def _feeds_have_plain_names(cls, feeds: dict[str, ChangefeedSettings]) -> dict[str, ChangefeedSettings]:
        for name in feeds:
            if not _FEED_NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is not a valid name; use at most 128 letters, digits and single hyphens"
                )
        return feeds


def load(path: Path) -> Settings:
    """Read a settings file; raise Invalid with the key, the value and what is allowed.

    The deployment's own tokens are found where the file names none.
    """
    return with_tokens(read_file(path))


def with_tokens(settings: Settings, *, make: bool = False) -> Settings:
    """Return the settings with the deployment's own tokens where they name none.

    With `make`, missing tokens are made first: services that listen do so. Raises Invalid when they cannot
    be kept in secrets_dir.
    """
    capture, api = fill_tokens(settings.secrets_dir, settings.capture, settings.api, make=make)
    return settings.model_copy(update={"capture": capture, "api": api})


def read_file(path: Path) -> Settings:
    """Read a settings file without the deployment's own tokens.

    Raises Invalid with the key, the value and what is allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Invalid(f"settings file {path} cannot be read ({error.strerror}); check --config") from error
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        at = f" at line {where.line + 1}" if where else ""
        raise Invalid(f"settings file {path} is not valid YAML{at}; fix its syntax") from error
    return parse(_expand_file(tree or {}), origin=str(path))


def parse(tree: Any, *, origin: str = "settings") -> Settings:
    """Check a parsed tree; raise Invalid naming the first wrong key."""
    if not isinstance(tree, dict):
        raise Invalid(f"{origin} must be a mapping of keys to values, not a {type(tree).__name__}")
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise Invalid(f"{origin}: {_describe(error)}") from None


def parse_changefeed(tree: Any, *, origin: str) -> ChangefeedSettings:
    """Check the section of one changefeed; raise Invalid naming the first wrong key."""
    try:
        return ChangefeedSettings.model_validate(tree)
    except ValidationError as error:
        raise Invalid(f"{origin}: {_describe(error, within='changefeeds.')}") from None


def expand(tree: Any) -> Any:
    """Replace the references to secrets in every string; raise Invalid when one cannot be resolved here."""
    if isinstance(tree, dict):
        return {key: expand(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [expand(value) for value in tree]
    if isinstance(tree, str):
        try:
            return resolve_references(tree)
        except UnresolvedReference as error:
            reference, _, why = str(error).partition("} ")
            raise Invalid(f"settings use {reference}}}, which {why}") from error
    return tree


def _expand_file(tree: Any) -> Any:
    """Expand a settings file, except for parameters and credentials of changefeeds: their runner does that.

    They are stored beside the changefeed, as references. Where its files go is known from the start: the
    part of a sink URI before its parameters is expanded.
    """
    feeds = tree.get("changefeeds") if isinstance(tree, dict) else None
    if not isinstance(feeds, dict):
        return expand(tree)
    sections = {name: _expand_feed(section) for name, section in feeds.items()}
    return {
        **expand({key: value for key, value in tree.items() if key != "changefeeds"}),
        "changefeeds": sections,
    }


def _expand_feed(section: Any) -> Any:
    if not isinstance(section, dict):
        return expand(section)
    kept = {key: section[key] for key in ("sink", "storage_options") if key in section}
    uri = section.get("sink_uri")
    if isinstance(uri, str):
        place, mark, parameters = uri.partition("?")
        kept["sink_uri"] = escape_references(expand(place)) + mark + parameters
    return {**expand({key: value for key, value in section.items() if key not in kept}), **kept}


def _describe(error: ValidationError, *, within: str = "") -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "settings"
    if first["type"] == "extra_forbidden":
        for pattern, remedy in _REMOVED_KEYS:
            if pattern.fullmatch(within + key):
                return f"key {key!r} is of an earlier release; {remedy}"
        return f"unknown key {key!r}; docs/configuration.md lists the keys"
    return f"{key} = {_render_value(within + key, first['input'])} is refused: {first['msg']}"


def _render_value(key: str, value: Any) -> str:
    """Render a refused value for a message; mask what is or may contain a secret."""
    if any(word in key for word in _SECRET_KEYS):
        return "***"
    return "{...}" if isinstance(value, dict | BaseModel) else repr(value)
