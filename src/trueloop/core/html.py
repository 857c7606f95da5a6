"""Build HTML safely: everything that is not `Markup` is escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from trueloop.core.formatting import replace_unprintable


class Markup(str):
    """HTML that is not escaped again."""

    __slots__ = ()


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """Build one element; children that are not `Markup` become escaped text.

    Args:
        tag: name of the element.
        children: any objects; rendered with str().
        attributes: attributes by name, with "_" for "-" and a trailing "_" for a Python keyword (``class_``).
    """
    attribute_text = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(replace_unprintable(str(value)))}"'
        for name, value in attributes.items()
    )
    return Markup(f"<{tag}{attribute_text}>{''.join(map(_escape, children))}</{tag}>")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], **attributes: object) -> Markup:
    """Build a table that scrolls sideways if the page is too narrow."""
    titles = element("tr", *(element("th", title, scope="col") for title in head))
    body = (element("tr", *(element("td", cell) for cell in row)) for row in rows)
    inner = element("table", element("thead", titles), element("tbody", *body), **attributes)
    return element("div", inner, class_="scroll", tabindex="0")


def section(title: str, *children: object) -> Markup:
    """Build a section with a heading."""
    return element("section", element("h2", title), *children)


CONTENT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""Policy under which a browser loads nothing and runs no script, even if a name in the page contains HTML."""


def render_document(title: str, style: str, *children: object) -> str:
    """Render a self-contained HTML page under `CONTENT_POLICY`.

    Args:
        title: title of the page.
        style: CSS of the page.
        children: content of the page.
    """
    head = element(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY}">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        element("title", title),
        element("style", Markup(style)),
    )
    body = element("body", element("main", *children))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _escape(child: object) -> str:
    return child if isinstance(child, Markup) else escape(replace_unprintable(str(child)))
