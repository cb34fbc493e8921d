"""What people do on the pages: pause, resume, verify, browse changes, search; with a mouse or without."""

import json

from playwright.sync_api import Page, Route, expect

from penstock.clock import compose_ts
from support.pagedata import HOSTILE, NOW_MS
from support.pagedouble import PageWorld


def deeds(world: PageWorld) -> list[str]:
    return [each for each in world.asked if each.startswith("POST")]


def test_a_changefeed_is_paused_and_goes_on(world: PageWorld, open_page) -> None:
    with open_page(f"{world.url}/#/changefeeds") as page:
        row = page.get_by_role("row", name="lake")
        expect(row).to_contain_text("normal")
        row.get_by_role("button", name="Pause lake").click()
        expect(page.get_by_role("status")).to_contain_text("Changefeed lake is paused.")
        expect(row).to_contain_text("stopped")
        row.get_by_role("button", name="Resume lake").click()
        expect(page.get_by_role("status")).to_contain_text("Changefeed lake is resumed.")
        expect(row).to_contain_text("normal")
    assert deeds(world) == ["POST /api/v1/changefeeds/lake/pause", "POST /api/v1/changefeeds/lake/resume"]


def test_a_job_shows_its_error_with_the_remedy_and_is_verified(world: PageWorld, open_page, shoot) -> None:
    world.troubled = True
    with open_page(f"{world.url}/#/jobs") as page:
        expect(page.locator("main")).to_contain_text(
            "Error 21: the Delta table at s3://lake/orders was changed"
        )
        expect(page.locator("code", has_text="penstock job repair shop.orders/lake").first).to_be_visible()
        page.get_by_role("button", name="Verify shop.products/fulltext").click()
        expect(page.locator(".verdict")).to_have_text(
            "The same as its source at 2026-11-16 09:39:59.100: 12,480 rows."
        )
        page.get_by_role("button", name="Verify shop.orders/lake").click()
        expect(page.locator(".verdict[data-tone=bad]")).to_contain_text("3 missing")
        shoot(page, "jobs-verified")
        page.get_by_role("button", name="Resume shop.orders/lake").click()
        expect(page.get_by_role("row", name="shop.orders/lake").first).to_contain_text("completed")


def test_a_deed_that_is_refused_says_why(world: PageWorld, open_page) -> None:
    with open_page(f"{world.url}/#/changefeeds", expected="409|503") as page:
        expect(page.get_by_role("button", name="Pause lake")).to_be_visible()
        refusal = {"status": 409, "title": "Conflict", "detail": "changefeed lake is being removed"}
        page.route("**/pause", lambda route: route.fulfill(status=409, body=json.dumps(refusal)))
        page.get_by_role("button", name="Pause lake").click()
        expect(page.get_by_role("status")).to_have_text("Changefeed lake is being removed.")
        page.route("**/pause", lambda route: route.fulfill(status=503, body="{}"))
        page.get_by_role("button", name="Pause lake").click()
        expect(page.get_by_role("status")).to_contain_text("The request failed: the API is not available")
        expect(page.get_by_role("button", name="Pause lake")).to_be_enabled()


def test_changes_are_browsed_page_by_page_with_every_digit(world: PageWorld, open_page, shoot) -> None:
    with open_page(f"{world.url}/#/tables/shop.orders") as page:
        page.get_by_label("After").fill("09:29")
        page.get_by_role("button", name="Show changes").click()
        changes = page.get_by_role("region", name="List of changes")
        rows = changes.locator("tbody tr")
        expect(rows).to_have_count(50)
        # Beyond 2^53 a number of JavaScript would be another one.
        expect(rows.nth(0)).to_contain_text("9007199254740993")
        expect(rows.nth(3)).to_contain_text("delete")
        expect(page.locator("main")).to_contain_text("page 1.")
        shoot(page, "changes")
        page.get_by_role("button", name="Next").click()
        expect(rows.nth(0)).to_contain_text("9007199254741043")
        page.get_by_role("button", name="Next").click()
        expect(rows).to_have_count(30)
        expect(page.locator("main")).to_contain_text("page 3, the last.")
        expect(page.get_by_role("button", name="Next")).to_be_disabled()
        page.get_by_role("button", name="Previous").click()
        expect(rows.nth(0)).to_contain_text("9007199254741043")
        address = page.url
    assert f"from={compose_ts(NOW_MS - 11 * 60_000)}" in address
    with open_page(address) as page:  # an address shows the same to somebody else
        expect(page.get_by_role("region", name="List of changes").locator("tbody tr")).to_have_count(50)


