"""Look for known vulnerabilities of the pinned packages: `tools/audit_dependencies.py`, exit code 1 for one.

Where the advisory service cannot be reached nothing is known; that is said, and does not stop the work.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LIMIT_S = 45


def report() -> dict[str, Any] | None:
    """What the service says of the packages; None when it does not answer."""
    command = ["pip-audit", "--progress-spinner=off", "--format=json", "--disable-pip", "--no-deps"]
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            [Path(sys.executable).with_name(command[0]), *command[1:], "-r", ROOT / "constraints.txt"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        tree: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return None
    return tree


def known(tree: dict[str, Any]) -> list[str]:
    """A line for each package with a known vulnerability."""
    return [
        f"{package['name']} {package['version']}: {each['id']},"
        f" mended in {', '.join(each['fix_versions']) or 'no version yet'}"
        for package in tree["dependencies"]
        for each in package.get("vulns", ())
    ]


def unknown(tree: dict[str, Any]) -> int:
    """How many packages the service says nothing of."""
    return sum("skip_reason" in package for package in tree["dependencies"])


def said(tree: dict[str, Any] | None) -> tuple[list[str], int]:
    """What there is to say, and the exit code."""
    if tree is None:
        return ["dependencies not audited: the advisory service does not answer"], 0
    found, unheard, every = known(tree), unknown(tree), len(tree["dependencies"])
    lines = [f"dependencies not audited: the advisory service knows {every - unheard} of {every}"]
    return found + (lines if unheard else []), 1 if found else 0


if __name__ == "__main__":
    lines, code = said(report())
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.exit(code)
