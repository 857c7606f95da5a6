"""Writes the API reference from the docstrings: a page for each public name of trueloop, with its public methods."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import os
import re
import textwrap
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Final

from prose import as_markdown, in_cell

import trueloop

INDEX: Final = "api/index.md"
SECTIONS: Final = ("Args", "Returns", "Yields", "Raises", "Example", "Examples", "Note", "Cost", "Source", "Attributes")
LISTED: Final = ("Args", "Raises", "Attributes")
_HEADING: Final = re.compile(rf"^({'|'.join(SECTIONS)}):[ ]*(.*)$")
_ITEM: Final = re.compile(r"^(\*{0,2}[\w.]+(?:, [\w.]+)*): ?(.*)$")
LONG: Final = 88
_NAME: Final = re.compile(r"^```.*?^```$|^ {4}.*?$|^#.*?$|(?<![\w`/\[-])`(?P<name>[\w.]+)`(?![\w\]])", re.M | re.DOTALL)


def names() -> list[str]:
    """Return the public names, classes and functions first."""
    return [name for name in trueloop.__all__ if name != "__version__"]


def pages() -> dict[str, str]:
    """Return every page's text by its path."""
    return {INDEX: _index(), **{f"api/{name}.md": _page(name) for name in names()}}


def navigation() -> list[Any]:
    """Return the pages as `nav` of mkdocs.yml wants them."""
    return [{"All names": INDEX}, *({f"{name}": f"api/{name}.md"} for name in names())]


def linked(markdown: str, page: str) -> str:
    """Let a public name between backquotes, as `Trainer` or `trueloop.watch`, lead to its page."""
    public = set(names())

    def link(match: re.Match[str]) -> str:
        name = match["name"] or ""
        plain = name.startswith("trueloop.") or name[:1].isupper()  # `plan` alone may be anything
        path = f"api/{name.removeprefix('trueloop.')}.md"
        if not plain or name.removeprefix("trueloop.") not in public or path == page:
            return match[0]
        return f"[`{name}`]({os.path.relpath(path, os.path.dirname(page) or '.')})"  # noqa: PTH120

    return _NAME.sub(link, markdown)


def _index() -> str:
    rows = [f"| [`{name}`]({name}.md) | {in_cell(_summary(getattr(trueloop, name)))} |" for name in names()]
    blocks = [
        "# The Python API",
        (
            f"Everything that `import trueloop` offers: {len(trueloop.__all__)} names, `__version__` among them. They "
            "are imported at first use, so that `import trueloop` alone brings no torch. What is not listed here may "
            "change without notice."
        ),
        "\n".join(["| name | what |", "|---|---|", *rows]),
    ]
    return "\n\n".join(blocks) + "\n"


def _page(name: str) -> str:
    thing = getattr(trueloop, name)
    if isinstance(thing, ModuleType):
        public: list[str] = list(thing.__all__)
        parts = [f"# trueloop.{name}", *_docstring(thing, {})]
        for each in public:
            parts += _described(getattr(thing, each), f"{name}.{each}", level=2)
    else:
        parts = list(_described(thing, name, level=1))
    return "\n\n".join(parts) + "\n"


