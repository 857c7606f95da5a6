"""Adds the pages that are generated from the source to `mkdocs build`.

The catalogue's pages come from its files, the API reference from the docstrings, the proofs from the tests that the
guides name. Nothing of this is written into the working tree.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, Final

import proofs
import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments.formatters import HtmlFormatter

import failures

DARK: Final = ':root[data-theme="dark"] .codehilite'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and their places in the navigation."""
    guides = [file.content_string for file in files.documentation_pages()]
    pages = {**failures.pages(), **reference.pages(), **proofs.pages(guides)}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, "code.css", content=_code_css()))
    config.nav = _filled(config.nav or [])
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let every test, failure and public name that a page mentions lead to its own page."""
    path = page.file.src_uri
    if path == "proofs.md":
        return markdown
    return proofs.linked(failures.linked(reference.linked(markdown, path), path), path)


def on_post_build(config: MkDocsConfig) -> None:
    """Turn the index of the search into a script: one can be loaded from a folder, where nothing can be fetched."""
    site = Path(config.site_dir)
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    for entry in entries:
        entry["text"] = re.sub(r"\s#(?=\s)", "", entry["text"])  # the links of headings
    pairs = zip([{"location": "#"}, *entries], entries, strict=False)
    whole = [entry for before, entry in pairs if _is_new(before, entry)]
    content = json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
    (site / "search-index.js").write_text(f"window.searchIndex = {content};\n", encoding="utf-8")
    shutil.rmtree(site / "search")


def _is_new(before: dict[str, Any], entry: dict[str, Any]) -> bool:
    """Return False for a page's first heading, which is the page's own title again."""
    return "#" not in entry["location"] or "#" in before["location"]


def _filled(nav: list[Any]) -> list[Any]:
    """Put the generated pages where the navigation has their names: "failures", "api"."""
    written = {"failures": failures.navigation(), "api": reference.navigation()}
    filled: list[Any] = []
    for item in nav:
        [(title, inside)] = item.items()
        if isinstance(inside, list):
            filled.append({title: _filled(inside)})
        elif inside in written:
            filled.append({title: written[inside]})
        else:
            filled.append(item)
    return filled


def _code_css() -> str:
    """Return the colours of code, by day and by night; the background is the page's."""
    light, dark = HtmlFormatter(style="default"), HtmlFormatter(style="github-dark")
    night = dark.get_style_defs(".codehilite")
    blocks = [
        light.get_style_defs(".codehilite"),
        re.sub(r"^\.codehilite", DARK, night, flags=re.MULTILINE),
        "@media (prefers-color-scheme: dark) {",
        re.sub(r"^\.codehilite", ':root:not([data-theme="light"]) .codehilite', night, flags=re.MULTILINE),
        "}",
        ".codehilite, .codehilite pre, .codehilite .err { background: none !important; border-color: var(--line); }",
        ".codehilite pre { background: var(--panel) !important; }",
    ]
    lines = "\n".join(blocks).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("pre ", "td.", "span.")))


__all__ = ["on_files", "on_page_markdown", "on_post_build"]
