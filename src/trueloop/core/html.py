"""Build HTML safely: everything that is not `Markup` is escaped."""

from collections.abc import Iterable, Sequence
from html import escape

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
    body = (element("tr", *(element("td", each) for each in row)) for row in rows)
    inner = element("table", element("thead", titles), element("tbody", *body), **attributes)
    return element("div", inner, class_="scroll", tabindex="0")


def section(title: str, *children: object) -> Markup:
    """Build a section with a heading."""
    return element("section", element("h2", title), *children)


def _escape(child: object) -> str:
    return child if isinstance(child, Markup) else escape(replace_unprintable(str(child)))