def _described(thing: Any, name: str, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name if level > 1 else f'trueloop.{name}'} {{ #{name.replace('.', '-')} }}"
    if isinstance(thing, type):
        yield from _class(thing, name, level)
    elif callable(thing):
        yield _signature(thing, name.rpartition(".")[2])
        yield from _docstring(thing, _types(thing))
    else:
        yield as_markdown(_summary(thing))


def _class(thing: type, name: str, level: int) -> Iterator[str]:
    if not issubclass(thing, BaseException):
        yield _signature(thing, name.rpartition(".")[2])
    yield from _docstring(thing, _types(thing))
    fields = list(_fields(thing))
    if fields:
        yield "**Fields**"
        yield _terms((_term(field, kind), description) for field, kind, description in fields)
    for method, member in _methods(thing):
        yield f"{'#' * (level + 1)} {method} {{ #{name.replace('.', '-')}-{method} }}"
        if isinstance(member, property):
            yield from _docstring(member.fget, {})
        else:
            yield _signature(member, method)
            yield from _docstring(member, _types(member))


def _methods(thing: type) -> Iterator[tuple[str, Any]]:
    """Yield the documented public methods and properties that trueloop defines."""
    for method, member in inspect.getmembers_static(thing):
        inner = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        function = inner.fget if isinstance(inner, property) else inner
        ours = inspect.isfunction(function) and (function.__module__ or "").startswith("trueloop.")
        if ours and not method.startswith("_") and inspect.getdoc(function):
            yield method, inner


def _fields(thing: type) -> Iterator[tuple[str, str, str]]:
    """Yield (name, type and default, words) of a record's public fields, from the text below each."""
    if not dataclasses.is_dataclass(thing) and not hasattr(thing, "_fields"):
        return
    for owner in reversed(thing.__mro__):
        if not owner.__module__.startswith("trueloop."):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for node, after in zip(body.body, [*body.body[1:], None], strict=True):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            if node.target.id.startswith("_") or "init=False" in ast.unparse(node):
                continue
            words = _words_below(after)
            if words:
                default = f" = {ast.unparse(node.value)}" if node.value is not None else ""
                yield node.target.id, f"{ast.unparse(node.annotation)}{_plain(default)}", words


def _plain(default: str) -> str:
    """Return a default without the machinery of dataclasses."""
    made = re.fullmatch(r" = field\(default_factory=(\w+)(?:\[.*\])?\)", default)
    return f" = {made[1]}()" if made else default


def _words_below(node: ast.AST | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return as_markdown(" ".join(inspect.cleandoc(node.value.value).split()))
    return ""


def _term(name: str, kind: str) -> str:
    return f'<code>{name}</code> <span class="type">{kind.replace("<", "&lt;").replace("*", "&#42;")}</span>'


def _signature(thing: Any, name: str) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    signature_parts = _separated(parameters)
    returns = signature.return_annotation
    arrow = "" if isinstance(thing, type) or returns is signature.empty else f" -> {_annotation(returns)}"
    short = f"{name}({', '.join(signature_parts)}){arrow}"
    whole = (
        short
        if len(short) <= LONG
        else "\n".join([f"{name}(", *(f"    {each}," for each in signature_parts), f"){arrow}"])
    )
    return f"```python\n{whole}\n```"


def _separated(parameters: list[inspect.Parameter]) -> list[str]:
    """Write parameters as they stand in a signature, with the star before those that are named."""
    signature_parts: list[str] = []
    starred = False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not starred:
            signature_parts.append("*")
        starred = starred or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        signature_parts.append(_parameter(each))
    return signature_parts


def _parameter(each: inspect.Parameter) -> str:
    stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    annotated = each.annotation is not each.empty
    kind = f": {_annotation(each.annotation)}" if annotated else ""
    if each.default is each.empty:
        return f"{stars}{each.name}{kind}"
    default = "..." if "factory" in repr(each.default) or " object at " in repr(each.default) else repr(each.default)
    default = getattr(each.default, "__name__", default) if inspect.isroutine(each.default) else default
    return f"{each.name}{kind}{' = ' if annotated else '='}{default}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _types(thing: Any) -> dict[str, str]:
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {each.name: _annotation(each.annotation) for each in parameters if each.annotation is not each.empty}


def _summary(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")


def _docstring(thing: Any, types: dict[str, str]) -> Iterator[str]:
    """Yield the parts of a docstring, its sections as lists of terms."""
    doc = inspect.getdoc(thing)
    if not doc:
        return
    paragraphs, heading = list[str](), ""
    for line in [*doc.splitlines(), "Note:"]:
        found = _HEADING.match(line)
        if not found:
            paragraphs.append(line)
            continue
        yield from _part(heading, "\n".join(paragraphs), types)
        heading, paragraphs = found[1], [found[2]] if found[2] else []


def _part(heading: str, text: str, types: dict[str, str]) -> Iterator[str]:
    text = textwrap.dedent(text).strip("\n") if heading in LISTED else _dedented(text)
    if not text.strip():
        return
    if heading:
        yield f"**{heading}**"
    if heading in LISTED:
        yield _terms(_items(text, types))
    else:
        yield from _blocks(text)


def _terms(items: Iterable[tuple[str, str]]) -> str:
    terms = "\n".join(f"<dt>{term}</dt><dd markdown='1'>\n\n{description}\n\n</dd>" for term, description in items)
    return f"<dl markdown='1'>\n{terms}\n</dl>"


def _dedented(text: str) -> str:
    """Dedent a section; the first line may stand behind its heading."""
    first, _, rest = text.partition("\n")
    return textwrap.dedent(text) if first.startswith(" ") else f"{first.strip()}\n{textwrap.dedent(rest)}".strip("\n")


def _blocks(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        if block.lstrip().startswith(">>>"):
            yield f"```pycon\n{textwrap.dedent(block)}\n```"
        else:
            yield as_markdown(block)


def _items(text: str, types: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (term, words) of an indented list of Google's docstrings."""
    term, words = "", list[str]()
    for line in text.splitlines():
        found = _ITEM.match(line)
        if found:
            if term or words:
                yield _named(term, types), as_markdown(" ".join(words))
            term, words = found[1], [found[2]]
        else:
            words.append(line.strip())
    yield _named(term, types), as_markdown(" ".join(words))


def _named(term: str, types: dict[str, str]) -> str:
    kind = types.get(term.lstrip("*"), "")
    if not kind:
        kinds = [types[each] for each in term.split(", ") if each in types]
        kind = kinds[0] if kinds and len(set(kinds)) == 1 else ""
    return _term(term.replace("*", "&#42;"), kind)


def documented() -> Iterator[tuple[str, Any]]:
    """Yield every public thing with its name: what must have a docstring."""
    for name in names():
        thing = getattr(trueloop, name)
        yield name, thing
        if isinstance(thing, ModuleType):
            module = importlib.import_module(thing.__name__)
            yield from ((f"{name}.{each}", getattr(module, each)) for each in module.__all__)
        elif isinstance(thing, type):
            yield from ((f"{name}.{method}", member) for method, member in _methods(thing))
