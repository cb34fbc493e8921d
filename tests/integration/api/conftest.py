"""A world for the tests of each file of the API: databases of two tenants, and one of nobody's."""

from collections.abc import Iterator

import pytest

from support.apiworld import TOKENS, ApiWorld, api_world

COLUMNS = [("id", "bigint primary key"), ("name", "varchar(64)"), ("price", "decimal(10,2)")]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    folder = tmp_path_factory.mktemp("api")
    accounts = {
        "root": {"token": TOKENS["root"], "admin": True},
        "ann": {"token": TOKENS["ann"], "targets": [f"file://{folder}/ann"]},
        "bob": {"token": TOKENS["bob"], "targets": [f"file://{folder}/bob"]},
    }
    with api_world(folder, {"accounts": accounts, "requests_burst": 100_000}) as made:
        db = made.world.db
        for account in ("ann", "bob"):
            db.create_account(account)
            db.create_database(f"of_{account}", account=account)
            db.create_table(f"of_{account}.items", COLUMNS)
        db.create_database("shop")
        db.create_table("shop.items", COLUMNS)
        yield made
