"""Write the requirements of a release with their hashes: `python tools/pin_hashes.py build/requirements.txt`.

pip's resolver chooses the files for this Python and platform, with the versions of constraints.txt, and tells
their hashes. The file has names, versions and hashes only, so it works with any index or folder of wheels:
`pip install --require-hashes -r FILE`, then `pip install --no-deps` with Penstock's own wheel.
"""

import argparse
import json
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
OWN = "penstock"
TIMEOUT_S = 600


def resolve(requirements: Sequence[str], constraints: Path, options: Sequence[str] = ()) -> dict[str, Any]:
    """Return pip's report of what it would install into an empty environment; raise SystemExit on failure."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--dry-run",
        ]
        command += ["--ignore-installed", "--report", str(report), "--constraint", str(constraints), *options]
        done = subprocess.run(  # noqa: S603 - a fixed command
            [*command, *requirements], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise SystemExit(f"requirements not written: pip does not resolve them ({last})")
        tree: dict[str, Any] = json.loads(report.read_bytes())
        return tree


def render(tree: dict[str, Any]) -> str:
    """Return the file for a report; raise SystemExit when a package has no hash."""
    lines = [f"# Python {sys.version_info[0]}.{sys.version_info[1]} on {sysconfig.get_platform()}"]
    packages = {package["metadata"]["name"].lower(): package for package in tree["install"]}
    for name, package in sorted(packages.items()):
        if name == OWN:  # it is what is released
            continue
        digest = package["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if not digest:
            raise SystemExit(f"requirements not written: pip tells no hash of {name}")
        lines.append(f"{name}=={package['metadata']['version']} --hash=sha256:{digest}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    text = render(resolve([f"{ROOT}[all]"], ROOT / "constraints.txt"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{path} has {text.count('--hash')} packages with their hashes\n")


if __name__ == "__main__":
    main()