def test_a_range_that_is_none_is_not_asked_for(world: PageWorld, open_page) -> None:
    with open_page(f"{world.url}/#/tables/shop.orders", expected="410") as page:
        page.get_by_label("After").fill("yesterday")
        page.keyboard.press("Enter")
        expect(page.locator("#from-error")).to_have_text("This is neither a timestamp nor a time.")
        expect(page.get_by_label("After")).to_be_focused()
        page.get_by_label("After").fill("2026-11-16 09:30")
        page.get_by_label("Up to").fill("2026-11-16 09:20")
        page.keyboard.press("Enter")
        expect(page.locator("#to-error")).to_have_text("This is before the start.")
        assert not [each for each in world.asked if "changes" in each]
        page.get_by_label("After").fill("2026-11-15")
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_contain_text("is gone")
        page.get_by_role("button", name="Last 10 minutes").click()
        expect(page.get_by_role("region", name="List of changes").locator("tbody tr")).to_have_count(50)


def test_an_index_is_asked_with_words_and_with_numbers(world: PageWorld, open_page) -> None:
    with open_page(f"{world.url}/#/search", expected="400") as page:
        page.get_by_role("button", name="Search").click()
        expect(page.locator("#q-error")).to_have_text("Enter words to search for.")
        page.get_by_label("Words", exact=True).fill("kettle")
        page.keyboard.press("Enter")
        expect(page.locator(".hit")).to_have_count(3)
        expect(page.get_by_role("region", name="Results")).to_contain_text("0.90 s behind the database")
        page.get_by_label("Index").select_option("shop.products/vectors")
        page.get_by_label("Words", exact=True).fill("[0.1, 0.2, 0.3]")
        page.keyboard.press("Enter")
        expect(page.locator(".hit")).to_have_count(4)
        page.get_by_label("Words", exact=True).fill("[1]")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert").last).to_have_text("The index has vectors of 3 numbers, not 1.")
    assert [each for each in world.asked if "/search/" in each] == [
        "GET /api/v1/search/shop.products/fulltext?q=kettle&k=10",
        "POST /api/v1/search/shop.products/vectors",
        "POST /api/v1/search/shop.products/vectors",
    ]


def test_tables_are_found_by_a_part_of_their_name(world: PageWorld, open_page) -> None:
    with open_page(f"{world.url}/#/tables") as page:
        expect(page.locator("tbody tr")).to_have_count(5)
        page.get_by_label("Filter by name").fill("ORD")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_label("Filter by name").fill("nothing")
        expect(page.get_by_text("No name contains this text.")).to_be_visible()


def test_what_looks_like_markup_is_shown_as_text(world: PageWorld, open_page) -> None:
    with open_page(f"{world.url}/#/tables", expected="404") as page:
        page.get_by_role("link", name=HOSTILE).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"shop.{HOSTILE}")
        expect(page).to_have_title(f"shop.{HOSTILE} · Penstock")
        page.get_by_role("button", name="Last hour").click()
        expect(page.get_by_role("cell", name=HOSTILE).first).to_be_visible()
        expect(page.locator("summary").first).to_contain_text(HOSTILE)
        page.evaluate("() => { location.hash = '#/search?q=kettle'; }")
        expect(page.get_by_text(f"{HOSTILE} kettle", exact=True)).to_be_visible()
        page.evaluate("(name) => { location.hash = `#/changefeeds/${encodeURIComponent(name)}`; }", HOSTILE)
        expect(page.get_by_role("alert").last).to_contain_text(f"There is no changefeed {HOSTILE}")
        assert page.locator("main img").count() == 0


