"""`penstock doctor`.

All checks, in the order in which they are told; those that wait for others run at the same time.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from penstock import settings as files
from penstock.cli.doctor import machine, network, storage, tls
from penstock.cli.doctor import network as clusterchecks
from penstock.cli.doctor import storage as storages
from penstock.cli.doctor import tls as secretfiles
from penstock.cli.doctor.findings import Finding, bad, healthy, ok, print_findings, refused, shown
from penstock.cli.output import print_json
from penstock.errors import PenstockError
from penstock.settings import Settings

__all__ = ["diagnose", "examine"]


_AT_ONCE = 4

Check = Callable[[], Finding | list[Finding]]


def examine(config: Path | None) -> list[Finding]:
    """Everything that can be checked with a settings file, or with the defaults."""
    found, settings = _settings(config)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-doctor") as pool:
        answers: Sequence[Finding | list[Finding]] = list(pool.map(_answer, _checks(settings)))
    for each in answers:
        found += each if isinstance(each, list) else [each]
    return found


def _settings(config: Path | None) -> tuple[list[Finding], Settings | None]:
    if config is None:
        return [ok("settings", "the defaults: no --config is given")], Settings()
    try:
        settings = files.load(config)
    except PenstockError as error:
        return [refused("settings", error)], None
    return secretfiles.config_file(config) or [ok("settings", f"{config} is valid")], settings


def _checks(settings: Settings | None) -> Iterator[Check]:
    yield machine.python
    yield machine.packages
    yield machine.java
    yield machine.descriptors
    if settings is None:
        return
    yield partial(machine.memory, settings)
    for key, path in storage.data_folders(settings):
        yield partial(storage.folder, key, path)
    for wanted in network.listened(settings):
        yield partial(network.port, wanted, settings)
    yield partial(clusterchecks.cluster, settings)
    for key, ref in storages.storages(settings):
        yield partial(storages.storage, key, ref)
    for key, section in tls.tls_sections(settings):
        yield partial(tls.certificates, key, section)
    yield partial(secretfiles.secret_files, settings)


def _answer(check: Check) -> Finding | list[Finding]:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a check that fails must not hide what the others found
        kind = type(error).__name__
        return bad("doctor", f"a check failed itself ({kind})", "this is a defect; please report it")


def diagnose(config: Path | None, *, as_json: bool) -> None:
    """Check everything and say it; exit with 1 when something is bad."""
    findings = examine(config)
    if as_json:
        print_json({"healthy": healthy(findings), "findings": [shown(each) for each in findings]})
    else:
        print_findings(findings)
    if not healthy(findings):
        sys.exit(1)
