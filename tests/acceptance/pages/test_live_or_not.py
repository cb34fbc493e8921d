"""Numbers that are live, and numbers that are not: the pages say which, and come back by themselves."""

from playwright.sync_api import expect

from support.pagedouble import PageWorld

TOKEN = "a-token-of-the-shop"


def test_a_page_that_is_cut_off_says_so_and_comes_back(world: PageWorld, open_page, shoot) -> None:
    with open_page(world.url, expected="ERR_INTERNET_DISCONNECTED") as page:
        expect(page.locator("#link-text")).to_have_text("Live")
        page.context.set_offline(True)
        banner = page.locator("#away")
        expect(banner).to_contain_text("The API does not answer: it cannot be reached.")
        expect(banner).to_contain_text("The page shows the state of")
        expect(banner).to_have_attribute("role", "alert")
        expect(page.locator("#link-text")).to_contain_text("Away")
        expect(page.locator("body")).to_have_attribute("data-link", "away")
        decoration = page.locator(".headline .number").evaluate(
            "(each) => getComputedStyle(each).textDecorationLine"
        )
        assert decoration == "underline", "numbers that may not hold any more look like those that do"
        shoot(page, "away")
        page.context.set_offline(False)
        expect(page.locator("#link-text")).to_have_text("Live")
        expect(banner).to_be_hidden()


def test_an_api_that_cannot_reach_its_cluster_is_away_with_its_reason(world: PageWorld, open_page) -> None:
    with open_page(world.url, expected="503") as page:
        expect(page.locator(".headline")).to_be_visible()
        world.silent = "the cluster at 127.0.0.1:2379 does not answer"
        expect(page.locator("#away")).to_contain_text(
            "The API cannot answer now: the cluster at 127.0.0.1:2379 does not answer."
        )
        world.silent = ""
        expect(page.locator("#link-text")).to_have_text("Live")


def test_it_asks_less_often_while_nobody_answers(world: PageWorld, open_page) -> None:
    with open_page(world.url, expected="503") as page:
        expect(page.locator("#link-text")).to_have_text("Live")
        waits = page.evaluate(
            """async () => {
                const at = document.querySelector('script').src;
                const { backoffMs } = await import(at.replace('main.js', 'polling.js'));
                return [0, 1, 2, 3, 4, 5, 20].map((failures) => backoffMs(2000, failures, 0));
            }"""
        )
    assert waits == [2000, 4000, 8000, 16000, 30000, 30000, 30000]


def test_a_page_that_slept_does_not_show_old_numbers_as_live(world: PageWorld, open_page) -> None:
    with open_page(world.url) as page:
        page.clock.install()
        page.reload()
        expect(page.locator("#link-text")).to_have_text("Live")
        page.route("**/api/v1/overview", lambda _route: None)  # asked, and never answered
        page.clock.fast_forward(9_000)
        expect(page.locator("body")).to_have_attribute("data-link", "old")
        expect(page.locator("#link-text")).to_contain_text("As of ")


def test_nobody_is_asked_while_nobody_looks(world: PageWorld, open_page) -> None:
    with open_page(world.url) as page:
        page.clock.install()
        page.reload()
        expect(page.locator("#link-text")).to_have_text("Live")
        seen = """(hidden) => {
            Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
            document.dispatchEvent(new Event('visibilitychange'));
        }"""
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.evaluate(seen, True)
        asked.clear()
        page.clock.run_for(60_000)
        assert asked == []
        expect(page.locator("body")).to_have_attribute("data-link", "old")
        page.evaluate(seen, False)
        expect(page.locator("body")).to_have_attribute("data-link", "live")


def test_a_token_is_asked_for_and_kept_by_the_tab(world: PageWorld, open_page, shoot) -> None:
    world.token = TOKEN
    with open_page(f"{world.url}/#/jobs", size="phone", expected="401") as page:
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        expect(page.get_by_label("Token")).to_be_focused()
        shoot(page, "sign-in")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#token-error")).to_have_text("Enter the token of an account.")
        page.get_by_label("Token").fill("another")
        page.keyboard.press("Enter")
        expect(page.locator("#token-error")).to_contain_text("This token is not accepted.")
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")  # where one wanted to go
        expect(page.locator("#account")).to_have_text("shopkeeper")
        assert page.evaluate("() => document.cookie") == ""
        assert page.evaluate("() => localStorage.length") == 0
        page.reload()
        expect(page.locator("main")).to_contain_text("shop.products/fulltext")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        assert page.evaluate("() => sessionStorage.length") == 0


def test_a_sign_in_link_signs_in_and_leaves_no_token_in_the_address(world: PageWorld, open_page) -> None:
    world.token = TOKEN
    with open_page(f"{world.url}/#token={TOKEN}", expected="401") as page:
        expect(page.locator("#account")).to_have_text("shopkeeper")
        assert page.url == f"{world.url}/"
        assert page.evaluate("() => history.length") == 2, "the blank page, and this one"
        page.reload()
        expect(page.locator("#account")).to_have_text("shopkeeper")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        page.evaluate(f"() => {{ location.hash = '#token={TOKEN}'; }}")  # pasted into the open tab
        expect(page.locator("#account")).to_have_text("shopkeeper")
        assert TOKEN not in page.url
        assert TOKEN not in page.content()
    assert not any(TOKEN in asked for asked in world.asked), "the token is in no address that is asked for"


def test_a_token_that_ends_meanwhile_is_asked_for_again(world: PageWorld, open_page) -> None:
    with open_page(world.url, expected="401") as page:
        expect(page.locator("#link-text")).to_have_text("Live")
        world.token = TOKEN
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        expect(page.locator("#link-text")).to_have_text("Signed out")
