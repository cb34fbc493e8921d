"""What `penstock.jobs` offers."""

import subprocess
import sys

import pytest

from penstock import jobs


def test_every_name_that_is_offered_is_there_and_they_are_in_order() -> None:
    assert jobs.__all__ == sorted(jobs.__all__)
    assert all(getattr(jobs, name).__name__ == name for name in jobs.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        jobs.Nothing  # noqa: B018 - that it raises is the point


def test_naming_a_job_brings_no_client_of_the_cluster() -> None:
    script = (
        "import sys; from penstock.jobs import JobId, JobSpec, JobState; JobSpec(); JobId('a', 'b', 'c');"
        "sys.exit(any(name.startswith(('grpc', 'pyarrow')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0
