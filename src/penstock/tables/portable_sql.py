"""DDL statements as TiDB recorded them, rewritten so that MySQL and MariaDB run them too. Pure.

What only TiDB knows is put into TiDB's special comments, which other databases skip: `CLUSTERED` becomes
`/*T![clustered_index] CLUSTERED */`. The rest of the text stays as the user typed it. The module reads tokens
and the commas and parentheses between them; it knows no expressions. So it finds TiDB's words by their places
in a definition, and a column that is called `ttl` or `clustered` stays a column. It reads words that stand in
TiDB's special comments already like any others, because TiDB runs them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

ANSI_QUOTES = 1 << 2  # bits of TiDB's sql_mode
NO_BACKSLASH_ESCAPES = 1 << 20

_TIDB_FEATURES = (
    "affinity|auto_id_cache|auto_rand|auto_rand_base|clustered_index|force_inc|global_index|placement|pre_split"
    "|resource_group|ttl"
)
"""Those whose special comments TiDB runs; it skips the comments of others."""
_TOKENS = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<opening>/\*T!(?:\[(?:KNOWN)(?:,(?:KNOWN))*\]|(?!\[)))
    | (?P<closing>\*/)
    | (?P<special>/\*(?:!|\+|M!|T!).*?\*/)
    | (?P<comment>/\*.*?\*/|--(?=\s|$)[^\n]*|\#[^\n]*)
    | (?P<name>`(?:[^`]|``)*`)
    | (?P<single>'(?:[^'\\]|''|\\.)*')
    | (?P<double>"(?:[^"\\]|""|\\.)*")
    | (?P<number>(?:\d+(?:\.\d*)?|(?<!LETTER)(?<![`"'])\.\d+)(?:[eE][+-]?\d+)?(?!LETTER))
    | (?P<word>LETTER+)
    | (?P<mark>.)
    """.replace("KNOWN", _TIDB_FEATURES).replace("LETTER", r"""[^\s`'"\\/*\-#(),;.=+<>!@~^&|:?%{}\[\]]"""),
    re.VERBOSE | re.DOTALL,
)
_PLAIN_TOKENS = re.compile(_TOKENS.pattern.replace(r"|\\.", "").replace(r"\\]", "]"), _TOKENS.flags)
"""The same where a backslash in a text is a backslash."""

_FEATURES = {
    "CLUSTERED": "clustered_index",
    "NONCLUSTERED": "clustered_index",
    "GLOBAL": "global_index",
    "LOCAL": "global_index",
    "AUTO_RANDOM": "auto_rand",
}
_OPTIONS = {
    "SHARD_ROW_ID_BITS": "",
    "PRE_SPLIT_REGIONS": "",
    "AUTO_ID_CACHE": "auto_id_cache",
    "AUTO_RANDOM_BASE": "auto_rand_base",
    "TTL": "ttl",
    "TTL_ENABLE": "ttl",
    "TTL_JOB_INTERVAL": "ttl",
    "PLACEMENT": "placement",
    "AFFINITY": "",
    "COMPRESSION": "",
    "ENCRYPTION": "",
    "SECONDARY_ENGINE": "",
    "STATS_BUCKETS": "",
    "STATS_TOPN": "",
    "STATS_SAMPLE_RATE": "",
    "STATS_COL_CHOICE": "",
    "STATS_COL_LIST": "",
}
"""Options of tables and databases by their features. TiDB reads those of MySQL 8 among them and does nothing;
MariaDB refuses them."""
_KEYS = frozenset({"PRIMARY", "KEY", "INDEX", "UNIQUE"})
_BEFORE_NAMES = frozenset(
    {
        "ADD",
        "COLUMN",
        "AFTER",
        "CHANGE",
        "MODIFY",
        "DROP",
        "TO",
        "INDEX",
        "CONSTRAINT",
        "EXISTS",
        "RENAME",
        "ON",
    }
)
"""A word after one of these is somebody's name."""
_DEFAULT_COLLATIONS = {
    "utf8mb4": "utf8mb4_bin",
    "utf8": "utf8_bin",
    "utf8mb3": "utf8_bin",
    "latin1": "latin1_bin",
    "ascii": "ascii_bin",
    "gbk": "gbk_chinese_ci",
    "gb18030": "gb18030_chinese_ci",
}
"""TiDB's, which differ from those of MySQL and MariaDB."""


