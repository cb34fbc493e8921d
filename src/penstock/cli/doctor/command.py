"""`penstock doctor`."""

import sys
from pathlib import Path

from penstock.cli.doctor.examination import examine
from penstock.cli.doctor.findings import healthy, shown
from penstock.cli.doctor.printing import print_findings
from penstock.cli.output import print_json

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
