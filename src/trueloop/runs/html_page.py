"""Render a self-contained HTML page in the style of the report, without scripts and external resources."""

from collections.abc import Iterable
from importlib.resources import files

from trueloop.core.html import Markup, element

# The browser loads no resource and runs no script, even if a journal contains a hostile name.
CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_page(title: str, parts: Iterable[Markup]) -> str:
    """Render a page of the non-empty parts."""
    style = files("trueloop.runs").joinpath("report.css").read_text(encoding="utf-8")
    head = element(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        element("title", title),
        element("style", Markup(style)),
    )
    body = element("body", element("main", *(part for part in parts if part)))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"
