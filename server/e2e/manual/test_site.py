"""The search of the site that `make manual` makes, in Chromium: users find what they search for."""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

TOP = Path(__file__).parents[3]
SEARCHES = [
    line.strip().rsplit(": ", 1)
    for line in (TOP / "server/manual/testdata/searches.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=TOP / "bin/manual")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def page(site: str) -> Iterator[Page]:
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(site + "/index.html")
        page.wait_for_load_state("networkidle")
        yield page
        browser.close()
        assert not [url for url in asked if not url.startswith(site) and not url.startswith("blob:")]


@pytest.mark.parametrize(("query", "want"), SEARCHES)
def test_search(page: Page, query: str, want: str) -> None:
    page.fill("input.md-search__input", query)
    page.press("input.md-search__input", "End")  # it searches when a key is released
    page.wait_for_function(
        """want => { const first = document.querySelector('.md-search-result__link');
        return first && first.pathname === '/' + want + '.html'; }""",
        arg=want,
        timeout=20000,
    )