_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Charset:
    """The character set and the collation that a statement leaves to TiDB's defaults."""

    charset: str
    collate: str

    @property
    def options(self) -> str:
        """Options that say so; empty when nothing is known."""
        collate = f" COLLATE={self.collate}" if self.collate and self.collate != "binary" else ""
        return f" DEFAULT CHARSET={self.charset}{collate}" if self.charset else ""


def portable_statement(
    query: str,
    *,
    sql_mode: int = 0,
    charset: Charset | None = None,
    foreign_indexes: Mapping[str, str] = _NOTHING,
) -> str:
    """Return a DDL statement that TiDB, MySQL and MariaDB run alike.

    `sql_mode` is TiDB's number: it decides what quotes and backslashes mean. `charset` is what the new table
    or database has; it is written into a CREATE statement that does not name it, because the defaults of
    other databases compare texts without case. TTL is off in the copy: deletes of expired rows arrive as
    changes. `foreign_indexes` are indexes of the table, by names in lower case, that only some databases
    have, each with the comment in which its changes stand.
    """
    statement = _Statement.parse(query, sql_mode)
    _rewrite(statement, charset, foreign_indexes)
    statement.wrap_rest()
    return statement.render()


def split_statements(query: str, *, sql_mode: int = 0) -> list[str]:
    """Return the statements of a text that holds several, without the semicolons between them."""
    found, current = [], ""
    for kind, text in _tokens(query, sql_mode):
        if kind == "mark" and text == ";":
            found.append(current)
            current = ""
        else:
            current += text
    return [text.strip() for text in (*found, current) if text.strip()]


def copies_table(query: str, *, sql_mode: int = 0) -> bool:
    """Return whether a statement is CREATE TABLE ... LIKE, whose result depends on another table."""
    tokens = _Statement.parse(query, sql_mode).tokens
    opening = next((at for at, token in enumerate(tokens) if token.text == "("), len(tokens))
    return any(token.word == "LIKE" for token in tokens[: opening + 2])


def _tokens(query: str, sql_mode: int) -> Iterator[tuple[str, str]]:
    pattern = _PLAIN_TOKENS if sql_mode & NO_BACKSLASH_ESCAPES else _TOKENS
    for found in pattern.finditer(query):
        assert found.lastgroup is not None, "every character belongs to a token"
        yield found.lastgroup, found[0]


@dataclass(slots=True)
class _Token:
    kind: str
    text: str
    depth: int  # parentheses that are open around it
    at: int  # its place in the whole text
    opening: str = ""  # of TiDB's special comment that it stands in

    @property
    def word(self) -> str:
        """The word in upper case; empty for names in quotes, texts and marks."""
        return self.text.upper() if self.kind == "word" else ""


