"""Expressions of Prometheus's language, as far as the dashboard and the rules use it: parsed, and checked.

    comparison  sum, > >= < <= == != between two, `and` and `unless` between those
    value       number, name{label="x"}[5m], function(value), sum by (label) (value), (comparison)

Nothing else is understood: what cannot be checked is refused.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.app.monitoring.declared import Declared, Kind
from penstock.errors import Invalid

__all__ = ["Aggregation", "Binary", "Call", "Node", "Number", "Selector", "check", "parse"]

AGGREGATIONS = frozenset({"avg", "count", "max", "min", "sum"})
FUNCTIONS = {"clamp_min": 2, "histogram_quantile": 2, "increase": 1, "rate": 1}
RANGED = frozenset({"increase", "rate"})
EVERYWHERE = frozenset({"instance", "part"})
"""Labels that whoever gathers the metrics adds."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:e\d+)?)(?![\w.])|(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r"|(?P<text>\"[^\"\\]*\")|(?P<range>\[(?:\d+[smhd]|\$__rate_interval|\$__range)\])"
    r"|(?P<sign>=~|!~|==|!=|>=|<=|[-+*/><(){},=]))"
)
_LEVELS = (("and", "unless"), (">", ">=", "<", "<=", "==", "!="), ("+", "-"), ("*", "/"))


@dataclass(frozen=True, slots=True)
class Number:
    """A constant."""

    value: float


@dataclass(frozen=True, slots=True)
class Selector:
    """The samples of a name; matchers say of a label how, and what. `range` is empty for those of now."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]
    range: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function of values."""

    function: str
    arguments: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Many samples as one for each value of some labels."""

    how: str
    by: tuple[str, ...]
    value: "Node"


@dataclass(frozen=True, slots=True)
class Binary:
    """Two values, matched by their labels."""

    sign: str
    left: "Node"
    right: "Node"


Node = Number | Selector | Call | Aggregation | Binary


def parse(text: str) -> Node:
    """Read an expression; raise Invalid for what is not understood."""
    reader = _Reader(text)
    found = reader.level(0)
    reader.end()
    return found


def check(text: str, samples: Mapping[str, Declared]) -> Node:
    """Read an expression, and raise Invalid when it asks for something that there is not.

    A name has to be a sample's, a label one of its own; rates are of what only grows, and of nothing else.
    """
    found = parse(text)
    _instant(text, found)
    _labels(found, samples, text)
    return found


def _labels(node: Node, samples: Mapping[str, Declared], text: str) -> frozenset[str]:
    """The labels that the samples of a node have, once all of it is checked."""
    match node:
        case Number():
            return frozenset()
        case Selector():
            return _selected(node, samples, text)
        case Call(function, arguments):
            found = frozenset[str]().union(*(_labels(each, samples, text) for each in arguments))
            if function not in RANGED:
                _instant(text, *arguments)
            elif not all(map(_is_ranged, arguments)):
                raise Invalid(f"{text}: {function} takes a range")
            if function == "histogram_quantile" and "le" not in found:
                raise Invalid(f"{text}: a quantile needs the label le")
            return found - {"le"} if function == "histogram_quantile" else found
        case Aggregation(_, by, value):
            _instant(text, value)
            found = _labels(value, samples, text)
            if unknown := set(by) - found:
                raise Invalid(f"{text}: there is no label {min(unknown)}")
            return frozenset(by)
        case Binary(_, left, right):
            _instant(text, left, right)
            sides = [_labels(each, samples, text) for each in (left, right) if not isinstance(each, Number)]
            if len(set(sides)) > 1:
                raise Invalid(f"{text}: both sides need the same labels; aggregate them by those")
            return sides[0] if sides else frozenset()


def _selected(node: Selector, samples: Mapping[str, Declared], text: str) -> frozenset[str]:
    metric = samples.get(node.name)
    if metric is None:
        raise Invalid(f"{text}: there is no metric {node.name}")
    labels = frozenset(metric.labels) | EVERYWHERE | ({"le"} if node.name.endswith("_bucket") else set())
    for label, _, _ in node.matchers:
        if label not in labels:
            raise Invalid(f"{text}: {node.name} has no label {label}")
    if metric.kind is Kind.GAUGE and node.range:
        raise Invalid(f"{text}: {node.name} is a gauge; show it as it is")
    if metric.kind is not Kind.GAUGE and not node.range:
        raise Invalid(f"{text}: {node.name} only grows; show its rate")
    return labels


def _instant(text: str, *nodes: Node) -> None:
    if any(map(_is_ranged, nodes)):
        raise Invalid(f"{text}: a range is for rate and increase only")


def _is_ranged(node: Node) -> bool:
    return isinstance(node, Selector) and bool(node.range)


class _Reader:
    """Reads tokens one after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._at = 0

    def level(self, level: int) -> Node:
        """A chain of values with signs of a level, or a higher one, between them."""
        if level == len(_LEVELS):
            return self._value()
        found = self.level(level + 1)
        while self._peek() in _LEVELS[level]:
            found = Binary(self._take(), found, self.level(level + 1))
        return found

    def end(self) -> None:
        """Refuse what is left."""
        if self._at < len(self._tokens):
            raise self._wrong()

    def _value(self) -> Node:
        kind, text = self._next()
        if kind == "number":
            return Number(float(text))
        if text == "(":
            found = self.level(0)
            self._expect(")")
            return found
        if kind != "name":
            raise self._wrong()
        if text in AGGREGATIONS:
            return self._aggregation(text)
        if text in FUNCTIONS:
            return self._call(text)
        return Selector(text, tuple(self._matchers()), self._range())

    def _aggregation(self, how: str) -> Node:
        by: list[str] = []
        if self._peek() == "by":
            self._take()
            self._expect("(")
            by = list(self._names())
        self._expect("(")
        value = self.level(0)
        self._expect(")")
        return Aggregation(how, tuple(by), value)

    def _call(self, function: str) -> Node:
        self._expect("(")
        arguments = [self.level(0)]
        while self._peek() == ",":
            self._take()
            arguments.append(self.level(0))
        self._expect(")")
        if len(arguments) != FUNCTIONS[function]:
            raise Invalid(f"{self._text}: {function} takes {FUNCTIONS[function]} arguments")
        return Call(function, tuple(arguments))

    def _names(self) -> Iterator[str]:
        while True:
            kind, text = self._next()
            if kind != "name":
                raise self._wrong()
            yield text
            if self._peek() != ",":
                break
            self._take()
        self._expect(")")

    def _matchers(self) -> Iterator[tuple[str, str, str]]:
        if self._peek() != "{":
            return
        self._take()
        while True:
            (label_kind, label), (_, sign), (kind, text) = self._next(), self._next(), self._next()
            if label_kind != "name" or kind != "text" or sign not in ("=", "!=", "=~", "!~"):
                raise self._wrong()
            yield label, sign, text[1:-1]
            if self._peek() != ",":
                break
            self._take()
        self._expect("}")

    def _range(self) -> str:
        if self._peek().startswith("["):
            return self._take()[1:-1]
        return ""

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        return self._next()[1]

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise Invalid(f"{self._text}: something is missing at its end")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, sign: str) -> None:
        if self._take() != sign:
            raise self._wrong()

    def _wrong(self) -> Invalid:
        found = self._tokens[min(self._at, len(self._tokens)) - 1][1]
        return Invalid(f"{self._text}: {found!r} is not understood there")


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            raise Invalid(f"{text}: not understood from {text[at : at + 10]!r} on")
        assert found.lastgroup is not None
        yield found.lastgroup, found[found.lastgroup]
        at = found.end()
