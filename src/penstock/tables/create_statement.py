"""Reads CREATE TABLE: the statement as people and TiDB write it, in parts that `define_table` takes.

Column definitions stay text. What would change the meaning of rows and is not understood is refused: CHECK,
foreign keys, generated columns, partial and expression indexes. Options without a meaning here (ENGINE,
ROW_FORMAT, AUTO_INCREMENT) are left out.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penstock.errors import Invalid
from penstock.tables.define import COLLATE, Index
from penstock.tables.partitions import MAXVALUE, PartitionBy

_COMMENTS = re.compile(
    r"(?P<text>'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`(?:[^`]|``)*`)"
    r"|/\*(?:T!(?:\[\w+\])?|!\d*)(?P<inside>.*?)\*/|/\*.*?\*/|(?:--\s|#)[^\n]*",
    re.DOTALL,
)
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|('(?:[^'\\]|\\.|'')*')|([\w.+-]+)|([(),=;]))")
_HEAD = re.compile(
    r"\s*create\s+table\s+(?P<soft>if\s+not\s+exists\s+)?"
    r"(?P<name>(?:`(?:[^`]|``)+`|[\w$-]+)(?:\s*\.\s*(?:`(?:[^`]|``)+`|[\w$-]+))?)\s*\(",
    re.IGNORECASE,
)
_KEY_WORDS = frozenset({"primary", "unique", "key", "index", "constraint"})
_REFUSED = frozenset({"check", "foreign", "fulltext", "spatial", "vector", "like", "period"})


@dataclass(slots=True)
class CreateTable:
    """The parts of a statement."""

    name: str
    columns: list[tuple[str, str]] = field(default_factory=list)
    primary_key: Sequence[str] = ()
    indexes: Sequence[Index] = ()
    clustered: bool = True
    comment: str = ""
    partition_by: PartitionBy | None = None
    if_not_exists: bool = False


def parse_create_table(statement: str) -> CreateTable:
    """Read a statement; raise Invalid, naming the part, for what Penstock would not create as written."""
    text = _bare(statement).strip().rstrip(";")
    head = _HEAD.match(text)
    if head is None:
        raise Invalid("the statement is no CREATE TABLE db.name (columns); write the columns in parentheses")
    names = re.findall(r"`(?:[^`]|``)+`|[\w$-]+", head["name"])
    table = CreateTable(".".join(map(_name, names)), if_not_exists=bool(head["soft"]))
    body, end = _inside(text, head.end() - 1)
    items = list(_split(body))
    options = text[end:]
    collate = _option(options, "collate")
    if collate and collate.lower() != COLLATE:
        raise Invalid(f"COLLATE={collate} of the table is not taken over; write it at each column")
    for item in items:
        _read_item(table, item)
    _read_options(table, options)
    return table


def _bare(text: str) -> str:
    """Return a statement without comments; TiDB's and MySQL's special comments are its text."""
    return _COMMENTS.sub(lambda found: found["text"] or f" {found['inside'] or ''} ", text)


def _name(token: str) -> str:
    return token[1:-1].replace("``", "`") if token.startswith("`") else token


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text.rstrip()):
        token = _TOKEN.match(text, at)
        if token is None:
            raise Invalid(f"CREATE TABLE is not understood from {text[at:].strip()[:40]!r} on")
        found.append(token[0].strip())
        at = token.end()
    return found


def _inside(text: str, at: int) -> tuple[str, int]:
    """Return what stands between a parenthesis and the one that closes it, and where that ends."""
    depth = 0
    for token in re.finditer(r"'(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`|[()]", text[at:]):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if not depth:
            return text[at + 1 : at + token.start()], at + token.end()
    raise Invalid("CREATE TABLE ends inside of a parenthesis; close it")


def _split(text: str) -> Iterator[str]:
    """Yield what stands between the commas outside of parentheses and quotes."""
    depth, start = 0, 0
    for token in re.finditer(r"'(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`|[(),]", text):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if token[0] == "," and not depth:
            yield text[start : token.start()].strip()
            start = token.end()
    if text[start:].strip():
        yield text[start:].strip()


def _read_item(table: CreateTable, item: str) -> None:
    token = _TOKEN.match(item)
    if token is None:
        raise Invalid(f"CREATE TABLE is not understood from {item[:40]!r} on")
    first = token[0].strip()
    word = first.lower()
    if word in _REFUSED:
        raise Invalid(
            f"{word.upper()} in CREATE TABLE is not supported; leave it out, or create the table in TiDB"
        )
    if word in _KEY_WORDS:
        _read_key(table, item)
        return
    rest = item[len(first) :].strip()
    for unsupported in ("generated", "as", "check", "references"):
        if re.search(rf"(?<!['\w]){unsupported}\s*\(|\b{unsupported}\s+always\b", rest, re.IGNORECASE):
            raise Invalid(f"column {_name(first)} is not supported: {unsupported.upper()}; create it in TiDB")
    words = [token.lower() for token in _tokens(rest)]
    if "nonclustered" in words or "clustered" in words:
        table.clustered = "nonclustered" not in words
        rest = re.sub(r"\s+(?:non)?clustered\b", "", rest, flags=re.IGNORECASE)
    table.columns.append((_name(first), rest))


def _read_key(table: CreateTable, item: str) -> None:
    bracket = item.index("(") if "(" in item else -1
    if bracket < 0:
        raise Invalid(f"{item!r} in CREATE TABLE has no columns; write them in parentheses")
    head = _tokens(item[:bracket])
    body, end = _inside(item, bracket)
    columns = [_index_column(part) for part in _split(body)]
    after = [token.lower() for token in _tokens(item[end:])]
    words = [word.lower() for word in head]
    if "foreign" in words or "check" in words:
        raise Invalid(
            "foreign keys and checks are not supported; leave them out, or create the table in TiDB"
        )
    if "where" in after or "global" in after:
        raise Invalid(f"{after[0].upper()} of an index is not supported; create the table in TiDB")
    if "primary" in words:
        table.primary_key = columns
        table.clustered = "nonclustered" not in after
        return
    if words[0] == "constraint":
        head, words = head[1:], words[1:]
    named = [token for token, word in zip(head, words, strict=True) if word not in {"unique", "key", "index"}]
    name = _name(named[0]) if named else columns[0].partition("(")[0]
    table.indexes = [*table.indexes, Index(name, columns, unique="unique" in words)]


def _index_column(part: str) -> str:
    if part.startswith("("):
        raise Invalid("an index on an expression is not supported; create the table in TiDB")
    tokens = _tokens(part)
    length = f"({tokens[2]})" if tokens[1:2] == ["("] else ""
    return _name(tokens[0]) + length


def _option(text: str, name: str) -> str:
    found = re.search(rf"\b{name}\s*=?\s*('(?:[^'\\]|\\.|'')*'|\w+)", text, re.IGNORECASE)
    return found[1] if found else ""


def _read_options(table: CreateTable, text: str) -> None:
    divided = re.search(r"\bpartition\s+by\b", text, re.IGNORECASE)
    comment = _option(text[: divided.start()] if divided else text, "comment")
    table.comment = comment[1:-1].replace("''", "'").replace("\\'", "'").replace("\\\\", "\\")
    if divided:
        table.partition_by = _read_partitions(text[divided.end() :])


def _read_partitions(text: str) -> PartitionBy:
    by = re.match(r"\s*(range|list|hash|key)\s*(columns)?\s*\(", text, re.IGNORECASE)
    if by is None:
        raise Invalid("PARTITION BY is not RANGE, LIST, HASH or KEY; create the table in TiDB")
    kind = by[1].lower()
    inside, end = _inside(text, by.end() - 1)
    rest = text[end:]
    names = [_name(name) for name in _split(inside)]
    if kind in {"hash", "key"}:
        count = re.match(r"\s*partitions\s+(\d+)", rest, re.IGNORECASE)
        if count is None:
            raise Invalid("PARTITION BY HASH or KEY needs PARTITIONS n; write how many")
        return (
            PartitionBy.hash(inside, int(count[1]))
            if kind == "hash"
            else PartitionBy.key(names, int(count[1]))
        )
    bounds = {}
    for definition in _split(_inside(rest, rest.index("("))[0]):
        part = re.match(
            r"partition\s+(`[^`]+`|\w+)\s+values\s+(?:less\s+than|in)\s*(maxvalue|\()",
            definition,
            re.IGNORECASE,
        )
        if part is None:
            raise Invalid(f"{definition[:40]!r} in PARTITION BY is not understood; create the table in TiDB")
        is_open = part[2] == "("
        bounds[_name(part[1])] = (
            list(_split(_inside(definition, part.end() - 1)[0])) if is_open else [MAXVALUE]
        )
    by_columns = names if by[2] else inside
    if kind == "list":
        return PartitionBy.list(
            by_columns, {name: [_constant(one) for one in row] for name, row in bounds.items()}
        )
    return PartitionBy.range(by_columns, {name: _bound(row) for name, row in bounds.items()})


def _bound(texts: Sequence[str]) -> object:
    values = tuple(None if text.upper() == MAXVALUE else _constant(text) for text in texts)
    return values[0] if len(values) == 1 else values


def _constant(text: str) -> object:
    if text.upper() == "NULL":
        return None
    if text.startswith("("):
        return tuple(_constant(one) for one in _split(text[1:-1]))
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    try:
        return int(text)
    except ValueError:
        raise Invalid(f"the bound {text} of a partition is neither a number nor a text; write one") from None
