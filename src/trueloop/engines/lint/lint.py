"""One file: read once, looked at by every rule."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from trueloop.engines.lint.reading.reader import read
from trueloop.ground.failure import Failure, Rule
from trueloop.ground.findings import Finding, Site
from trueloop.ground.silence import named, pragmas
from trueloop.ground.source.source import Hit, Source
from trueloop.ground.source.text import Fix, Text


class Ruled(NamedTuple):
    """A failure whose rule is to be asked."""

    failure: Failure
    slug: str
    rule: Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A finding in a text, and how to take it away."""

    finding: Finding
    column: int
    """In characters, from 1."""
    end: tuple[int, int]
    """Line and column behind its last character."""
    fix: Fix | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Linted:
    """What was found in one file."""

    path: str
    found: tuple[Found, ...] = ()
    silenced: int = 0
    """Findings that a comment asked not to hear of."""
    unused: tuple[tuple[int, str], ...] = ()
    """Comments that silence nothing: line and code, "" = all codes."""
    problem: str = ""
    """Why it could not be judged: "line 3: invalid syntax"."""
    problem_line: int = 0


def lint_text(source: str, path: str, rules: Iterable[Ruled], *, notebook: bool = False) -> Linted:
    """Return what rules find in a text.

    Args:
        source: the text, as Python reads it.
        path: as the findings tell it.
        rules: to be asked.
        notebook: the text is that of the cells of a notebook, one after the other.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the file's own: invalid escapes
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return _broken(path, error)
    wanted = [each for each in rules if all(word in source for word in each.rule.words)]
    if not wanted:
        return Linted(path=path)
    read_source = read(Text(source), tree, notebook=notebook)
    silence = pragmas(source) if "trueloop:" in source else {}
    return _sorted_out(path, _ask(wanted, read_source, path), silence)


def _broken(path: str, error: BaseException) -> Linted:
    line = error.lineno or 0 if isinstance(error, SyntaxError) else 0
    if isinstance(error, SyntaxError):
        words = error.msg
    else:
        words = "nested too deeply" if isinstance(error, RecursionError | MemoryError) else str(error)
    return Linted(path=path, problem=f"line {line}: {words}" if line else words, problem_line=line)


def _ask(rules: Iterable[Ruled], source: Source, path: str) -> list[Found]:
    found: dict[tuple[str, int, int], Found] = {}
    for ruled in rules:
        for hit in ruled.rule.find(source):
            key = ruled.failure.code, hit.node.lineno, hit.node.col_offset
            found.setdefault(key, _found(ruled, hit, source, path))
    return sorted(found.values(), key=lambda each: (each.finding.site.line if each.finding.site else 0, each.column))


def _found(ruled: Ruled, hit: Hit, source: Source, path: str) -> Found:
    failure = ruled.failure
    finding = Finding(
        code=failure.code,
        slug=ruled.slug,
        title=failure.title,
        severity=hit.severity or failure.severity,
        message=hit.message,
        site=Site(path, hit.node.lineno, _function(source.tree, hit.node.lineno)),
        related=tuple(
            (Site(path, node.lineno, _function(source.tree, node.lineno)), words) for node, words in hit.related
        ),
        fix=failure.fix,
    )
    line = source.text.line(hit.node.lineno).encode()[: hit.node.col_offset]
    last = source.text.line(hit.node.end_lineno).encode()[: hit.node.end_col_offset]
    return Found(
        finding=finding,
        column=len(line.decode(errors="replace")) + 1,
        end=(hit.node.end_lineno, len(last.decode(errors="replace")) + 1),
        fix=hit.fix,
    )


def _function(tree: ast.Module, line: int) -> str:
    """Return the qualified name of the innermost function around a line."""
    names: list[str] = []
    body: list[ast.stmt] = tree.body
    while True:
        inner = next((each for each in body if each.lineno <= line <= (each.end_lineno or each.lineno)), None)
        if inner is None:
            return ".".join(names)
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(inner.name)
        body = [each for each in ast.iter_child_nodes(inner) if isinstance(each, ast.stmt)]


def _sorted_out(path: str, found: Iterable[Found], silence: Mapping[int, frozenset[str]]) -> Linted:
    kept: list[Found] = []
    silenced = 0
    for each in found:
        line = each.finding.site.line if each.finding.site else 0
        if named(each.finding.code, silence.get(line, frozenset())):
            silenced += 1
        else:
            kept.append(each)
    return Linted(path=path, found=tuple(kept), silenced=silenced)
