"""One page of metrics for a whole deployment: Prometheus needs one address, whatever runs behind it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.control.overview.part_metrics import pages
from penstock.control.part_states import PartKind, PartStatus

__all__ = ["UP", "UP_MEANING", "federated", "joined"]

OWN = "api"
UP = "penstock_part_up"
UP_MEANING = "1 when the metrics of a part could be read, else 0."
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_SUFFIXES = ("", "_bucket", "_sum", "_count")


@dataclass(slots=True)
class _Family:
    """What is said of one metric, and its samples, of all pages."""

    described: dict[str, str] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)


def federated(own: bytes, parts: Sequence[PartStatus]) -> bytes:
    """This process's page (`own`) together with those of the parts, which are asked at once.

    Every sample gets the label `part`; each family is described once. `penstock_part_up` says whose page
    could be read. All in the Prometheus text format.
    """
    others = [part for part in parts if part.kind is not PartKind.API]
    return joined({OWN: own.decode(), **pages(others)}).encode()


def joined(texts: Mapping[str, str | None]) -> str:
    """One page of many, by part; None: it could not be read."""
    families: dict[str, _Family] = {}
    for part, text in texts.items():
        if text is not None:
            _add(families, part, text.split("\n"))
    lines = [
        f"# HELP {UP} {UP_MEANING}",
        f"# TYPE {UP} gauge",
        *(f"{UP}{{{_label(part)}}} {int(text is not None)}" for part, text in texts.items()),
    ]
    for family in families.values():
        lines += family.described.values()
        lines += family.samples
    return "\n".join(lines) + "\n"


def _add(families: dict[str, _Family], part: str, lines: Iterable[str]) -> None:
    label = _label(part)
    current = ""
    for line in lines:
        if line.startswith("# "):
            said = line.split(" ", 3)
            if len(said) > 2 and said[1] in ("HELP", "TYPE"):
                current = said[2]
                families.setdefault(current, _Family()).described.setdefault(said[1], line)
            continue
        if found := _NAME.match(line):
            name = found[0]
            if name.removeprefix(current) not in _SUFFIXES:
                current = name
            sample = _labelled(name, line[found.end() :], label)
            families.setdefault(current, _Family()).samples.append(sample)


def _labelled(name: str, rest: str, label: str) -> str:
    """A sample with one more label; one that it has already becomes `exported_part`, as with Prometheus."""
    if not rest.startswith("{"):
        return f"{name}{{{label}}}{rest}"
    if 'part="' in rest:
        rest = _LABEL.sub(lambda found: f"exported_{found[0]}" if found[1] == "part" else found[0], rest)
    return f"{name}{{{label}}}{rest[2:]}" if rest.startswith("{}") else f"{name}{{{label},{rest[1:]}"


def _label(part: str) -> str:
    escaped = part.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'part="{escaped}"'
