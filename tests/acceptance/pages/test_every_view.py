"""Every view, as people see it: at a desk and on a phone, in light and dark, with and without trouble."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from support.pagedouble import PageWorld

CHECKS = (Path(__file__).parent / "checks.js").read_text(encoding="utf-8").rstrip(";\n")
VIEWS = {
    "overview": ("#/overview", "Lag by stage"),
    "changefeeds": ("#/changefeeds", "lake"),
    "changefeed": ("#/changefeeds/lake", "secret-access-key=***"),
    "jobs": ("#/jobs", "shop.products/fulltext"),
    "job": ("#/jobs/shop.products/fulltext", "99.80 %"),
    "tables": ("#/tables", "shop.orders"),
    "table": ("#/tables/shop.orders?to=470501802219929600", "Kettle 3"),
    "search": ("#/search?index=shop.products%2Ffulltext&q=kettle", "Copper kettle"),
}


def looked_at(page: Page) -> None:
    assert page.evaluate(CHECKS) == []


@pytest.mark.parametrize("size", ["desk", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_can_be_read_and_is_well_formed(world: PageWorld, open_page, shoot, size, scheme) -> None:
    world.troubled = scheme == "dark"  # one look at each, in half the time
    with open_page(world.url, size=size, scheme=scheme) as page:
        for name, (route, text) in VIEWS.items():
            page.evaluate("(route) => { location.hash = route; }", route)
            expect(page.locator("main")).to_contain_text(text)
            expect(page.locator("#link-text")).to_have_text("Live")
            looked_at(page)
            shoot(page, f"{name}-{size}-{scheme}")


def test_the_overview_says_who_works_on_rows(world: PageWorld, open_page) -> None:
    with open_page(f"{world.url}/#/overview") as page:
        expect(page.locator("main")).to_contain_text(
            "Rows are worked on by Spark. So far: 1,234,567 rows on Spark, 0 rows local."
        )
        world.troubled = True
        page.reload()
        expect(page.locator("main")).to_contain_text(
            "by the services themselves (engine: local). So far: 0 rows on Spark, 4,800 rows local."
        )


def test_the_menu_leads_to_every_view_and_says_where_one_is(world: PageWorld, open_page) -> None:
    with open_page(world.url) as page:
        for name in ("Changefeeds", "Jobs", "Tables", "Search", "Overview"):
            page.get_by_role("navigation").get_by_role("link", name=name).click()
            expect(page.get_by_role("heading", level=1)).to_have_text(name)
            expect(page).to_have_title(f"{name} · Penstock")
            expect(page.locator("nav [aria-current]")).to_have_text(name)


def test_views_of_nothing_say_how_to_begin(world: PageWorld, open_page, shoot) -> None:
    world.empty = True
    with open_page(world.url, size="phone") as page:
        expect(page.locator("main")).to_contain_text("penstock up")
        shoot(page, "overview-of-nothing")
        for route, text in {
            "changefeeds": "penstock changefeed create",
            "jobs": "penstock job register",
            "tables": "There is no table yet",
            "search": "There is no index yet",
        }.items():
            page.evaluate("(route) => { location.hash = route; }", f"#/{route}")
            expect(page.locator("main")).to_contain_text(text)
            looked_at(page)


def test_an_address_that_names_nothing_says_so(world: PageWorld, open_page) -> None:
    expected = "404"  # Chromium says of itself what was not found
    with open_page(f"{world.url}/#/nothing/at/all", expected=expected) as page:
        expect(page.locator("main")).to_contain_text("There is no such page")
        page.evaluate("() => { location.hash = '#/tables/shop.nothing'; }")
        expect(page.get_by_role("alert").last).to_have_text("There is no table shop.nothing.")


def test_the_flow_says_which_part_holds_changes_back(world: PageWorld, open_page) -> None:
    with open_page(world.url) as page:
        expect(page.locator(".headline")).to_contain_text("Everything runs")
        drawing = page.get_by_role("img", name="Changes flow from the database")
        expect(drawing.locator(".water").first).to_be_attached()
        assert drawing.locator("[data-tone=warn], .node[data-tone=bad]").count() == 0
        world.troubled = True
        expect(page.locator(".headline")).to_contain_text("3 problems")
        expect(drawing.locator(".node[data-tone=warn]")).to_have_count(1)
        stage = page.locator(".stage", has_text="Commit")
        expect(stage).to_contain_text(
            "Held back by lock 454418923520000001: a transaction that began 41 s ago"
        )
        page.locator(".stage", has_text="Changefeeds").get_by_role("link", name="lake").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("lake")


def test_a_table_that_cannot_be_captured_says_why_in_the_list_and_on_its_page(
    world: PageWorld, open_page
) -> None:
    world.troubled = True
    why = "column shape: type 200 is unknown; upgrade Penstock to read this table"
    with open_page(f"{world.url}/#/tables") as page:
        listed = page.get_by_role("row", name="staging.shapes")
        expect(listed.locator(".badge")).to_have_text("cannot be captured")
        expect(page.locator("main")).to_contain_text(f": {why}")
        page.get_by_role("link", name="staging.shapes").click()
        expect(page.locator(".notice.error")).to_contain_text("Not captured since")
        expect(page.locator(".notice.error")).to_contain_text(why)
        looked_at(page)


def test_a_changefeed_that_goes_on_without_a_table_says_which_and_why(world: PageWorld, open_page) -> None:
    world.troubled = True
    with open_page(f"{world.url}/#/changefeeds") as page:
        expect(page.locator("main")).to_contain_text("it goes on without table staging.shapes")
        page.get_by_role("link", name="lake").click()
        expect(page.locator(".badge").first).to_have_text("warning")
        expect(page.locator(".notice.error")).to_contain_text("cannot be captured: type 200 is unknown")
        looked_at(page)


def test_a_spool_is_shown_against_its_marks(world: PageWorld, open_page) -> None:
    world.troubled = True
    with open_page(world.url) as page:
        bar = page.get_by_role("img", name="Spool of lake: 86 % full; low mark 60 %, high mark 80 %")
        expect(bar.locator(".fill")).to_have_attribute("data-tone", "bad")
        expect(bar.locator(".mark")).to_have_count(2)
        left = [mark.get_attribute("x1") for mark in bar.locator(".mark").all()]
        assert left == ["60.0%", "80.0%"]
        expect(page.locator("main")).to_contain_text("above the high mark: reading is stopped")
