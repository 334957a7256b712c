"""No dead link: on the pages as they lie in the repository, and on the site that is made of them."""

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support import ROOT, browser
from tools import site

PAGES = [
    path
    for name in site.PAGES
    for path in ([ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*.md")))
]


def test_there_are_pages_and_they_point_to_each_other() -> None:
    assert len(PAGES) > 30 and sum(len(list(site.links(page))) for page in PAGES) > 100


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_points_to_is_there(page: Path) -> None:
    for target in site.links(page):
        assert (page.parent / target).exists(), target
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for path, anchor in re.findall(r"\]\(([^)\s#:]*)#([^)\s]+)\)", text):
        assert anchor in anchors((page.parent / path) if path else page), f"{path}#{anchor}"


def anchors(page: Path) -> set[str]:
    """As GitHub and MkDocs name headings alike: lower case, words with - between."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    names = [re.sub(r"[^\w\s-]", "", head.lower()).strip() for head in re.findall(r"^#+ (.+)$", text, flags=re.M)]
    return {re.sub(r"\s+", "-", name) for name in names}


class Read(HTMLParser):
    """What a page of the site loads and links to, and the names it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.names |= {given["id"]} if "id" in given else set()
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("script", "img") and "src" in given:
            self.loads.append(given["src"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon"):
            self.loads.append(given["href"])


def test_the_site_is_whole_and_needs_no_other_host(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="no MkDocs here (make docs installs it)")
    site.build(tmp_path)  # strict: what MkDocs warns of fails
    pages = {path: Read(path) for path in tmp_path.rglob("*.html")}
    assert len(pages) > 30 and (tmp_path / "index.html").is_file()
    assert (tmp_path / "search" / "search_index.js").is_file()  # which a page opened from a disk can load
    dead: Counter[str] = Counter()
    for path, read in pages.items():
        for load in read.loads:
            assert load.startswith("data:") or (path.parent / unquote(urlsplit(load).path)).is_file(), (path, load)
        for link in read.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists() or (
                parts.fragment and target in pages and not _named(pages[target], parts.fragment)
            ):
                dead[f"{path.relative_to(tmp_path)} -> {link}"] += 1
    assert not dead


def test_its_search_finds_words_without_a_server(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="no MkDocs here (make docs installs it)")
    if reason := browser.missing():
        pytest.skip(reason)
    from playwright.sync_api import expect

    site.build(tmp_path)
    with browser.launched() as chromium:
        page = chromium.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "docs" / "solvers.html").as_uri())
        page.locator("input.md-search__input").press_sequentially("agresti")  # stands on two of the pages
        found = page.locator(".md-search-result__item", has_text="Comparing two runs")
        expect(found).to_have_count(1)
    assert asked and all(url.startswith(("file:", "data:", "blob:")) for url in asked)


def _named(page: Read, fragment: str) -> bool:
    return fragment in page.names or fragment in ("__tabbed",)