@dataclass(slots=True)
class _Statement:
    """The tokens of a statement, and what is written around some of them."""

    pieces: list[str]  # the whole text
    tokens: list[_Token]  # without spaces and comments
    before: dict[int, str] = field(default_factory=dict)
    after: dict[int, str] = field(default_factory=dict)
    wrapped: set[int] = field(default_factory=set)  # places of tokens that were put into a comment

    @classmethod
    def parse(cls, query: str, sql_mode: int) -> "_Statement":
        """Read a statement; words in TiDB's special comments become tokens, and the comments go."""
        pieces: list[str] = []
        tokens: list[_Token] = []
        depth, opening, begun = 0, "", 0
        for kind, text in _tokens(query.strip(), sql_mode):
            if kind == "opening":
                opening, begun = text, len(pieces)
                continue
            if kind == "closing" and opening:
                opening = ""
                if len(pieces) > begun and pieces[-1].isspace():
                    pieces.pop()
                continue
            if kind == "space" and opening and len(pieces) == begun:
                continue
            depth -= text == ")" and depth > 0
            if kind not in {"space", "comment", "special"}:
                tokens.append(_Token(kind, text, depth, len(pieces), opening))
            pieces.append(_requote(kind, text, sql_mode))
            depth += text == "("
        while tokens and tokens[-1].text == ";":
            del pieces[tokens.pop().at]
        return cls(pieces, tokens)

    def wrap(self, tokens: Sequence[_Token], opening: str) -> None:
        """Put tokens into a comment; comments among them go, because comments do not nest.

        Where a name would end the comment, the tokens go as well: names cannot be written in another way.
        """
        first, last = tokens[0].at, tokens[-1].at
        inside = {token.at: token for token in tokens}
        for at in range(first, last + 1):
            if at not in inside and self.pieces[at].strip():
                self.pieces[at] = " "
            elif at in inside and inside[at].kind in {"single", "double"}:
                self.pieces[at] = _hide_comment_marks(self.pieces[at])
        self.wrapped |= set(inside)
        if any(mark in "".join(self.pieces[first : last + 1]) for mark in ("/*", "*/")):
            self.pieces[first : last + 1] = [" ", *[""] * (last - first)]
            return
        self.before[first] = opening + " " + self.before.get(first, "")
        self.after[last] = self.after.get(last, "") + " */"

    def wraps(self, tokens: Sequence[_Token]) -> bool:
        """Return whether nothing of some tokens is left outside of comments."""
        return all(token.at in self.wrapped for token in tokens)

    def wrap_rest(self) -> None:
        """Put tokens that stood in TiDB's special comments, and stand in none now, back into them."""
        for opening, run in groupby(
            self.tokens, lambda token: token.at not in self.wrapped and token.opening
        ):
            rest = [token for token in run if self.pieces[token.at]]
            if opening and rest:
                self.wrap(rest, opening)

    def wrap_feature(self, tokens: Sequence[_Token], feature: str) -> None:
        """Put tokens into TiDB's special comment of a feature."""
        self.wrap(tokens, f"/*T![{feature}]" if feature else "/*T!")

    def append(self, token: _Token, text: str) -> None:
        """Write something behind a token, and behind what stands there."""
        self.after[token.at] = self.after.get(token.at, "") + text

    def names_collation_after(self, token: _Token) -> bool:
        """Return whether a comment of MySQL or MariaDB behind a token names a collation."""
        behind = next((piece for piece in self.pieces[token.at + 1 :] if not piece.isspace()), "")
        return behind.startswith(("/*!", "/*M!")) and "COLLATE" in behind.upper()

    def swallow_comma(self, token: _Token, *, after: bool) -> None:
        """Move the comma beside a wrapped part into its comment."""
        at, step = token.at, 1 if after else -1
        while self.pieces[at] != ",":
            at += step
        self.pieces[at] = ""
        if self.pieces[at - 1].isspace() and self.pieces[at + 1].isspace():
            self.pieces[at + 1] = ""
        if after and token.at in self.after:
            self.after[token.at] = self.after[token.at].removesuffix(" */") + ", */"
        elif not after and token.at in self.before:
            self.before[token.at] += ", "

    def text(self, tokens: Sequence[_Token]) -> str:
        """Return the text of tokens as a comment can have it; comments among them go."""
        places = {token.at for token in tokens}
        found = (
            _hide_comment_marks(piece)
            if piece[:1] == "'"
            else piece
            if at in places or not piece.strip()
            else " "
            for at, piece in enumerate(self.pieces[: tokens[-1].at + 1])
            if at >= tokens[0].at
        )
        return "".join(found)

    def render(self) -> str:
        places = enumerate(self.pieces)
        return "".join(self.before.get(at, "") + text + self.after.get(at, "") for at, text in places).strip()


