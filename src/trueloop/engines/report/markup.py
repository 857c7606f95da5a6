"""HTML put together safely: what is not already markup is text, and is escaped."""

from __future__ import annotations

from html import escape

from trueloop.engines.report.quantities import printable


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
    return Markup(f"<{tag}{named}>{''.join(map(_safe, children))}</{tag}>")


def section(title: str, *children: object) -> Markup:
    """Build a titled part of the page."""
    return element("section", element("h2", title), *children)


def _safe(child: object) -> str:
    return child if isinstance(child, Markup) else escape(printable(str(child)))
