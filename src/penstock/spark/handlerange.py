"""The options rangeFrom and rangeTo as the handles that a read begins and ends with."""

from penstock.errors import Invalid
from penstock.tables.keys import encode_handle
from penstock.tables.schema import HandleKind, TableInfo

_INT64 = range(-(1 << 63), 1 << 63)


def handle_bounds(
    table: TableInfo, range_from: int | bytes | None, range_to: int | bytes | None
) -> tuple[bytes, bytes]:
    """The first handle, and the first one behind the range; empty where there is no bound.

    Raises Invalid when a number is given for a table whose rows are not numbered.
    """
    return _bound(table, "rangeFrom", range_from), _bound(table, "rangeTo", range_to)


def _bound(table: TableInfo, option: str, given: int | bytes | None) -> bytes:
    if given is None or isinstance(given, bytes):
        return given or b""
    if table.handle_kind is HandleKind.COMMON:
        raise Invalid(
            f"option {option}: rows of {table.name} are in the order of their encoded key; give it as 0x..."
        )
    if given not in _INT64:
        raise Invalid(f"option {option} is no handle: it does not fit 64 bits; give a smaller number")
    return encode_handle(given)