def _requote(kind: str, text: str, sql_mode: int) -> str:
    """Return names in backticks and texts in single quotes with backslash escapes, as all modes read."""
    if kind == "double" and sql_mode & ANSI_QUOTES:
        return "`" + text[1:-1].replace('""', '"').replace("`", "``") + "`"
    if kind in {"single", "double"} and sql_mode & NO_BACKSLASH_ESCAPES:
        text = text.replace("\\", "\\\\")
    if kind == "double":
        return "'" + re.sub(r"\\.|''?|\"\"", _escape_quote, text[1:-1], flags=re.DOTALL) + "'"
    return text


def _escape_quote(found: re.Match[str]) -> str:
    return {'""': '"', "'": "''", "''": "''''"}.get(found[0], found[0])


def _hide_comment_marks(text: str) -> str:
    """Return a text in quotes, which means the same, without the marks that begin and end comments."""
    return text.replace("*/", r"*\/").replace("/*", r"/\*")


def _rewrite(statement: _Statement, charset: Charset | None, foreign: Mapping[str, str]) -> None:
    tokens = statement.tokens
    words = [token.word for token in tokens]
    verb, rest = (words[0] if words else ""), words[1:6]
    if verb == "CREATE" and "TABLE" in rest and "VIEW" not in rest[: rest.index("TABLE")]:
        _rewrite_create_table(statement, charset)
    elif verb == "ALTER" and rest[:1] == ["TABLE"]:
        _rewrite_alter_table(statement, foreign)
    elif verb in {"CREATE", "ALTER"} and rest and rest[0] in {"DATABASE", "SCHEMA"}:
        _rewrite_options(statement, tokens)
        _name_collations(statement, tokens)
        if verb == "CREATE" and charset is not None and not _names_charset(tokens):
            statement.append(
                tokens[-1], _without_foreign_collation(charset.options.replace(" DEFAULT", "", 1))
            )
    elif verb in {"CREATE", "DROP"} and "INDEX" in rest[:3]:
        _rewrite_index(statement, foreign)


def _rewrite_create_table(statement: _Statement, charset: Charset | None) -> None:
    tokens = statement.tokens
    opening = next((at for at, token in enumerate(tokens) if token.text == "(" and token.depth == 0), None)
    if opening is None or _text(tokens, opening + 1).upper() == "LIKE":
        return
    closing = _closing(tokens, opening)
    elements = list(_split(tokens[opening + 1 : closing]))
    wholes = [_foreign_index(element) for element in elements]
    for element, whole in zip(elements, wholes, strict=True):
        if not whole:
            _rewrite_element(statement, element, named=element[0].word not in _DEFINES_NO_COLUMN)
    _wrap_wholes(statement, elements, wholes)
    tail = tokens[closing + 1 :]
    parts = list(_split(tail))
    for part in parts:
        _rewrite_options(statement, part)
    _name_collations(statement, tail)
    _wrap_wholes(statement, parts, [_WRAPPED * statement.wraps(part) for part in parts])
    if charset is not None and not _names_charset(tail):
        statement.append(tokens[closing], _without_foreign_collation(charset.options))


_DEFINES_NO_COLUMN = _KEYS | {
    "CONSTRAINT",
    "FOREIGN",
    "CHECK",
    "FULLTEXT",
    "SPATIAL",
    "VECTOR",
    "COLUMNAR",
    "LIKE",
}


def _rewrite_alter_table(statement: _Statement, foreign: Mapping[str, str]) -> None:
    tokens = statement.tokens[2:]
    specs = list(_split(tokens[3 if _text(tokens, 1) == "." else 1 :]))
    wholes = [_foreign_spec(spec, foreign) or _foreign_index(spec) for spec in specs]
    for at, spec in enumerate(specs):
        if not wholes[at]:
            _rewrite_spec(statement, spec)
            wholes[at] = _WRAPPED * statement.wraps(spec)
    _wrap_wholes(statement, specs, wholes)


