"""What the package says where nobody asked for its logs."""

import subprocess
import sys


def test_a_program_that_did_not_ask_for_logs_sees_none() -> None:
    code = "import logging, penstock; logging.getLogger('penstock.kv.tso').warning('no timestamps for now')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
