"""Which tables a directory leads to, and which of their columns are which."""

from itertools import count

import pytest

from penstock.changefeeds.directory.reader import Ddl, TableVersion
from penstock.tables.ddl_jobs import DdlAction
from penstock.tables.define import define_table
from penstock.verify.lineage import Lineages

A = ("id", "name")


class Story:
    """Schema files, one after the other."""

    def __init__(self, *, snapshot: bool = False) -> None:
        self.lineages = Lineages(snapshot=snapshot)
        self._ts = count(100, 10)

    def ddl(
        self,
        action: int,
        name: str,
        columns: tuple[str, ...] = A,
        *,
        query: str = "...",
        was: str = "",
        at: int = 0,
    ) -> int:
        database, _, table = name.partition(".")
        shape = define_table(table or "none", [(each, "bigint") for each in columns], primary_key=columns[:1])
        version = at or next(self._ts)
        renamed = (database, was.partition(".")[2]) if was else None
        self.lineages.learn(Ddl(database, shape if table else None, version, action, query, renamed))
        return version

    def described(self, name: str, columns: tuple[str, ...] = A) -> int:
        """A file that only says which columns a table has."""
        return self.ddl(0, name, columns, query="")

    def sources(self, name: str, version: int) -> dict[str, str | None]:
        """What each column of the last version was called in another one; None: it was not there."""
        at = self.lineages.at(TableVersion(name, version))
        assert at is not None
        lineage, then = at
        assert lineage.columns is not None
        names = {column.id: column.name for column in then.columns}
        return {column.name: names.get(column.id) for column in lineage.columns.columns}

    @property
    def there(self) -> dict[str, bool]:
        """The tables at the end, and whether the directory has all of their rows."""
        return {each.name: each.whole for each in self.lineages}


def test_tables_that_were_there_before_are_not_whole_without_a_snapshot() -> None:
    for snapshot in (False, True):
        story = Story(snapshot=snapshot)
        story.described("shop.old")
        story.ddl(DdlAction.CREATE_TABLE, "shop.new")
        assert story.there == {"shop.old": snapshot, "shop.new": True}


def test_a_truncated_table_is_another_one_and_whole() -> None:
    story = Story()
    first = story.described("shop.a")
    second = story.ddl(DdlAction.TRUNCATE_TABLE, "shop.a")
    old, new = (story.lineages.at(TableVersion("shop.a", each)) for each in (first, second))
    assert old is not None
    assert new is not None
    assert old[0] is not new[0]
    assert story.there == {"shop.a": True}


def test_tables_end_when_they_or_their_databases_are_dropped() -> None:
    story = Story()
    for name in ("shop.a", "shop.b", "shop2.c"):
        story.ddl(DdlAction.CREATE_TABLE, name)
    story.ddl(DdlAction.DROP_TABLE, "shop2.c")
    story.ddl(DdlAction.CREATE_TABLE, "shop2.d")
    story.ddl(DdlAction.DROP_SCHEMA, "shop")
    assert story.there == {"shop2.d": True}


def test_a_table_keeps_its_rows_with_another_name_and_is_gone_when_that_is_not_carried() -> None:
    story = Story()
    version = story.ddl(DdlAction.CREATE_TABLE, "shop.a")
    story.ddl(DdlAction.RENAME_TABLE, "shop.b", was="shop.a")
    assert story.there == {"shop.b": True}
    assert story.sources("shop.a", version) == {"id": "id", "name": "name"}
    story.ddl(DdlAction.RENAME_TABLE, "shop.b")  # its file has the name that it had
    assert story.there == {}


def test_a_table_that_gets_a_name_that_is_carried_has_no_beginning() -> None:
    story = Story(snapshot=True)
    story.ddl(DdlAction.RENAME_TABLE, "shop.b", was="shop.elsewhere")
    assert story.there == {"shop.b": False}


def test_columns_are_followed_through_additions_drops_and_new_names() -> None:
    story = Story()
    first = story.ddl(DdlAction.CREATE_TABLE, "shop.a", ("id", "name", "price"))
    second = story.ddl(DdlAction.ADD_COLUMN, "shop.a", ("id", "name", "price", "tag"))
    third = story.ddl(DdlAction.MODIFY_COLUMN, "shop.a", ("id", "title", "price", "tag"))
    assert story.sources("shop.a", first) == {"id": "id", "title": "name", "price": "price", "tag": None}
    assert story.sources("shop.a", second) == {"id": "id", "title": "name", "price": "price", "tag": "tag"}
    story.ddl(DdlAction.DROP_COLUMN, "shop.a", ("id", "title", "tag"))
    story.ddl(DdlAction.ADD_COLUMN, "shop.a", ("id", "title", "tag", "price"))
    assert story.sources("shop.a", third)["price"] is None, "one of the same name is another one"


def test_rows_that_went_with_a_partition_are_known_to_be_unknown() -> None:
    story = Story()
    story.ddl(DdlAction.CREATE_TABLE, "shop.a")
    story.ddl(20, "shop.a")
    (lineage,) = story.lineages
    assert lineage.loses_rows


@pytest.mark.parametrize("partitioned_first", [True, False])
def test_an_exchange_takes_rows_of_both_tables_though_one_file_has_the_statement(
    partitioned_first: bool,
) -> None:
    story = Story()
    for name in ("shop.parts", "shop.whole", "shop.other"):
        story.ddl(DdlAction.CREATE_TABLE, name)
    files = [(42, "shop.parts", "ALTER ..."), (0, "shop.whole", "")]
    for action, name, query in files if partitioned_first else reversed(files):
        story.ddl(action, name, query=query, at=1000)
    story.described("shop.other")
    lost = {each.name: each.loses_rows for each in story.lineages}
    assert lost == {"shop.parts": True, "shop.whole": True, "shop.other": False}
