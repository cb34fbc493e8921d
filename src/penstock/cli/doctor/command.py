"""`penstock doctor`: runs all checks at the same time, and prints the findings in a fixed order."""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from penstock.cli.doctor import machine, network, storage, tls
from penstock.cli.doctor.findings import (
    Finding,
    bad,
    finding_details,
    from_error,
    is_healthy,
    ok,
    print_findings,
)
from penstock.cli.output import print_json
from penstock.errors import PenstockError
from penstock.settings import Settings, load

__all__ = ["diagnose", "examine"]


_THREADS = 4

Check = Callable[[], Finding | list[Finding]]


def examine(config: Path | None, *, fix: bool = False) -> list[Finding]:
    """Run every check for a settings file, or for the defaults; return the findings.

    With `fix`, fetch the jars of connectors that are missing, and make the archive of Spark's classes.
    """
    findings, settings = _load_settings(config)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-doctor") as pool:
        answers: Sequence[Finding | list[Finding]] = list(pool.map(_run_check, _checks(settings, fix=fix)))
    for answer in answers:
        findings += answer if isinstance(answer, list) else [answer]
    return findings


def _load_settings(config: Path | None) -> tuple[list[Finding], Settings | None]:
    if config is None:
        return [ok("settings", "defaults; no --config is given")], Settings()
    try:
        settings = load(config)
    except PenstockError as error:
        return [from_error("settings", error)], None
    return tls.check_config_file(config) or [ok("settings", f"{config} is valid")], settings


def _checks(settings: Settings | None, *, fix: bool) -> Iterator[Check]:
    yield machine.check_python
    yield machine.check_packages
    yield machine.check_java
    yield partial(machine.check_class_archive, fix=fix)
    yield machine.check_descriptors
    if settings is None:
        return
    yield partial(machine.check_memory, settings)
    yield partial(machine.check_connectors, settings.spark, fix=fix)
    yield partial(machine.check_spark_secret, settings.spark)
    for key, path in storage.data_folders(settings):
        yield partial(storage.check_folder, key, path)
    for key, path in storage.private_folders(settings):
        yield partial(storage.check_privacy, key, path)
    for address in network.listen_addresses(settings):
        yield partial(network.check_port, address, settings)
    yield partial(network.check_cluster, settings)
    for key, ref in storage.storage_refs(settings):
        yield partial(storage.check_storage, key, ref)
    for key, section in tls.tls_sections(settings):
        yield partial(tls.check_certificates, key, section)
    yield partial(tls.check_secret_files, settings)


def _run_check(check: Check) -> Finding | list[Finding]:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a failed check must not hide the findings of the others
        kind = type(error).__name__
        return bad(
            "doctor", f"a check failed with an internal error ({kind})", "this is a defect; please report it"
        )


def diagnose(config: Path | None, *, fix: bool, as_json: bool) -> None:
    """Run every check and print the findings; exit with 1 when one is bad."""
    findings = examine(config, fix=fix)
    if as_json:
        print_json(
            {"healthy": is_healthy(findings), "findings": [finding_details(finding) for finding in findings]}
        )
    else:
        print_findings(findings)
    if not is_healthy(findings):
        sys.exit(1)