_WRAPPED = "wrapped already"


def _wrap_wholes(statement: _Statement, parts: Sequence[Sequence[_Token]], wholes: Sequence[str]) -> None:
    """Put whole parts of a list into comments, each with the comma that it needs."""
    for at, (part, whole) in enumerate(zip(parts, wholes, strict=True)):
        if not whole:
            continue
        if whole != _WRAPPED:
            statement.wrap(part, whole)
        if not all(wholes[:at]):
            statement.swallow_comma(part[0], after=False)
        elif at + 1 < len(parts):
            statement.swallow_comma(part[-1], after=True)


def _foreign_spec(spec: Sequence[_Token], foreign: Mapping[str, str]) -> str:
    """Return the comment for a change of a table that only some databases know; empty for others."""
    words = [token.word for token in spec]
    if words[0] in {"DROP", "RENAME", "ALTER"} and words[1:2] in (["INDEX"], ["KEY"]):
        whole = foreign.get(_name_after_exists(spec[2:]))
        if whole:
            return whole
    if words[:2] == ["REMOVE", "TTL"]:
        return "/*T![ttl]"
    if words[:2] == ["ALTER", "INDEX"] and words[-1] in {"VISIBLE", "INVISIBLE"}:
        return _MYSQL_8
    return ""


_MYSQL_8 = "/*!80000"
"""What MySQL 8 and TiDB run. MariaDB skips comments for MySQL 5.7 to 9."""


def _foreign_index(element: Sequence[_Token]) -> str:
    """Return the comment for an index that only some databases can have; empty for others.

    A unique index over all partitions, an index of some rows and one for vectors are TiDB's own. MariaDB has
    no indexes of expressions. A copy without the index holds the same rows.
    """
    depth = element[0].depth
    level = [token for token in element if token.depth == depth]
    opening = next((at for at, token in enumerate(level) if token.text == "("), len(level))
    words, options = {token.word for token in level[:opening]}, {token.word for token in level[opening:]}
    begins = level[0].word in {"ADD", "CREATE"} or level[0].word in _DEFINES_NO_COLUMN
    if not begins or not words & _KEYS or words & {"FOREIGN", "CHECK", "COLUMN", "PARTITION"}:
        return ""
    if words & {"VECTOR", "COLUMNAR"} or "WHERE" in options:
        return "/*T!"
    if "GLOBAL" in options and words & {"UNIQUE", "PRIMARY"}:
        return "/*T![global_index]"
    parts = element[element.index(level[opening]) + 1 :] if opening < len(level) else ()
    nested = [token for at, token in enumerate(parts) if token.text == "(" and _begins_part(parts, at)]
    return "/*!80013" if any(token.depth == depth + 1 for token in nested) else ""


def _begins_part(parts: Sequence[_Token], at: int) -> bool:
    """Return whether a parenthesis begins a part of an index, so that it holds an expression."""
    return at == 0 or parts[at - 1].text == ","


def _name_after_exists(tokens: Sequence[_Token]) -> str:
    """Return the name at the beginning, or behind IF EXISTS there, in lower case."""
    at = 2 if _text(tokens, 0).upper() == "IF" and _text(tokens, 1).upper() == "EXISTS" else 0
    text = _text(tokens, at)
    return (text[1:-1].replace(text[0] * 2, text[0]) if text[:1] in ("`", '"') else text).lower()


