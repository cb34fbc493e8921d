"""The page on architecture names every module, and nothing that is not there.

Tables with the head `module`, or `folder` and `modules`, name modules below the package of their section. All
other names on the page are words of the code, or files of the repository.
"""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
HOME = ROOT / "src" / "penstock"
GENERATED = "proto"
LINE_MAX = 150
QUOTED = re.compile(r"`([^`]+)`")
DRAWN = re.compile(r"\b[A-Z][a-z]+[A-Z]\w+\b")  # a class in a drawing
WORDS = re.compile(r"\w+")


def modules() -> set[str]:
    """Every module that somebody wrote, as `folder/name` below the package."""
    paths = (path.relative_to(HOME) for path in HOME.rglob("*.py") if path.stem != "__init__")
    return {path.with_suffix("").as_posix() for path in paths if path.parts[0] != GENERATED}


def named() -> Iterator[tuple[str, str]]:
    """The modules that the tables of the page name: their folder below the package, and the name."""
    package = folder = ""
    head: list[str] = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        if line.startswith("## "):
            word = line[3:].partition(":")[0]
            package = f"{word}/" if (HOME / word).is_dir() else ""
        if not cells or not head:
            head, folder = cells, ""
        elif head[0] == "module":
            yield from ((package, name) for name in QUOTED.findall(cells[0]))
        elif head[:2] == ["folder", "modules"] and not cells[0].startswith("-"):
            if cells[0]:
                folder = cells[0].strip("`").replace("root", "")
            yield from ((f"{package}{folder}", name) for name in QUOTED.findall(cells[1]))


def test_the_page_names_every_module_once_and_no_other() -> None:
    found = [folder + name for folder, name in named()]
    assert sorted(modules().difference(found)) == [], "name them in docs/architecture.md"
    assert sorted(set(found) - modules()) == [], "take them out of docs/architecture.md"
    assert len(found) == len(set(found))


def exists(name: str, code: set[str]) -> bool:
    """Whether a name is of a file, of a module, or of words of the code."""
    if any((folder / name).exists() for folder in (ROOT, HOME, ROOT / "tests", ROOT / "tools")):
        return True
    first, _, rest = name.partition(".")
    if rest and (HOME / first).is_dir():
        return (HOME / name.replace(".", "/")).with_suffix(".py").exists()
    return "/" not in name and code.issuperset(WORDS.findall(name))


def test_every_other_name_on_the_page_is_in_the_code_or_the_repository() -> None:
    sources = [ROOT / "Makefile", *HOME.rglob("*.py")]
    code = {word for path in sources for word in WORDS.findall(path.read_text())}
    in_tables = {text for folder, name in named() for text in (name, folder.partition("/")[2])}
    others = {*QUOTED.findall(PAGE), *DRAWN.findall(PAGE)} - in_tables
    assert sorted(name for name in others if not exists(name, code)) == []


def test_lines_of_the_page_can_be_read_in_an_editor() -> None:
    assert [line for line in PAGE.splitlines() if len(line) > LINE_MAX] == []
