"""`penstock doctor`."""

import sys
from pathlib import Path

from penstock.app.answering import print_json
from penstock.app.doctor.examination import examine
from penstock.app.doctor.findings import healthy, shown
from penstock.app.doctor.printing import print_findings

__all__ = ["diagnose"]


def diagnose(config: Path | None, *, as_json: bool) -> None:
    """Check everything and say it; exit with 1 when something is bad."""
    findings = examine(config)
    if as_json:
        print_json({"healthy": healthy(findings), "findings": [shown(each) for each in findings]})
    else:
        print_findings(findings)
    if not healthy(findings):
        sys.exit(1)
