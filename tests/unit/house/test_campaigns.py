"""`make soak` runs whole what `make test` shortens: every test whose length `support.campaign` decides."""

import re
import shlex
from pathlib import Path

TESTS = Path(__file__).parents[2]
ROOT = TESTS.parent
CAMPAIGN = "support.campaign"


def _imports(path: Path) -> set[str]:
    """Return the modules of `support` that a file imports, in either form."""
    text = path.read_text(encoding="utf-8")
    found = set(re.findall(r"^\s*from (support\.[\w.]+) import ", text, re.MULTILINE))
    for names in re.findall(r"^\s*from support import (.+)", text, re.MULTILINE):
        found.update(f"support.{name}" for name in re.findall(r"\w+", names))
    return found


def _users_of_campaigns() -> set[Path]:
    """Return the tests that ask how long they are, themselves or in a module of `support`."""
    scaffolding = {
        ".".join(path.relative_to(TESTS).with_suffix("").parts): _imports(path)
        for path in (TESTS / "support").rglob("*.py")
    }
    asking = {CAMPAIGN}
    while True:
        more = {name for name, imported in scaffolding.items() if imported & asking} - asking
        if not more:
            break
        asking |= more
    return {path for path in TESTS.rglob("test_*.py") if _imports(path) & asking}


def _run_by_soak() -> list[Path]:
    """Return the files and folders that the recipe of `make soak` names."""
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").split("\nsoak:", 1)[1].split("\n\n", 1)[0]
    return [ROOT / word for word in shlex.split(recipe.replace("\\\n", " ")) if word.startswith("tests/")]


def test_make_soak_runs_every_campaign_that_make_test_shortens() -> None:
    users, named = _users_of_campaigns(), _run_by_soak()
    assert len(users) > 50, "the users of support.campaign are not found any more"
    left_out = sorted(
        path.relative_to(ROOT).as_posix()
        for path in users
        if not any(path.is_relative_to(place) for place in named)
    )
    assert left_out == [], "add them to `soak` in the Makefile: their whole length runs nowhere"


def test_make_soak_names_only_what_there_is() -> None:
    assert [place for place in _run_by_soak() if not place.exists()] == []


def test_nothing_but_the_campaigns_module_asks_for_the_length_of_a_soak() -> None:
    asking = [
        path.relative_to(TESTS).as_posix()
        for path in TESTS.rglob("*.py")
        if "PENSTOCK_SOAK" in path.read_text(encoding="utf-8") and path != Path(__file__)
    ]
    # The judges run the tests of a history whole, in a process that they start.
    assert sorted(asking) == ["judges/test_histories.py", "support/campaign.py"]
