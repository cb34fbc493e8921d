"""The process of the changefeeds is killed (-9) again and again; TiDB, the capture and the consumer go on.

In the end MariaDB has what TiDB has.

Every directory has many small files. PENSTOCK_SEED draws other moments.
"""

import os
from pathlib import Path

import pytest

from support.judgeworld import JudgeWorld

pytestmark = pytest.mark.timeout(1800)
SCRIPTS = Path(__file__).parent / "scripts"
SEED = os.environ.get("PENSTOCK_SEED", "1")
DATABASES = ["shop.*", "d?.*"]


@pytest.mark.parametrize("script", ["simple", "keys", "tables"])
def test_nothing_is_lost_or_applied_twice_when_the_changefeed_is_killed(tmp_path: Path, script: str) -> None:
    with (
        JudgeWorld(tmp_path, DATABASES, sink={"file-size": "4KiB"}) as world,
        world.killing(f"{SEED}-{script}", times=5),
    ):
        found = world.run(SCRIPTS / f"{script}.sql")
    assert not found, "\n".join(found)
    assert world.kills >= 2
