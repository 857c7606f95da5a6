"""Loops over a progress bar, which become loops over what the bar shows, so that no rule has to look through it."""

import ast
import re
from typing import Any, Final

from trueloop.core.source_text import dotted_name

_MENTIONED: Final = re.compile(r"\b(?:tqdm\w*|t(?:n)?range|track|progress_bar)\(")
_DEFINED: Final = re.compile(r"\bdef (?:tqdm|t(?:n)?range|track|progress_bar)\b")
_BAR: Final = re.compile(r"(?:\w+\.)*tqdm(?:_notebook)?|track|progress_bar")
_COUNTING_BAR: Final = re.compile(r"(?:\w+\.)*t(?:n)?range")
_SAME_ITEMS: Final = frozenset(("enumerate", "zip", "list", "tuple", "reversed", "iter", "islice"))


def remove_progress_bars(tree: ast.Module, text: str) -> None:
    """Make ``for x in tqdm(loader, desc=...)`` a loop over ``loader``, and ``trange(n)`` a ``range(n)``.

    The other arguments of the bar remain child nodes of the loop, since the program reads what is in them.
    """
    if not _MENTIONED.search(text) or _DEFINED.search(text):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            settings: list[ast.keyword] = []
            node.iter = _without_bar(node.iter, settings)
            if settings:
                node.__dict__["settings_of_bar"] = settings


def _without_bar(node: ast.expr, settings: list[ast.keyword]) -> ast.expr:
    """Return an iterable without progress bars around it or its parts; their other arguments are added to a list."""
    if not isinstance(node, ast.Call) or not node.args or isinstance(node.args[0], ast.Constant | ast.Starred):
        return _as_range(node, settings)
    name = dotted_name(node.func) or ""
    if name in _SAME_ITEMS:
        node.args = [_without_bar(each, settings) for each in node.args]
    if not _BAR.fullmatch(name):
        return _as_range(node, settings)
    first, *others = node.args
    settings += [ast.keyword("desc", each, **_place(each)) for each in others] + node.keywords
    return _without_bar(first, settings)


def _as_range(node: ast.expr, settings: list[ast.keyword]) -> ast.expr:
    if isinstance(node, ast.Call) and _COUNTING_BAR.fullmatch(dotted_name(node.func) or ""):
        settings += node.keywords
        node.func, node.keywords = ast.Name("range", ast.Load(), **_place(node.func)), []
    return node


def _place(node: ast.expr) -> dict[str, Any]:
    names = ("lineno", "col_offset", "end_lineno", "end_col_offset")
    return {name: getattr(node, name) for name in names}
