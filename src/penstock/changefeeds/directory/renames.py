"""Which table a RENAME was of, told by the statement. Pure."""

import re

Name = tuple[str, str]
"""Database and table."""

_PART = r"(?:`(?:[^`]|``)+`|[\w$]+)"
_TABLE = rf"(?P<{{0}}>{_PART}(?:\s*\.\s*{_PART})?)"
_PAIR = re.compile(rf"{_TABLE.format('old')}\s+TO\s+{_TABLE.format('new')}", re.IGNORECASE)
_RENAME = re.compile(r"^\s*RENAME\s+TABLES?\s+(?P<pairs>.+)$", re.IGNORECASE | re.DOTALL)
_ALTER = re.compile(
    rf"^\s*ALTER\s+TABLE\s+{_TABLE.format('old')}\s+RENAME\s+(?:(?:TO|AS)\s+)?{_TABLE.format('new')}\s*;?\s*$",
    re.IGNORECASE,
)


def old_name(query: str, database: str, table: str) -> Name | None:
    """What `database.table` was called before a RENAME; None when the statement does not tell.

    Names without a database are in `database`.
    """
    altered = _ALTER.match(query)
    if altered:
        pairs = [altered]
    elif renamed := _RENAME.match(query):
        pairs = list(_PAIR.finditer(renamed["pairs"]))
    else:
        return None
    wanted = database.lower(), table.lower()
    for pair in pairs:
        new = _name(pair["new"], database)
        if (new[0].lower(), new[1].lower()) == wanted:
            return _name(pair["old"], database)
    return None


def _name(text: str, database: str) -> Name:
    parts = [part.strip("`").replace("``", "`") for part in re.findall(_PART, text)]
    return (parts[0], parts[1]) if len(parts) == 2 else (database, parts[0])
