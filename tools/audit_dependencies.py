"""Look up known vulnerabilities of the pinned packages; the exit code is 1 when there is one.

Without an answer of the advisory service it prints that and exits with 0, so that offline work goes on; with
`--strict` (`make audit`, before a release) it exits with 2.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 45
NOT_AUDITED = 2


def read_report() -> dict[str, Any] | None:
    """Return the report of the advisory service; None when it does not answer."""
    command = ["pip-audit", "--progress-spinner=off", "--format=json", "--disable-pip", "--no-deps"]
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            [Path(sys.executable).with_name(command[0]), *command[1:], "-r", ROOT / "constraints.txt"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        tree: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return None
    return tree


def list_vulnerabilities(tree: dict[str, Any]) -> list[str]:
    """Return a line for each known vulnerability."""
    return [
        f"{package['name']} {package['version']}: {vulnerability['id']},"
        f" fixed in {', '.join(vulnerability['fix_versions']) or 'no version yet'}"
        for package in tree["dependencies"]
        for vulnerability in package.get("vulns", ())
    ]


def count_skipped(tree: dict[str, Any]) -> int:
    """Return the number of packages that the service does not know."""
    return sum("skip_reason" in package for package in tree["dependencies"])


def summarize(tree: dict[str, Any] | None, *, strict: bool = False) -> tuple[list[str], int]:
    """Return the lines to print, and the exit code. `strict` fails unless every package was audited."""
    unasked = NOT_AUDITED if strict else 0
    if tree is None:
        return ["dependencies not audited: the advisory service does not answer"], unasked
    found, skipped, total = list_vulnerabilities(tree), count_skipped(tree), len(tree["dependencies"])
    lines = [f"dependencies not audited: the advisory service knows {total - skipped} of {total}"]
    if found:
        return found + (lines if skipped else []), 1
    return (lines, unasked) if skipped else ([], 0)


if __name__ == "__main__":
    lines, code = summarize(read_report(), strict="--strict" in sys.argv[1:])
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.exit(code)
