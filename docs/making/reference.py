"""Write the API reference from the docstrings: a page for each public name of trueloop, with its public methods."""

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
    """Return the Markdown of every page by its path."""
    return {INDEX: _index(), **{f"api/{name}.md": _page(name) for name in names()}}


def navigation() -> list[Any]:
    """Return the pages in the format of `nav` in mkdocs.yml."""
    return [{"All names": INDEX}, *({f"{name}": f"api/{name}.md"} for name in names())]


def add_links(markdown: str, page: str) -> str:
    """Return Markdown in which every public name in backquotes (`Trainer`, `trueloop.watch`) is a link to its page."""
    public = set(names())

    def link(match: re.Match[str]) -> str:
        name = match["name"] or ""
        is_api_name = name.startswith("trueloop.") or name[:1].isupper()  # `plan` alone may be another word
        path = f"api/{name.removeprefix('trueloop.')}.md"
        if not is_api_name or name.removeprefix("trueloop.") not in public or path == page:
            return match[0]
        return f"[`{name}`]({os.path.relpath(path, os.path.dirname(page) or '.')})"  # noqa: PTH120

    return _NAME.sub(link, markdown)


def _index() -> str:
    rows = [f"| [`{name}`]({name}.md) | {in_cell(_summary(getattr(trueloop, name)))} |" for name in names()]
    blocks = [
        "# The Python API",
        (
            f"Everything that `import trueloop` offers: {len(trueloop.__all__)} names, `__version__` among them. They "
            "are imported at first use, so that `import trueloop` alone does not import torch. Names that are not "
            "listed here may change without notice."
        ),
        "\n".join(["| name | description |", "|---|---|", *rows]),
    ]
    return "\n\n".join(blocks) + "\n"


def _page(name: str) -> str:
    value = getattr(trueloop, name)
    if isinstance(value, ModuleType):
        public: list[str] = list(value.__all__)
        parts = [f"# trueloop.{name}", *_docstring(value, {})]
        for each in public:
            parts += _describe(getattr(value, each), f"{name}.{each}", level=2)
    else:
        parts = list(_describe(value, name, level=1))
    return "\n\n".join(parts) + "\n"