def focused(page: Page) -> dict[str, object]:
    return page.evaluate(
        """() => {
            const element = document.activeElement;
            const box = element.getBoundingClientRect();
            const style = getComputedStyle(element);
            return {
                text: element.ariaLabel ?? (element.labels?.[0] ?? element).textContent.trim(),
                tag: element.tagName,
                seen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
                inside: box.bottom > 0 && box.top < innerHeight,
            };
        }"""
    )


def tab_to(page: Page, text: str) -> None:
    """Press the tab key until something has focus; at each stop one must see where it is."""
    for _ in range(60):
        page.keyboard.press("Tab")
        at = focused(page)
        assert at["tag"] != "BODY", f"the tab key does not lead to {text}"
        assert at["seen"], f"focus on {at['text']} cannot be seen"
        assert at["inside"], f"{at['text']} has focus outside of what is seen"
        if at["text"] == text:
            return
    raise AssertionError(f"the tab key does not lead to {text}")


def test_the_keyboard_alone_is_enough(world: PageWorld, open_page) -> None:
    with open_page(world.url) as page:
        expect(page.locator(".headline")).to_be_visible()
        tab_to(page, "Skip to content")
        page.keyboard.press("Enter")
        assert focused(page)["tag"] == "MAIN"
        page.reload()
        expect(page.locator(".headline")).to_be_visible()
        tab_to(page, "Jobs")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_be_focused()
        expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
        expect(page.get_by_role("button", name="Pause shop.products/fulltext")).to_be_visible()
        tab_to(page, "Pause shop.products/fulltext")
        page.keyboard.press("Space")
        expect(page.get_by_role("button", name="Resume shop.products/fulltext")).to_be_visible()
        page.evaluate("() => { location.hash = '#/search'; }")
        expect(page.get_by_label("Words", exact=True)).to_be_visible()
        tab_to(page, "Words")
        page.keyboard.type("kettle")
        page.keyboard.press("Enter")
        expect(page.locator(".hit")).to_have_count(3)
        expect(page.get_by_label("Words", exact=True)).to_be_focused()


def test_focus_and_what_is_half_written_survive_new_data(world: PageWorld, open_page) -> None:
    with open_page(f"{world.url}/#/tables/shop.orders") as page:
        page.clock.install()
        page.reload()
        page.get_by_label("After").fill("09:3")
        page.locator("summary", has_text="Version 2").click()
        page.locator("summary", has_text="Version 3").click()
        page.get_by_label("After").focus()
        before = len(world.asked)
        world.troubled = True
        page.clock.run_for(6_000)
        expect(page.get_by_role("region", name="Now")).to_contain_text("42 s")
        assert len(world.asked) > before
        expect(page.get_by_label("After")).to_be_focused()
        expect(page.get_by_label("After")).to_have_value("09:3")
        expect(page.get_by_role("table", name="Columns of version 2")).to_be_visible()
        expect(page.get_by_role("table", name="Columns of version 3")).to_be_hidden()


def test_a_comparison_goes_on_when_its_view_is_left(world: PageWorld, open_page) -> None:
    with open_page(f"{world.url}/#/jobs") as page:
        waiting: list[Route] = []

        def held(route: Route) -> None:
            waiting.append(route)

        page.route("**/verify", held)
        page.get_by_role("button", name="Verify shop.products/fulltext").click()
        expect(page.get_by_role("button", name="Verify shop.products/fulltext")).to_be_disabled()
        page.get_by_role("link", name="Tables").click()
        expect(page.get_by_label("Filter by name")).to_be_visible()
        waiting[0].continue_()
        expect(page.get_by_role("status").last).to_contain_text("is the same as its source")
        expect(page.get_by_role("heading", level=1)).to_have_text("Tables")
        page.get_by_role("link", name="Jobs").click()
        expect(page.locator(".verdict")).to_contain_text("The same as its source")
