"""Add the pages that are generated from source code to `mkdocs build`.

The catalogue's pages are generated from the failure modules, the API reference from the docstrings, and the page of
proofs from the tests that the guides name. No generated page is written into the working tree.
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
    """Add the generated pages to the site and to its navigation."""
    guides = [file.content_string for file in files.documentation_pages()]
    pages = {**failures.pages(), **reference.pages(), **proofs.pages(guides)}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, "code.css", content=_code_css()))
    config.nav = _insert_generated_pages(config.nav or [])
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn every test, failure and public name that a page mentions into a link."""
    path = page.file.src_uri
    if path == "proofs.md":
        return markdown
    return proofs.add_links(failures.add_links(reference.add_links(markdown, path), path), path)


def on_post_build(config: MkDocsConfig) -> None:
    """Convert the search index to a script: pages opened from a folder can load scripts, but cannot fetch files."""
    site = Path(config.site_dir)
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    for entry in entries:
        entry["text"] = re.sub(r"\s#(?=\s)", "", entry["text"])  # the link symbols of headings
    pairs = zip([{"location": "#"}, *entries], entries, strict=False)
    sections = [entry for previous, entry in pairs if _is_new(previous, entry)]
    content = json.dumps(sections, ensure_ascii=False, separators=(",", ":"))
    (site / "search-index.js").write_text(f"window.searchIndex = {content};\n", encoding="utf-8")
    shutil.rmtree(site / "search")


def _is_new(previous: dict[str, Any], entry: dict[str, Any]) -> bool:
    """Return False for a page's first heading, which repeats the page's title."""
    return "#" not in entry["location"] or "#" in previous["location"]


def _insert_generated_pages(nav: list[Any]) -> list[Any]:
    """Replace the names "failures" and "api" in the navigation by the generated pages."""
    generated = {"failures": failures.navigation(), "api": reference.navigation()}
    filled: list[Any] = []
    for item in nav:
        [(title, content)] = item.items()
        if isinstance(content, list):
            filled.append({title: _insert_generated_pages(content)})
        elif content in generated:
            filled.append({title: generated[content]})
        else:
            filled.append(item)
    return filled


def _code_css() -> str:
    """Return the colours of code in the light and the dark theme; the background is that of the page."""
    light, dark = HtmlFormatter(style="default"), HtmlFormatter(style="github-dark")
    dark_rules = dark.get_style_defs(".codehilite")
    blocks = [
        light.get_style_defs(".codehilite"),
        re.sub(r"^\.codehilite", DARK, dark_rules, flags=re.MULTILINE),
        "@media (prefers-color-scheme: dark) {",
        re.sub(r"^\.codehilite", ':root:not([data-theme="light"]) .codehilite', dark_rules, flags=re.MULTILINE),
        "}",
        ".codehilite, .codehilite pre, .codehilite .err { background: none !important; border-color: var(--line); }",
        ".codehilite pre { background: var(--panel) !important; }",
    ]
    lines = "\n".join(blocks).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("pre ", "td.", "span.")))


__all__ = ["on_files", "on_page_markdown", "on_post_build"]