def _rewrite_index(statement: _Statement, foreign: Mapping[str, str]) -> None:
    """Rewrite CREATE INDEX and DROP INDEX; an index that not all databases know becomes an ALTER TABLE."""
    tokens = statement.tokens
    creates = tokens[0].word == "CREATE"
    whole = _foreign_index(tokens) if creates else foreign.get(_name_after_exists(tokens[2:]), "")
    on = next((at for at, token in enumerate(tokens) if token.word == "ON"), 0)
    if not whole or not on:
        _rewrite_element(statement, tokens, named=False)
        _wrap_if_exists(statement, tokens)
        return
    end = on + (3 if _text(tokens, on + 2) == "." else 1)
    table, verb = statement.text(tokens[on + 1 : end + 1]), "ADD" if creates else "DROP"
    rest = f" {statement.text(tokens[end + 1 :])}" if creates and end + 1 < len(tokens) else ""
    change = f"{verb} {statement.text(tokens[1:on])}{rest}"
    hidden = "" if "*/" in change or "/*" in change else f" {whole} {change} */"
    statement.pieces, statement.tokens = [f"ALTER TABLE {table}{hidden}"], []


def _rewrite_spec(statement: _Statement, spec: list[_Token]) -> None:
    """Rewrite one change of an ALTER TABLE."""
    words = [token.word for token in spec]
    opening = next((at for at, token in enumerate(spec[:3]) if token.text == "("), None)
    if words[0] == "ADD" and opening is not None and words[1:opening] in ([], ["COLUMN"]):
        for element in _split(spec[opening + 1 : _closing(spec, opening)]):
            _rewrite_element(statement, element, named=element[0].word not in _DEFINES_NO_COLUMN)
    elif words[0] in {"ADD", "CHANGE", "MODIFY", "DROP", "RENAME", "ALTER"} and words[1:2] != ["PARTITION"]:
        _rewrite_element(statement, spec, named=False)
        _wrap_if_exists(statement, spec)
    else:
        _rewrite_options(statement, spec)
        _name_collations(statement, spec)


def _rewrite_element(statement: _Statement, element: Sequence[_Token], *, named: bool) -> None:
    """Rewrite the definition of a column or an index; `named`: it begins with the column's name."""
    depth = element[0].depth
    seen: set[str] = set()
    at = 1 if named else 0
    while at < len(element):
        token = element[at]
        end = at
        if token.word and token.depth == depth and not _is_name(element, at):
            end = _wrap_word(statement, element, at, seen)
            seen.add(token.word)
        at = end + 1
    _name_collations(statement, element)


def _wrap_word(statement: _Statement, element: Sequence[_Token], at: int, seen: set[str]) -> int:
    """Wrap an option of a column or an index if only TiDB knows it; return the place of its last token."""
    word = element[at].word
    if word == "AUTO_RANDOM":
        end = _closing(element, at + 1) if _text(element, at + 1) == "(" else at
        statement.wrap_feature(element[at : end + 1], "auto_rand")
        return end
    if word == "PRE_SPLIT_REGIONS" and seen & _KEYS:
        end = _value_end(element, at)
        statement.wrap_feature(element[at : end + 1], "pre_split")
        return end
    end = _global_key_end(element, at)
    if end:
        statement.wrap_feature(element[at : end + 1], "global_index")
        return end
    if word in _FEATURES and seen & _KEYS:
        statement.wrap_feature([element[at]], _FEATURES[word])
    elif word in {"VISIBLE", "INVISIBLE"} and seen & _KEYS:
        statement.wrap([element[at]], "/*!80000")
    return at


def _global_key_end(element: Sequence[_Token], at: int) -> int:
    """Return the last token of `UNIQUE [KEY] GLOBAL` or `PRIMARY KEY [NONCLUSTERED] GLOBAL`; 0 for others.

    Other databases refuse a key of a partitioned table that leaves out a column of its partitioning.
    """
    if element[at].word not in {"UNIQUE", "PRIMARY"}:
        return 0
    end = at + 1
    while end < len(element) and element[end].word in {"KEY", "CLUSTERED", "NONCLUSTERED"}:
        end += 1
    return end if end < len(element) and element[end].word == "GLOBAL" else 0


