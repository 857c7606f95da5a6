"""A self-contained HTML page in the report's style: no script, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from trueloop.core.html import Markup, element

# Nothing is loaded and nothing runs, whatever a hostile name in a journal says.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, parts: Iterable[Markup]) -> str:
    """Lay parts out below each other; those that are empty are left out."""
    style = files("trueloop.runs").joinpath("report.css").read_text(encoding="utf-8")
    head = element(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        element("title", title),
        element("style", Markup(style)),
    )
    body = element("body", element("main", *(part for part in parts if part)))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"
