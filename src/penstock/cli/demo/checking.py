"""Every target against its source."""

from collections.abc import Callable, Sequence

from penstock.cli.demo.report import DemoVerified
from penstock.cli.demo.targets import DemoTarget
from penstock.control.deployment import Deployment
from penstock.control.verify import TargetReport, VerifyOptions, verify_targets
from penstock.verify.target import TargetVerifyReport

__all__ = ["judged", "verify"]

_TIMEOUT = "60s"


def verify(
    deployment: Deployment, targets: Sequence[DemoTarget], at_ts: int, tell: Callable[[str], None]
) -> list[DemoVerified]:
    """Compare targets that have everything up to a timestamp with what the event store has."""
    compared: list[DemoVerified] = []
    for target in targets:
        tell(f"comparing with the source: {target.title}")
        options = VerifyOptions(at=str(at_ts), timeout=_TIMEOUT)
        (report,) = verify_targets(deployment, [target.verified_as], options)
        compared.append(judged(target.title, report))
    return compared


def judged(title: str, found: TargetReport) -> DemoVerified:
    """What a comparison came to; one that could not be made is a difference."""
    if found.report is None:
        return DemoVerified(title, same=False, rows=0, differs=found.error or found.note)
    parts = [found.report] if isinstance(found.report, TargetVerifyReport) else list(found.report.tables)
    rows = sum(each.source_rows for each in parts)
    if found.report.same:
        return DemoVerified(title, same=True, rows=rows)
    wrong = ", ".join(
        f"{sum(getattr(each.counts, way) for each in parts):,} {way}"
        for way in ("missing", "different", "extra")
    )
    return DemoVerified(title, same=False, rows=rows, differs=wrong)
