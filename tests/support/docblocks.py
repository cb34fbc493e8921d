"""The fenced blocks of a page of the documentation, as something that can be run.

What a block is to a reader, it is to a test:

    ```bash                 commands, in the page's directory; what one exports holds for those after it
    ```console              commands behind `$ `, with what they print; `...` stands for anything
    ```python               a program; one that begins with `# name.py` is a file of that name
    ```yaml                 a file, by the name in its first line: `# penstock.yaml`

A comment right before a block says what cannot be seen in it:

    <!-- test: service -->              it runs until the end of the pages that share its world
    <!-- test: services stopped -->     they are stopped first, as the page says
    <!-- test: until it shows that -->  its commands are repeated until they print what is shown
    <!-- test: until it succeeds -->    it is repeated until it ends with 0
    <!-- test: exit 1 -->               it ends with that code
    <!-- test: not run: WHY; instead: WHAT -->
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Block", "Command", "Kind", "blocks_of", "commands_of", "matches"]

_FENCE = re.compile(r"^(?P<ticks>`{3,})(?P<info>.*)$")
_NOTE = re.compile(r"^<!-- test: (?P<text>.+?) -->$")
_NOT_RUN = re.compile(r"not run: (?P<why>.{10,}?); instead: (?P<instead>.{5,})")
_FILE = re.compile(r"^# (?P<name>[\w./-]+\.(?:py|yaml|yml|json|toml))\b")
_NOTES = frozenset({"", "service", "services stopped", "until it shows that", "until it succeeds"})
_SHOWN_ONLY = frozenset({"text", "json", "xml", "ini"})


class Kind(StrEnum):
    """What is done with a block."""

    BASH = "bash"
    CONSOLE = "console"
    PYTHON = "python"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Block:
    """A block that is run, written to a file, or left out for a reason."""

    kind: str
    text: str
    line: int
    note: str = ""

    @property
    def service(self) -> bool:
        """Whether it goes on while later blocks run."""
        return self.note == "service"

    @property
    def stops(self) -> bool:
        """Whether services end before it."""
        return self.note == "services stopped"

    @property
    def repeated(self) -> bool:
        """Whether it may take a while until it prints what is shown."""
        return self.note == "until it shows that"

    @property
    def persists(self) -> bool:
        """Whether it may take a while until it succeeds."""
        return self.note == "until it succeeds"

    @property
    def exit_code(self) -> int:
        """The exit code that is expected."""
        return int(self.note.removeprefix("exit ")) if self.note.startswith("exit ") else 0

    @property
    def left_out(self) -> bool:
        """Whether it is not run."""
        return self.note.startswith("not run")

    @property
    def file(self) -> str | None:
        """The file that it is, by its first line."""
        named = _FILE.match(self.text)
        return named["name"] if named and self.kind in {Kind.PYTHON, Kind.YAML} else None


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a console, and what it prints."""

    line: str
    output: str


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page in order; raise ValueError for one that a test can do nothing with."""
    return list(_blocks(page.splitlines()))


def _blocks(lines: list[str]) -> Iterator[Block]:
    place = 0
    while place < len(lines):
        if lines[place].startswith("    ") and place and not lines[place - 1].strip():
            raise ValueError(f"line {place + 1}: an indented block says nothing of its kind; fence it")
        fence = _FENCE.match(lines[place].lstrip())
        place += 1
        if fence is None:
            continue
        begin = place
        while lines[place].strip() != fence["ticks"]:
            place += 1
        text = "\n".join(lines[begin:place]) + "\n"
        kind = fence["info"].split()[0] if fence["info"].strip() else ""
        place += 1
        if kind not in _SHOWN_ONLY:
            yield _check_block(Block(kind, text, begin, _note(lines, begin - 2)))


def _note(lines: list[str], place: int) -> str:
    while place >= 0 and not lines[place].strip():
        place -= 1
    found = _NOTE.match(lines[place].strip()) if place >= 0 else None
    return found["text"] if found else ""


def _check_block(block: Block) -> Block:
    if block.left_out:
        if not _NOT_RUN.fullmatch(block.note):
            raise ValueError(f"line {block.line}: say `not run: WHY; instead: WHAT`")
        return block
    if block.kind not in set(Kind):
        raise ValueError(f"line {block.line}: a block of kind {block.kind!r} is neither run nor left out")
    if block.kind == Kind.YAML and block.file is None:
        raise ValueError(f"line {block.line}: the first line of YAML names its file, as in `# penstock.yaml`")
    known = block.note in _NOTES or re.fullmatch(r"exit \d+", block.note)
    if not known:
        raise ValueError(f"line {block.line}: what does {block.note!r} mean?")
    return block


def commands_of(block: Block) -> list[Command]:
    """Return the commands of a console with their output; raise ValueError when it begins with none."""
    found: list[list[str]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append([line.removeprefix("$ ")])
        elif not found:
            raise ValueError(f"line {block.line}: a console begins with `$ ` and a command")
        elif len(found[-1]) == 1 and found[-1][0].endswith("\\"):
            found[-1][0] += "\n" + line.removeprefix("> ")
        else:
            found[-1].append(line)
    return [Command(first, "\n".join(rest)) for first, *rest in found]


def matches(shown: str, printed: str) -> bool:
    """Return whether something prints what is shown: `...` is any text, a line `...` any lines."""
    pattern = "".join(_pattern(line) for line in shown.strip().splitlines())
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed.strip().splitlines())) is not None


def _pattern(line: str) -> str:
    if line.strip() == "...":
        return r"(?:.*\n)*?"
    return r"[^\n]*?".join(map(re.escape, line.rstrip().split("..."))) + r"[ \t]*\n"
