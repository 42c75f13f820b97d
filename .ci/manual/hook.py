"""The site's navigation, search words and outside links, from the pages as the programs have them."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

TOP = Path(__file__).parents[2]
SOURCES = "https://github.com/shivad/shivad/blob/main/"
"""Where the files lie that pages refer to. As a repo_url the site would ask its host for stars."""

PART = re.compile(r"^## (.+)$|^- \[([^\]]+)\]\(([a-z0-9-]+\.md)\)", re.MULTILINE)
WORDS = re.compile(r"<!--\s+words:\s+(.*?)\s+-->\n*", re.DOTALL)
LINK = re.compile(r"(\]\()(\.\./[^)\s#]*)")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def slug(heading: str, separator: str) -> str:
    """The anchor of a heading, as GitHub and the programs form it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", separator)


def on_config(config: Any) -> Any:
    config.mdx_configs["toc"]["slugify"] = slug
    config.nav = [{"shivad": "README.md"}]
    contents = (Path(config.docs_dir) / "README.md").read_text()
    pages: list[Any] = config.nav
    for part, title, file in PART.findall(contents):
        if part:
            pages = []
            config.nav.append({part: pages})
        else:
            pages.append({title: file})
    return config


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    if found := WORDS.search(text):
        tags = [" ".join(word.split()) for word in found[1].split(",")]
        page.meta["tags"] = tags
        if any(len(part) == 1 and part != "a" for tag in tags for part in tag.split()):
            # The search completes each word of a query, so that "c" also finds "chain" and "crop".
            page.meta["search"] = {"boost": 2}
        text = text.replace(found[0], "", 1)

    def outside(link: re.Match[str]) -> str:
        file = posixpath.normpath(posixpath.join("server/manual", link[2]))
        if not (TOP / file).exists():
            return link[0]  # mkdocs reports it
        return f"{link[1]}{SOURCES}{file}"

    parts = FENCE.split(text)
    parts[::2] = [LINK.sub(outside, prose) for prose in parts[::2]]
    return "".join(parts)
