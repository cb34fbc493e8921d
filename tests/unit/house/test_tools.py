"""Tools for developers: what they refuse."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("arguments", "code"), [(["3.99"], 1), (["--skip-missing", "3.99"], 0)])
def test_a_version_of_python_that_is_not_installed_is_an_error_unless_told_otherwise(
    arguments: list[str], code: int
) -> None:
    done = subprocess.run(
        [ROOT / "tools" / "try-versions", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code
    assert done.stderr == ("== Python 3.99 is not installed: not tried; install it, or pass --skip-missing\n")
