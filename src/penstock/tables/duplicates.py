"""Which row an insert met."""

from penstock.errors import KeyExists
from penstock.tables.keys import decode_index_prefix, is_record_key
from penstock.tables.schema import TableInfo


class DuplicateRow(KeyExists):
    """A row with the same primary key, or the same values in a unique index, is there already."""

    def __init__(self, name: str, table: TableInfo, key: bytes) -> None:
        super().__init__(key)
        self.args = (
            f"{name} has a row with the same {_what(table, key)} already; update or upsert it instead",
        )


def _what(table: TableInfo, key: bytes) -> str:
    if is_record_key(key):
        return "primary key"
    _, index_id = decode_index_prefix(key)
    found = next((index for index in table.indexes if index.id == index_id), None)
    if found is None:
        return "unique values"
    return "primary key" if found.primary else f"values in unique index {found.name}"
