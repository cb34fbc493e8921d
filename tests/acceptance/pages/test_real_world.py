"""The pages over a real database, capture, job and API: what was written is seen, found and verified."""

from pathlib import Path

from playwright.sync_api import expect

from support.apiworld import TOKENS, api_world, blocking
from support.pagedata import HOSTILE

PRODUCTS = "shop.products"
WORDS = "shop.products/words"


def test_a_shop_is_followed_from_its_rows_to_its_index(tmp_path: Path, open_page, shoot) -> None:
    accounts = {"accounts": {"root": {"token": TOKENS["root"], "admin": True}}}
    with api_world(tmp_path, accounts) as api:
        world = api.world
        columns = [("id", "bigint primary key"), ("name", "varchar(200)"), ("price", "int")]
        api.run(world.create(PRODUCTS, columns))
        rows = [{"id": (1 << 53) + each, "name": f"Kettle {each}", "price": each} for each in range(1, 60)]
        api.run(world.insert(PRODUCTS, *rows, {"id": 1, "name": f"{HOSTILE} kettle", "price": 0}))
        api.run(world.upsert(PRODUCTS, {"id": (1 << 53) + 1, "name": "Copper kettle", "price": 7}))
        done = api.run(world.delete(PRODUCTS, (1 << 53) + 2))
        api.run(world.readable(PRODUCTS, done))
        options = {"uri": str(tmp_path / "index"), "text_columns": "name"}
        api.run(world.register(WORDS, consumer="fulltext", options=options))
        with blocking(world.running()):
            api.run(world.caught_up(WORDS, done))
            with open_page(api.url, expected="401") as page:
                page.get_by_label("Token").fill(TOKENS["root"])
                page.keyboard.press("Enter")
                expect(page.locator("#account")).to_have_text("root (admin)")
                expect(page.get_by_role("img", name="1 job")).to_be_visible()
                shoot(page, "real-overview")

                page.get_by_role("link", name="Jobs").click()
                page.get_by_role("button", name=f"Verify {WORDS}").click()
                expect(page.locator(".verdict")).to_contain_text("59 rows")
                page.get_by_role("button", name=f"Pause {WORDS}").click()
                page.get_by_role("button", name=f"Resume {WORDS}").click()
                expect(page.get_by_role("button", name=f"Pause {WORDS}")).to_be_visible()
                page.get_by_role("link", name=WORDS).click()
                expect(page.locator("main")).to_contain_text("Coverage")
                shoot(page, "real-job")

                page.get_by_role("link", name="Search").click()
                page.get_by_label("Words", exact=True).fill("copper")
                page.keyboard.press("Enter")
                expect(page.locator(".hit")).to_have_count(1)
                expect(page.locator(".hit")).to_contain_text(str((1 << 53) + 1))

                page.get_by_role("link", name="Tables").click()
                page.get_by_role("link", name=PRODUCTS).click()
                page.get_by_role("button", name="Last hour").click()
                changes = page.get_by_role("region", name="List of changes")
                expect(changes.locator("tbody tr")).to_have_count(50)
                expect(changes).to_contain_text(f"{HOSTILE} kettle")
                page.get_by_role("button", name="Next").click()
                expect(changes.locator("tbody tr")).to_have_count(12)
                expect(changes.get_by_role("row").filter(has_text="delete")).to_contain_text(
                    str((1 << 53) + 2)
                )
                shoot(page, "real-table")

                page.get_by_role("link", name="Changefeeds").click()
                expect(page.locator("main")).to_contain_text("There is no changefeed yet.")
