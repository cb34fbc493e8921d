"""Checks what a tenant may ask for: tables of its own databases, and targets where its account may write.

Changefeeds and jobs run in processes that can reach everything, so their settings are checked first: they may
name no code, no file of the machine, and no address but those below the account's `targets`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from penstock.changefeeds.sink_uri import location_of, split_uri
from penstock.errors import Invalid
from penstock.jobs.consumer import BUILT_IN
from penstock.jobs.spec import DEFAULT, GREEDY, PERIODIC, JobSpec
from penstock.secret_references import has_reference, resolve_values
from penstock.settings import ChangefeedSettings

__all__ = ["Tenant", "TenantRefused", "check_feed", "check_job", "is_below"]

_WILD = frozenset("*?[]!")
_STORAGE = frozenset(
    {
        "region",
        "access_key_id",
        "secret_access_key",
        "session_token",
        "server_side_encryption",
        "sse_kms_key_id",
        "virtual_hosted_style_request",
        "account_key",
        "sas_key",
    }
)
"""Storage options of a tenant: its own credentials, and nothing that leads to another server or file."""
_SINK_REFUSED = frozenset({"spool-base-dir", "spool-disk-quota", "worker-count", "flush-concurrency"})
_CONSUMERS = BUILT_IN - {"iceberg"}  # options of its catalog may load code
_TARGETS: Mapping[str, tuple[str, ...]] = {
    "delta": ("uri",),
    "fulltext": ("uri",),
    "parquet": ("uri",),
    "postgres": ("dsn",),
    "vector": ("uri",),
    "webhook": ("url", "watermark_url"),
}
_CODE = ("parser", "embedding")
_FILES = ("ca_path",)


class TenantRefused(Invalid):
    """The account may not do this; an admin may."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """An account without admin rights: its databases, and the addresses below which it may write."""

    account: str
    databases: frozenset[str]
    targets: tuple[str, ...]

    @classmethod
    def of(cls, account: str, databases: Iterable[str], targets: Sequence[str]) -> "Tenant":
        """Return a tenant whose databases are compared without case."""
        return cls(account, frozenset(name.lower() for name in databases), tuple(targets))

    def owns(self, database: str) -> bool:
        """Return whether the tenant owns a database."""
        return database.lower() in self.databases


def check_feed(tenant: Tenant, settings: ChangefeedSettings) -> None:
    """Raise TenantRefused unless a tenant may have this changefeed, Invalid when its sink is malformed."""
    for pattern in settings.tables:
        database = pattern.removeprefix("!").strip().partition(".")[0]
        if _WILD.intersection(database) or not tenant.owns(database):
            raise TenantRefused(
                f"the pattern {pattern!r} names no database of account {tenant.account}; write the full name"
                " of one of its databases, as in shop.*"
            )
    uri = settings.sink_uri.get_secret_value()
    _without_references({**settings.storage_options, **settings.sink})
    sink = split_uri(_without_references({"sink_uri": uri})["sink_uri"])
    _check_target(tenant, "sink_uri", sink.url)
    _check_storage({**settings.storage_options, **sink.storage_options})
    for name in {**settings.sink, **sink.parameters}:
        if name in _SINK_REFUSED:
            raise TenantRefused(f"sink parameter {name} is for admins only; leave it out")


def check_job(tenant: Tenant, spec: JobSpec) -> None:
    """Raise TenantRefused unless a tenant may have a job of this complete spec."""
    if spec.consumer not in _CONSUMERS:
        raise TenantRefused(
            f"consumer {spec.consumer!r} is for admins only; use one of {', '.join(sorted(_CONSUMERS))}"
        )
    if spec.job_type not in {DEFAULT, GREEDY, PERIODIC}:
        raise TenantRefused(f"trigger {spec.job_type!r} is for admins only; use default, greedy or periodic")
    options = _without_references(spec.detail.consumer.options)
    for name in _TARGETS.get(spec.consumer, ()):
        if options.get(name):
            _check_target(tenant, name, options[name])
    if spec.consumer == "kv" and not tenant.owns(options.get("table", "").partition(".")[0]):
        raise TenantRefused(
            f"option table names no database of account {tenant.account}; name one of its own"
        )
    for name in _CODE:
        if ":" in options.get(name, ""):
            raise TenantRefused(f"option {name} names code, which is for admins only; use a built-in one")
    for name in _FILES:
        if options.get(name):
            raise TenantRefused(
                f"option {name} names a file of the server, which is for admins only; leave it out"
            )
    _check_storage(
        {name.partition(".")[2]: value for name, value in options.items() if name.startswith("storage.")}
    )


def _without_references(texts: Mapping[str, str]) -> dict[str, str]:
    """Return texts as the process that uses them reads them; refuse references to secrets.

    That process would resolve them: it has the operator's environment and files.
    """
    for name, text in texts.items():
        if has_reference(text):
            raise TenantRefused(
                f"{name} refers to a secret of the operator, which is for admins only; give the value itself,"
                " and write $${ for ${"
            )
    return resolve_values(texts)


def _check_target(tenant: Tenant, name: str, url: str) -> None:
    if not any(is_below(url, prefix) for prefix in tenant.targets):
        raise TenantRefused(
            f"{name} is not an address where account {tenant.account} may write; use one below an address of"
            f" api.accounts.{tenant.account}.targets"
        )


def _check_storage(options: Mapping[str, str]) -> None:
    for name in options:
        if name.lower().removeprefix("aws_").removeprefix("azure_") not in _STORAGE:
            raise TenantRefused(f"storage option {name} is for admins only; give region and credentials only")


def is_below(url: str, prefix: str) -> bool:
    """Return whether a URL is below another one: the same server, and a path within its path.

    A URL that could lead elsewhere is not: `..`, escapes, several hosts, or parameters that name other hosts.
    Links of this machine's file system are followed.
    """
    found, allowed = _split(url), _split(prefix)
    if found is None or allowed is None:
        return False
    if found.scheme in {"postgresql", "postgres"} and found.query:  # the query may name another host
        return False
    return location_of(prefix, follow_links=True).contains(location_of(url, follow_links=True))


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    bad_path = any(step in {".", ".."} for step in parts.path.split("/")) or not url.isprintable()
    if not parts.scheme or "://" not in url or bad_path or set("%\\ ").intersection(parts.path):
        return None
    return None if "," in parts.netloc or parts.fragment else parts
