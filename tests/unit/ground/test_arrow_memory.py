"""Our processes take Arrow's memory from an allocator that gives it back."""

import os
import subprocess
import sys

from penstock import process

_BACKEND = "import pyarrow; print(pyarrow.default_memory_pool().backend_name)"


def backend(code: str, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name not in process.ARROW_ENVIRONMENT}
    made = subprocess.run(
        [sys.executable, "-c", f"{code}\n{_BACKEND}"],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout.splitlines()[-1]


def test_the_command_line_chooses_the_allocator_before_arrow_is_imported() -> None:
    code = (
        "import sys; sys.argv = ['penstock', '--version']\n"
        "from penstock.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass"
    )
    assert backend(code) == "jemalloc"


def test_an_allocator_that_somebody_chose_stays() -> None:
    prepared = "from penstock import process; process.prepare_arrow_memory()"
    assert backend(prepared, ARROW_DEFAULT_MEMORY_POOL="system") == "system"