def _is_name(element: Sequence[_Token], at: int) -> bool:
    before, after = (element[at - 1] if at else None), _text(element, at + 1)
    if after == "." or (before is not None and before.text == "."):
        return True
    if element[at].word == "AUTO_RANDOM":
        return before is not None and before.word in _BEFORE_NAMES
    if before is not None and before.word == "KEY":
        return after == "("  # the name of an index
    return before is not None and before.word in _BEFORE_NAMES and element[at].word not in {"UNIQUE", *_KEYS}


def _rewrite_options(statement: _Statement, tokens: Sequence[_Token]) -> None:
    """Wrap options of a table, a partition or a database that only TiDB knows."""
    depth = tokens[0].depth if tokens else 0
    switched = any(_switches_ttl(statement.tokens, at) for at in range(len(statement.tokens)))
    at = 0
    while at < len(tokens):
        token, end = tokens[at], at
        word = token.word
        following = tokens[at + 1].word if at + 1 < len(tokens) else ""
        if word == "UPDATE" and following == "INDEXES":
            end = _value_end(tokens, at + 1)
            statement.wrap_feature(tokens[at : end + 1], "global_index")
        elif word == "FORCE" and following in {"AUTO_INCREMENT", "AUTO_RANDOM_BASE"}:
            statement.wrap_feature([token], "force_inc")
        elif _is_option(tokens, at, depth):
            end = _value_end(tokens, at + (word == "PLACEMENT"))
            if word == "TTL":
                end = _ttl_end(tokens, at)
            if word == "TTL_ENABLE":
                statement.pieces[tokens[end].at] = "'OFF'"
            begin = at - _follows_default(statement, tokens, at)
            statement.wrap_feature(tokens[begin : end + 1], _OPTIONS[word])
            if word == "TTL" and not switched and tokens[end].at in statement.after:
                statement.append(tokens[end], " /*T![ttl] TTL_ENABLE='OFF' */")
        at = end + 1


def _follows_default(statement: _Statement, tokens: Sequence[_Token], at: int) -> bool:
    """Return whether DEFAULT before an option of a database belongs to it, and not to the option before."""
    before = tokens[at - 1] if at else None
    of_database = statement.tokens[1].word in {"DATABASE", "SCHEMA"}
    return of_database and before is not None and before.word == "DEFAULT" and not statement.wraps([before])


def _switches_ttl(tokens: Sequence[_Token], at: int) -> bool:
    """Return whether TTL is switched here; a column of that name has no text behind it."""
    value = at + 1 + (_text(tokens, at + 1) == "=")
    return tokens[at].word == "TTL_ENABLE" and _text(tokens, value)[:1] in {"'", '"'}


def _is_option(tokens: Sequence[_Token], at: int, depth: int) -> bool:
    token = tokens[at]
    if token.word == "PLACEMENT":
        return at + 1 < len(tokens) and tokens[at + 1].word == "POLICY"
    named = _text(tokens, at - 1).upper() in {"=", ".", "PARTITION", "DATABASE", "SCHEMA", "EXISTS"}
    return token.word in _OPTIONS and token.depth == depth and not named and at + 1 < len(tokens)


def _value_end(tokens: Sequence[_Token], at: int) -> int:
    """Return the last token of an option's value: `name [=] [sign] value` or `name [=] (...)`."""
    at += 1
    at += _text(tokens, at) == "="
    at += _text(tokens, at) in {"+", "-"}
    if at < len(tokens) and tokens[at].word == "SET" and _text(tokens, at + 1).upper() == "DEFAULT":
        at += 1
    return _closing(tokens, at) if _text(tokens, at) == "(" else min(at, len(tokens) - 1)


def _ttl_end(tokens: Sequence[_Token], at: int) -> int:
    """Return the last token of `TTL [=] column + INTERVAL value unit`."""
    while at < len(tokens) and tokens[at].word != "INTERVAL":
        at += 1
    while at < len(tokens) and not _TIME_UNITS.fullmatch(tokens[at].word):
        at += 1
    return min(at, len(tokens) - 1)


