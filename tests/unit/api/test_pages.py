"""How the pages are served: types, caching, and nothing that is not theirs."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from hatchling.builders.wheel import WheelBuilder

from penstock.api.app import mount_pages
from support.pagedouble import serve_app

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "src" / "penstock" / "api" / "static"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    app = FastAPI(redirect_slashes=False)
    mount_pages(app)
    with serve_app(app) as url, httpx.Client(base_url=url) as client:
        yield client


def linked(page: str) -> list[str]:
    return re.findall(r'(?:href|src)="(/static/[^"]+)"', page)


def test_the_entry_page_is_asked_for_every_time_and_sent_when_it_has_changed(client: httpx.Client) -> None:
    answer = client.get("/")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-cache"
    again = client.get("/", headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/", headers={"If-None-Match": '"of-yesterday"'}).status_code == 200
    assert client.head("/").status_code == 200


def test_what_it_needs_is_kept_for_ever_under_a_name_of_its_content(client: httpx.Client) -> None:
    names = linked(client.get("/").text)
    assert any(name.endswith(".css") for name in names)
    types = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    for name in names:
        answer = client.get(name)
        assert answer.status_code == 200, name
        assert answer.headers["Content-Type"].startswith(types[Path(name).suffix])
        assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"


def test_modules_name_files_that_are_there(client: httpx.Client) -> None:
    folder = next(name for name in linked(client.get("/").text) if name.endswith("main.js")).rpartition(
        "/js/"
    )[0]
    for path in STATIC.rglob("*.js"):
        for wanted in re.findall(r'from "(\.[^"]+)"', path.read_text(encoding="utf-8")):
            found = (path.parent / wanted).resolve().relative_to(STATIC)
            assert client.get(f"{folder}/{found}").status_code == 200, f"{path.name} imports {wanted}"


@pytest.mark.parametrize(
    "path",
    [
        "/static/of-yesterday/js/main.js",
        "/static/{digest}/nothing.js",
        "/static/{digest}/",
        "/static/{digest}/../pages.py",
        "/static/{digest}/%2e%2e/pages.py",
        "/static/{digest}/..%2fpages.py",
        "/static/{digest}//etc/passwd",
    ],
)
def test_nothing_else_is_found(client: httpx.Client, path: str) -> None:
    digest = linked(client.get("/").text)[0].split("/")[2]
    answer = client.get(path.format(digest=digest))
    assert answer.status_code == 404
    assert "immutable" not in answer.headers.get("Cache-Control", "")


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    for path in STATIC.rglob("*"):
        if path.suffix not in {".html", ".css", ".js"}:
            continue
        text = path.read_text(encoding="utf-8")
        elsewhere = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not elsewhere, f"{path.name} names {elsewhere}"
        markup = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        )
        assert not markup, f"{path.name} makes markup or code of text: {markup}"
        if path.suffix == ".html":
            assert not re.search(r"<style|<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=", text)


def test_a_wheel_has_all_of_them() -> None:
    builder = WheelBuilder(str(ROOT))
    packed = {Path(each.distribution_path) for each in builder.recurse_included_files()}
    wanted = {
        Path("penstock/api/static") / path.relative_to(STATIC) for path in STATIC.rglob("*") if path.is_file()
    }
    assert wanted <= packed
