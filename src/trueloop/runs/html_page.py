"""Render a self-contained HTML page in the style of the report: no script, no external resources."""

from collections.abc import Iterable
from importlib.resources import files

from trueloop.core.html import Markup, element

# A hostile name in a journal can neither load nor run anything.
CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_page(title: str, parts: Iterable[Markup]) -> str:
    """Render the non-empty parts below each other."""
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
