"""Builds the documentation site: `python -m tools.site [FOLDER]`, or `make docs`. Pages keep their places relative to
each other: one link serves the repository and the site. Files of the source that pages point to are copied along."""

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "RESULTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "results/studies")


def gather(into: Path) -> None:
    into.mkdir(parents=True)
    shutil.copyfile(Path(__file__).with_name("site.css"), into / "site.css")
    for name in PAGES:
        place = into / name
        place.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile)(ROOT / name, place)
    for page in sorted(into.rglob("*.md")):
        for target in links(page):
            source = (ROOT / page.relative_to(into).parent / target).resolve()
            place = into / source.relative_to(ROOT)
            if source.is_file() and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, place)


def links(page: Path) -> Iterator[str]:
    """The relative targets of a page's links and pictures, without anchors; code is no link."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", text):
        path = (target[0] or target[1]).partition("#")[0]
        if path and ":" not in path:
            yield path


def build(out: Path) -> None:
    from mkdocs.commands.build import build as make
    from mkdocs.config import load_config

    with tempfile.TemporaryDirectory() as folder:
        gather(Path(folder, "pages"))
        config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=f"{folder}/pages", site_dir=str(out), strict=True)
        make(config)
    _search_here(out)


def _search_here(out: Path) -> None:
    """The theme's search takes what it needs on a disk from another host: it gets ours."""
    shutil.copyfile(Path(__file__).with_name("site_search.js"), out / "search" / "worker.js")
    (out / "404.html").unlink(missing_ok=True)  # for a server, and for one at the root of a host
    for page in out.rglob("*.html"):
        above = "../" * (len(page.relative_to(out).parts) - 1)
        text = page.read_text(encoding="utf-8")
        page.write_text(
            re.sub(r'src="https://[^"]*iframe-worker[^"]*"', f'src="{above}search/worker.js"', text), "utf-8"
        )


if __name__ == "__main__":
    where = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site").resolve()
    build(where)
    print(f"wrote {where / 'index.html'}")