def _describe(value: Any, name: str, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name if level > 1 else f'trueloop.{name}'} {{ #{name.replace('.', '-')} }}"
    if isinstance(value, type):
        yield from _class(value, name, level)
    elif callable(value):
        yield _signature(value, name.rpartition(".")[2])
        yield from _docstring(value, _types(value))
    else:
        yield as_markdown(_summary(value))


def _class(cls: type, name: str, level: int) -> Iterator[str]:
    if not issubclass(cls, BaseException):
        yield _signature(cls, name.rpartition(".")[2])
    yield from _docstring(cls, _types(cls))
    fields = list(_fields(cls))
    if fields:
        yield "**Fields**"
        yield _terms((_term(field, kind), description) for field, kind, description in fields)
    for method, member in _methods(cls):
        yield f"{'#' * (level + 1)} {method} {{ #{name.replace('.', '-')}-{method} }}"
        if isinstance(member, property):
            yield from _docstring(member.fget, {})
        else:
            yield _signature(member, method)
            yield from _docstring(member, _types(member))


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the documented public methods and properties that trueloop defines."""
    for method, member in inspect.getmembers_static(cls):
        inner = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        function = inner.fget if isinstance(inner, property) else inner
        is_trueloop = inspect.isfunction(function) and (function.__module__ or "").startswith("trueloop.")
        if is_trueloop and not method.startswith("_") and inspect.getdoc(function):
            yield method, inner


def _fields(cls: type) -> Iterator[tuple[str, str, str]]:
    """Yield (name, type and default, description) of a class's public fields that have a docstring."""
    if not dataclasses.is_dataclass(cls) and not hasattr(cls, "_fields"):
        return
    for owner in reversed(cls.__mro__):
        if not owner.__module__.startswith("trueloop."):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for node, next_node in zip(body.body, [*body.body[1:], None], strict=True):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            if node.target.id.startswith("_") or "init=False" in ast.unparse(node):
                continue
            description = _field_docstring(next_node)
            if description:
                default = f" = {ast.unparse(node.value)}" if node.value is not None else ""
                yield node.target.id, f"{ast.unparse(node.annotation)}{_plain_default(default)}", description


def _plain_default(default: str) -> str:
    """Return a default as plain code: ``field(default_factory=list)`` becomes ``list()``."""
    match = re.fullmatch(r" = field\(default_factory=(\w+)(?:\[.*\])?\)", default)
    return f" = {match[1]}()" if match else default


def _field_docstring(node: ast.AST | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return as_markdown(" ".join(inspect.cleandoc(node.value.value).split()))
    return ""


def _term(name: str, kind: str) -> str:
    return f'<code>{name}</code> <span class="type">{kind.replace("<", "&lt;").replace("*", "&#42;")}</span>'


def _signature(value: Any, name: str) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    signature_parts = _format_parameters(parameters)
    returns = signature.return_annotation
    arrow = "" if isinstance(value, type) or returns is signature.empty else f" -> {_annotation(returns)}"
    one_line = f"{name}({', '.join(signature_parts)}){arrow}"
    code = (
        one_line
        if len(one_line) <= LONG
        else "\n".join([f"{name}(", *(f"    {each}," for each in signature_parts), f"){arrow}"])
    )
    return f"```python\n{code}\n```"


def _format_parameters(parameters: list[inspect.Parameter]) -> list[str]:
    """Format parameters as in a signature, with a star before the keyword-only ones."""
    signature_parts: list[str] = []
    has_star = False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not has_star:
            signature_parts.append("*")
        has_star = has_star or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        signature_parts.append(_format_parameter(each))
    return signature_parts


def _format_parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    annotated = parameter.annotation is not parameter.empty
    kind = f": {_annotation(parameter.annotation)}" if annotated else ""
    if parameter.default is parameter.empty:
        return f"{stars}{parameter.name}{kind}"
    default = repr(parameter.default)
    if "factory" in default or " object at " in default:
        default = "..."
    if inspect.isroutine(parameter.default):
        default = getattr(parameter.default, "__name__", default)
    return f"{parameter.name}{kind}{' = ' if annotated else '='}{default}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _types(value: Any) -> dict[str, str]:
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {each.name: _annotation(each.annotation) for each in parameters if each.annotation is not each.empty}


def _summary(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")


def _docstring(value: Any, types: dict[str, str]) -> Iterator[str]:
    """Yield the parts of a docstring as Markdown; `LISTED` sections become lists of terms."""
    doc = inspect.getdoc(value)
    if not doc:
        return
    paragraphs, heading = list[str](), ""
    for line in [*doc.splitlines(), "Note:"]:
        match = _HEADING.match(line)
        if not match:
            paragraphs.append(line)
            continue
        yield from _part(heading, "\n".join(paragraphs), types)
        heading, paragraphs = match[1], [match[2]] if match[2] else []


def _part(heading: str, text: str, types: dict[str, str]) -> Iterator[str]:
    text = textwrap.dedent(text).strip("\n") if heading in LISTED else _dedent_section(text)
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


def _dedent_section(text: str) -> str:
    """Dedent a section, whose first line may follow its heading on the same line."""
    first, _, other_lines = text.partition("\n")
    return (
        textwrap.dedent(text)
        if first.startswith(" ")
        else f"{first.strip()}\n{textwrap.dedent(other_lines)}".strip("\n")
    )


def _blocks(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        if block.lstrip().startswith(">>>"):
            yield f"```pycon\n{textwrap.dedent(block)}\n```"
        else:
            yield as_markdown(block)


def _items(text: str, types: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (term, description) for each item of a section in a Google-style docstring."""
    term, lines = "", list[str]()
    for line in text.splitlines():
        match = _ITEM.match(line)
        if match:
            if term or lines:
                yield _term_with_type(term, types), as_markdown(" ".join(lines))
            term, lines = match[1], [match[2]]
        else:
            lines.append(line.strip())
    yield _term_with_type(term, types), as_markdown(" ".join(lines))


def _term_with_type(term: str, types: dict[str, str]) -> str:
    kind = types.get(term.lstrip("*"), "")
    if not kind:
        kinds = [types[each] for each in term.split(", ") if each in types]
        kind = kinds[0] if kinds and len(set(kinds)) == 1 else ""
    return _term(term.replace("*", "&#42;"), kind)


def documented() -> Iterator[tuple[str, Any]]:
    """Yield every public object with its name; all of these must have a docstring."""
    for name in names():
        value = getattr(trueloop, name)
        yield name, value
        if isinstance(value, ModuleType):
            module = importlib.import_module(value.__name__)
            yield from ((f"{name}.{each}", getattr(module, each)) for each in module.__all__)
        elif isinstance(value, type):
            yield from ((f"{name}.{method}", member) for method, member in _methods(value))