_TIME_UNITS = re.compile(
    "(SQL_TSI_)?(MICROSECOND|SECOND|MINUTE|HOUR|DAY|WEEK|MONTH|QUARTER|YEAR)"
    "|(SECOND|MINUTE|HOUR|DAY)_(MICROSECOND|SECOND|MINUTE|HOUR)|YEAR_MONTH"
)


def _wrap_if_exists(statement: _Statement, tokens: Sequence[_Token]) -> None:
    """Wrap IF EXISTS and IF NOT EXISTS, which MySQL does not know in changes of tables and indexes."""
    for at, token in enumerate(tokens):
        if token.word == "IF" and token.depth == tokens[0].depth:
            end = at + (2 if at + 1 < len(tokens) and tokens[at + 1].word == "NOT" else 1)
            if end < len(tokens) and tokens[end].word == "EXISTS":
                statement.wrap_feature(tokens[at : end + 1], "")


def _name_collations(statement: _Statement, tokens: Sequence[_Token]) -> None:
    """Add TiDB's default collation after a character set that stands without one.

    MariaDB does not know collations of MySQL 8. There texts are compared byte for byte instead, so that no
    two keys which differ in the source are the same in the copy.
    """
    level = [token for token in tokens if token.depth == tokens[0].depth]
    named = False
    for at, token in enumerate(level):
        if token.word != "COLLATE" or at + 1 == len(level):
            continue
        named = True
        end = at + (2 if _text(level, at + 1) == "=" and at + 2 < len(level) else 1)
        if "_0900_" in level[end].text:
            statement.wrap(level[at : end + 1], _MYSQL_8)
            statement.append(level[end], _MARIADB_COLLATE)
    for at, token in enumerate(level):
        if named or not (token.word == "CHARSET" or (token.word == "SET" and _is_charset(level, at))):
            continue
        end = at + (2 if _text(level, at + 1) == "=" else 1)
        collate = _DEFAULT_COLLATIONS.get(_text(level, end).strip("`'\"").lower())
        if collate and not statement.names_collation_after(level[end]):
            statement.append(level[end], f" COLLATE {collate}")


_MARIADB_COLLATE = " /*M! COLLATE utf8mb4_bin */"


def _is_charset(level: Sequence[_Token], at: int) -> bool:
    return at > 0 and level[at - 1].word in {"CHARACTER", "CHAR"}


def _without_foreign_collation(options: str) -> str:
    """Return options of a table with a collation of MySQL 8 in comments that MariaDB skips."""
    return re.sub(r" (COLLATE=\S*_0900_\S*)", rf" {_MYSQL_8} \1 */{_MARIADB_COLLATE}", options)


def _names_charset(tokens: Sequence[_Token]) -> bool:
    return any(token.word in {"CHARSET", "CHARACTER", "COLLATE"} and token.depth == 0 for token in tokens)


def _split(tokens: Sequence[_Token]) -> Iterator[list[_Token]]:
    """Yield the parts between commas that are in no parentheses of their own."""
    if not tokens:
        return
    part: list[_Token] = []
    for token in tokens:
        if token.text == "," and token.depth == tokens[0].depth:
            if part:
                yield part
            part = []
        else:
            part.append(token)
    if part:
        yield part


def _closing(tokens: Sequence[_Token], opening: int) -> int:
    """Return the place of the parenthesis that closes one; the end where it is missing."""
    depth = tokens[opening].depth
    closing = (
        at for at in range(opening + 1, len(tokens)) if tokens[at].text == ")" and tokens[at].depth == depth
    )
    return next(closing, len(tokens) - 1)


def _text(tokens: Sequence[_Token], at: int) -> str:
    return tokens[at].text if 0 <= at < len(tokens) else ""
