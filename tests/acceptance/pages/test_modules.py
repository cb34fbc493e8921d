"""Modules of the pages that decide something by themselves, run where they belong: in a browser."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page

from penstock.clock import compose_ts
from support.pagedata import NOW_MS
from support.pagedouble import page_world


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    with page_world() as world:
        page = browser.new_page()
        page.goto(world.url)
        yield page
        page.close()


def called(page: Page, module: str, work: str, given: Any = None) -> Any:
    """Run a function of the module's exports and an argument."""
    return page.evaluate(
        f"""async (given) => {{
            const found = await import(document.querySelector('script').src.replace('main.js', '{module}'));
            return ({work})(found, given);
        }}""",
        given,
    )


def test_integers_beyond_2_to_the_53rd_keep_every_digit(page: Page) -> None:
    text = (
        r'{"a": 9007199254740993, "b": 12, "c": "9007199254740993 \" 1",'
        r' "d": [-470501802219929601], "e": 0.12345678901234567890, "f": 1e3}'
    )
    found = called(page, "exactjson.js", "(m, text) => m.parseExact(text)", text)
    assert found["a"] == "9007199254740993"
    assert found["b"] == 12
    assert found["c"] == '9007199254740993 " 1'
    assert found["d"] == ["-470501802219929601"]
    assert found["e"] == pytest.approx(0.12345678901234568)
    assert found["f"] == 1000


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("2026-11-16 09:40:00", NOW_MS),
        ("2026-11-16T09:40Z", NOW_MS),
        ("9:40", NOW_MS),
        ("09:39:59.5", NOW_MS - 500),
        ("2026-11-16", NOW_MS - (9 * 60 + 40) * 60_000),
        ("soon", None),
        ("2026-13-16", None),
        ("-5", None),
        ("12", None),
    ],
)
def test_a_time_that_somebody_writes_is_a_timestamp_or_nothing(
    page: Page, written: str, ms: int | None
) -> None:
    found = called(page, "format.js", "(m, [text, now]) => m.parsedTs(text, now)", [written, NOW_MS])
    assert found == (None if ms is None else str(compose_ts(ms)))


def test_a_timestamp_is_taken_as_it_is_written(page: Page) -> None:
    ts = str(compose_ts(NOW_MS, 7))
    assert called(page, "format.js", "(m, text) => m.parsedTs(text, 0)", ts) == ts
    assert called(page, "format.js", "(m, text) => m.timeOf(text)", ts) == "2026-11-16 09:40:00.000"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0.00 s"),
        (0.418, "0.42 s"),
        (3.21, "3.2 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (3599.7, "1 h 0 min"),
        (90_061, "1 d 1 h"),
        (None, "–"),  # noqa: RUF001 - it is what the pages show for what is not known
    ],
)
def test_durations_are_short_and_never_of_60_seconds(page: Page, seconds: float | None, shown: str) -> None:
    assert called(page, "format.js", "(m, s) => m.duration(s)", seconds) == shown


def test_routes_hold_any_name(page: Page) -> None:
    names = ["shop.a/b?c#d%e", "é <i>"]
    work = "(m, names) => m.parseRoute(m.routeTo('jobs', names, {q: 'a&b', none: null}))"
    assert called(page, "router.js", work, names) == {"view": "jobs", "names": names, "query": {"q": "a&b"}}
    assert called(page, "router.js", "(m) => m.parseRoute('')")["view"] == "overview"
    assert called(page, "router.js", "(m) => m.parseRoute('#/tables/50%')")["names"] == ["50%"]


def test_what_is_drawn_anew_keeps_the_elements_that_stay(page: Page) -> None:
    kept = called(
        page,
        "dom.js",
        """({ el, patch }) => {
            const home = document.createElement('ul');
            document.body.append(home);
            const item = (key) => el('li', { 'data-key': key }, el('button', {}, key));
            patch(home, ['a', 'b', 'c'].map(item));
            const b = home.children[1];
            b.firstChild.focus();
            patch(home, ['b', 'd', 'c', 'a'].map(item));
            const order = [...home.children].map((each) => each.textContent).join('');
            const same = home.children[0] === b && document.activeElement === b.firstChild;
            patch(home, []);
            const left = home.childNodes.length;
            home.remove();
            return { order, same, left };
        }""",
    )
    assert kept == {"order": "bdca", "same": True, "left": 0}


def test_an_element_takes_no_code_and_no_style(page: Page) -> None:
    for name in ("onclick", "style"):
        with pytest.raises(Error, match=f"no attribute {name} here"):
            called(page, "dom.js", "({ el }, name) => el('p', { [name]: 'x' })", name)
