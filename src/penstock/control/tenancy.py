"""Checks what a tenant may ask for: tables of its own databases, and targets where its account may write.

Changefeeds and jobs run in processes that can reach everything, so their settings are checked first: they may
name no code, no file of the machine, and no address but those below the account's `targets`. Targets are
checked again where they are used, by `penstock.targets`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.changefeeds.sink_uri import split_uri
from penstock.changefeeds.sinks.storage.options import feed_target, refuse_references, sink_options
from penstock.jobs.consumer import BUILT_IN, check_tenant, find_consumer, hidden_options
from penstock.jobs.job import Job
from penstock.jobs.spec import DEFAULT, GREEDY, PERIODIC, JobSpec
from penstock.secret_references import resolve_references
from penstock.settings import ChangefeedSettings
from penstock.targets import TenantRefused, TenantTargets, resolve_tenant_texts

__all__ = [
    "Tenant",
    "TenantRefused",
    "check_feed",
    "check_job",
    "check_job_change",
    "check_quota",
]

_WILD = frozenset("*?[]!")
_SINK_REFUSED = frozenset({"spool-base-dir", "spool-disk-quota", "worker-count", "flush-concurrency"})
_CONSUMERS = BUILT_IN - {"iceberg"}  # options of its catalog may load code
_CODE = ("parser", "embedding")
_FILES = ("ca_path",)


@dataclass(frozen=True, slots=True)
class Tenant:
    """An account without admin rights: its databases, and the addresses below which it may write."""

    account: str
    databases: frozenset[str]
    targets: TenantTargets

    @classmethod
    def of(cls, account: str, databases: Iterable[str], targets: Sequence[str]) -> "Tenant":
        """Return a tenant whose databases are compared without case."""
        own = frozenset(name.lower() for name in databases)
        return cls(account, own, TenantTargets(account, tuple(targets)))

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
    refuse_references(settings)
    sink = split_uri(resolve_references(settings.sink_uri.get_secret_value()))
    for name in {**settings.sink, **sink.parameters}:
        if name in _SINK_REFUSED:
            raise TenantRefused(f"sink parameter {name} is for admins only; leave it out")
    tenant.targets.check(feed_target(sink_options(settings)))


def check_job(tenant: Tenant, spec: JobSpec) -> None:
    """Raise TenantRefused unless a tenant may have a job of this complete spec."""
    if spec.consumer not in _CONSUMERS:
        raise TenantRefused(
            f"consumer {spec.consumer!r} is for admins only; use one of {', '.join(sorted(_CONSUMERS))}"
        )
    if spec.job_type not in {DEFAULT, GREEDY, PERIODIC}:
        raise TenantRefused(f"trigger {spec.job_type!r} is for admins only; use default, greedy or periodic")
    options = resolve_tenant_texts(spec.detail.consumer.options)
    if "://" not in options.get("uri", "://"):
        raise TenantRefused("option uri is not a URL; write file:///folder or s3://bucket/folder")
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
    info = spec.detail.consumer.model_copy(update={"options": options})
    check_tenant(tenant.targets, find_consumer(spec.consumer), info)


def check_job_change(tenant: Tenant, job: Job, change: JobSpec) -> None:
    """Raise TenantRefused unless a tenant may change a job in this way.

    Of a job that it has not made itself, it gets no secret: what it does not give anew would go to the server
    that it names.
    """
    check_job(tenant, job.spec.merge(change))
    given = change.detail.consumer.options
    if not given or job.confined:
        return
    kept = sorted(hidden_options(job.spec.detail.consumer) - given.keys())
    if kept:
        raise TenantRefused(
            f"option {kept[0]} of job {job.id} is not known to be of account {tenant.account}; give a value"
            " of its own with the change, or an empty one to leave it out"
        )


def check_quota(account: str, what: str, count: int, most: int) -> None:
    """Raise TenantRefused when an account has as many of something as it may have."""
    if count >= most:
        raise TenantRefused(
            f"account {account} has {count} {what}, and may have {most} (api.accounts.{account}.{what}_max);"
            " remove one, or ask an admin"
        )
