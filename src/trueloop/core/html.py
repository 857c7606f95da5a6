"""HTML put together safely: what is not already markup is text, and is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from trueloop.core.formatting import printable


class Markup(str):
    """HTML that stays as it is."""

    __slots__ = ()


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """Build one element; children that are not `Markup` become escaped text.

    Args:
        tag: the element's name.
        children: anything; shown as its str().
        attributes: by name, with "_" for "-" and a trailing "_" for a Python keyword (``class_``).
    """
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(printable(str(value)))}"' for name, value in attributes.items()
    )
    return Markup(f"<{tag}{named}>{''.join(map(_escape, children))}</{tag}>")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], **attributes: object) -> Markup:
    """Build a table that scrolls sideways on its own where the page is too narrow for it."""
    titles = element("tr", *(element("th", title, scope="col") for title in head))
    body = (element("tr", *(element("td", each) for each in row)) for row in rows)
    inner = element("table", element("thead", titles), element("tbody", *body), **attributes)
    return element("div", inner, class_="scroll", tabindex="0")


def section(title: str, *children: object) -> Markup:
    """Build a titled part of the page."""
    return element("section", element("h2", title), *children)


def _escape(child: object) -> str:
    return child if isinstance(child, Markup) else escape(printable(str(child)))
