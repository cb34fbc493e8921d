"""Which job's first sync may replace what another job left at a target."""

from pathlib import Path

import pytest

from penstock.errors import Corrupt, Invalid, PenstockError
from penstock.jobs.error_codes import TargetDiffers
from penstock.testing.consumers import job_context

NAME, RENAMED, OTHER_TABLE = "shop.items/job", "shop.things/job", "shop.orders/job"


@pytest.mark.parametrize(
    ("owner", "name", "refused"),
    [
        ("0/7/job/3", NAME, None),  # this very job
        ("0/7/job/3", RENAMED, None),
        ("0/7/job/2", NAME, None),  # its predecessors
        ("0/7/job/2", RENAMED, None),
        ("0/7/job/2", "", None),
        ("0/5/job/9", NAME, None),  # of the table before it was truncated
        ("0/5/job/9", "", None),
        ("0/7/job/4", NAME, TargetDiffers),  # registered later
        ("0/7/job/10", RENAMED, TargetDiffers),
        ("0/7/job/4", "", TargetDiffers),
        ("0/8/job/1", NAME, TargetDiffers),
        ("0/8/job/1", "", TargetDiffers),
        ("0/5/job/1", OTHER_TABLE, Invalid),
        ("0/8/job/1", OTHER_TABLE, Invalid),
        ("0/7/other/1", "shop.items/other", Invalid),
        ("0/7/other/1", "", Invalid),
        ("1/7/job/1", NAME, Invalid),  # another account's
        ("somebody", NAME, Corrupt),
        ("0/7/job/x", NAME, Corrupt),
    ],
)
def test_a_target_is_taken_over_from_a_predecessor_alone(
    tmp_path: Path, owner: str, name: str, refused: type[PenstockError] | None
) -> None:
    job = job_context(tmp_path, "delta", {}, job_id=3, table_id=7)
    if refused is None:
        job.check_takeover(owner, name, "the table")
        return
    with pytest.raises(refused) as error:
        job.check_takeover(owner, name, "the table")
    assert error.type is refused


@pytest.mark.parametrize(("owner", "helps"), [("0/7/job/4", True), ("0/8/job/1", False)])
def test_a_new_registration_is_advised_only_where_it_helps(tmp_path: Path, owner: str, helps: bool) -> None:
    """A table that was recovered after its drop keeps its id, which is lower than that of its successor."""
    job = job_context(tmp_path, "delta", {}, job_id=3, table_id=7)
    with pytest.raises(TargetDiffers, match="give it another target") as error:
        job.check_takeover(owner, NAME, "the table")
    assert ("register this one again" in str(error.value)) is helps
