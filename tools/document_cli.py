"""Write docs/reference/cli.md from the commands that there are: `tools/document_cli.py`."""

import inspect
from collections.abc import Iterator
from typing import Any

from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.main import get_command

from generated_pages import cell, settle
from penstock.cli.main import app

HEAD = """# Commands

<!-- made of the code by tools/document_cli.py -->

`penstock COMMAND --help` says the same. A command that cannot do what it is asked to prints one line on
standard error, `penstock: ...`, and ends with exit code 2; one that compares or checks ends with 1 when it
found something. Services stay in the foreground until SIGTERM or SIGINT, and print one line of JSON on
standard output when they are ready; logs go to standard error.
"""

KINDS = {"str": "TEXT", "list[str]": "TEXT", "int": "NUMBER", "float": "NUMBER", "Path": "FILE"}


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A command and all those below it, in the order in which help shows them."""
    yield path, command
    if isinstance(command, TyperGroup):
        for name, below in command.commands.items():
            if not below.hidden:
                yield from commands(below, (*path, name))


def section(path: tuple[str, ...], command: Any) -> str:
    """What a command does, how it is written, and what may be given."""
    arguments = [each for each in command.params if isinstance(each, TyperArgument)]
    options = [each for each in command.params if isinstance(each, TyperOption) and not each.hidden]
    parts = [f"{'#' * min(len(path) + 1, 3)} {' '.join(path)}", inspect.cleandoc(command.help or "")]
    if not isinstance(command, TyperGroup):
        parts.append(f"```text\n{usage(path, arguments, options)}\n```")
    elif len(path) > 1:
        parts.append(", ".join(f"[{name}](#{'-'.join((*path, name))})" for name in command.commands))
    if arguments:
        rows = [f"| `{shown(each)}` | {cell(each.help or '')} |" for each in arguments]
        parts.append("\n".join(["| argument | meaning |", "|---|---|", *rows]))
    if options:
        rows = [f"| {names(each)} | {default(each)} | {cell(each.help or '')} |" for each in options]
        parts.append("\n".join(["| option | default | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def usage(path: tuple[str, ...], arguments: list[Any], options: list[Any]) -> str:
    """One line: what has to be given, and that more may be."""
    needed = [f"{each.opts[0]} {value(each)}" for each in options if each.required]
    may = ["[OPTIONS]"] if len(needed) < len(options) else []
    given = [shown(each) if each.required else f"[{shown(each)}]" for each in arguments]
    return " ".join([*path, *given, *needed, *may])


def shown(argument: Any) -> str:
    """The name of an argument, with dots when it may be repeated."""
    return (argument.metavar or argument.name.upper()) + ("..." if argument.nargs == -1 else "")


def names(option: Any) -> str:
    """All names of an option, and what it takes."""
    said = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return said if option.is_flag else f"{said} {cell(value(option))}"


def value(option: Any) -> str:
    """What an option takes."""
    choices = option.type_descriptor.choices
    if choices:
        return "|".join(str(getattr(each, "value", each)) for each in choices)
    return str(option.metavar or KINDS.get(option.bare_type(), option.bare_type()))


def default(option: Any) -> str:
    """What an option is when it is not given."""
    if option.required:
        return "required"
    usual = getattr(option.default, "value", option.default)
    if usual is None or usual in ((), []) or (option.is_flag and not usual):
        return ""
    return f"`{str(usual).lower() if isinstance(usual, bool) else usual}`"


if __name__ == "__main__":
    sections = [section(*each) for each in commands(get_command(app), ("penstock",))]
    settle("reference/cli.md", "\n\n".join([HEAD.strip(), *sections]) + "\n")
