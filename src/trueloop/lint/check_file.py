"""Lints one file: interprets it once and applies every rule."""

import ast
import os
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from trueloop.analysis.interpreter.interpreter import interpret
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Finding, SourceLocation
from trueloop.core.source_text import SourceText, cuts_graph
from trueloop.core.suppression import ALL_CODES, Pragma, find_pragmas, matches_code
from trueloop.failures.failure import Failure, Rule


class ActiveRule(NamedTuple):
    """A failure whose lint rule is applied."""

    failure: Failure
    slug: str
    rule: Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult:
    """The lint result of one file."""

    path: str
    findings: tuple[Finding, ...] = ()
    """Findings, sorted by location."""
    suppressed: int = 0
    """Number of findings that comments suppress."""
    unused_pragmas: tuple[tuple[SourceLocation, str], ...] = ()
    """Location and codes of each suppression comment that suppresses no finding; "" = the comment names no codes."""
    problem: str = ""
    """Why the file could not be checked: "line 3: invalid syntax"."""


def lint_text(source: str, path: str, rules: Iterable[ActiveRule], *, notebook: bool = False) -> FileResult:
    """Apply rules to a source text and return the result.

    Args:
        source: the source text, decoded as Python decodes it.
        path: path to report in the findings.
        rules: the rules to apply.
        notebook: True if the text consists of the cells of a notebook.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the file
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return _syntax_problem(path, error)
    rules = list(rules)
    contains = cache(source.__contains__)  # many rules search for the same words
    applicable = [each for each in rules if each.rule.may_match(contains)]
    if not applicable:
        return _apply_pragmas(path, (), find_pragmas(source), frozenset(each.failure.code for each in rules))
    try:
        found = _apply_rules(applicable, interpret(SourceText(source), tree, notebook=notebook), path)
    except Exception as error:  # noqa: BLE001 - an internal error in one file must not stop the others
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(frame.filename)}:{frame.lineno}"  # noqa: PTH119
        return FileResult(path=path, problem=f"trueloop itself failed: {type(error).__name__}: {error} ({where})")
    return _apply_pragmas(path, found, find_pragmas(source), frozenset(each.failure.code for each in rules))


def _syntax_problem(path: str, error: BaseException) -> FileResult:
    line = error.lineno or 0 if isinstance(error, SyntaxError) else 0
    if isinstance(error, SyntaxError):
        message = error.msg
    else:
        message = "nested too deeply" if isinstance(error, RecursionError | MemoryError) else str(error)
    return FileResult(path=path, problem=f"line {line}: {message}" if line else message)


def _apply_rules(rules: Iterable[ActiveRule], source: SourceFile, path: str) -> list[Finding]:
    found: dict[tuple[str, int, int], Finding] = {}
    for active in rules:
        for hit in active.rule.find(source):
            key = active.failure.code, hit.node.lineno, hit.node.col_offset
            if key not in found:
                found[key] = _build_finding(active, hit, source, path)
    return [found[key] for key in sorted(found, key=lambda key: (*key[1:], key[0]))]


def _build_finding(active: ActiveRule, hit: Hit, source: SourceFile, path: str) -> Finding:
    failure, node, fix = active.failure, hit.node, hit.fix
    if fix is not None and fix.safe and cuts_graph(source.text, fix):
        fix = replace(fix, safe=False)  # even if the rule calls it safe: fixing a wrong finding must not stop gradients
    return Finding(
        code=failure.code,
        slug=active.slug,
        title=failure.title,
        severity=hit.severity or failure.severity,
        message=hit.message,
        location=_location(source, path, node),
        related=tuple((_location(source, path, other), message) for other, message in hit.related),
        fix=failure.fix,
        column=_column(source, node.lineno, node.col_offset),
        end=(node.end_lineno, _column(source, node.end_lineno, node.end_col_offset)),
        autofix=fix,
    )


def _column(source: SourceFile, line: int, column: int) -> int:
    return len(source.text.line(line).encode()[:column].decode(errors="replace")) + 1


def _location(source: SourceFile, path: str, node: ast.expr | ast.stmt) -> SourceLocation:
    return SourceLocation(path, node.lineno, _function_name(source.tree, node.lineno))


def _function_name(tree: ast.Module, line: int) -> str:
    """Return the qualified name of the innermost function or class that contains a line; "" outside of all."""
    names: list[str] = []
    body: list[ast.stmt] = tree.body
    while True:
        inner = next((each for each in body if each.lineno <= line <= (each.end_lineno or each.lineno)), None)
        if inner is None:
            return ".".join(names)
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(inner.name)
        body = list(_statements(inner))


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the direct child statements of a node, including those in its except handlers and match cases."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.stmt):
            yield each
        elif isinstance(each, ast.ExceptHandler | ast.match_case):
            yield from each.body


def _apply_pragmas(
    path: str, findings: Iterable[Finding], pragmas: Sequence[Pragma], checked_codes: frozenset[str]
) -> FileResult:
    """Drop the findings that comments suppress, and list the comments that suppress nothing.

    Args:
        path: path of the file.
        findings: all findings.
        pragmas: suppression comments in the file.
        checked_codes: codes whose rules were applied; comments with other codes are not reported as unused.
    """
    remaining, used, suppressed = list[Finding](), set[Pragma](), 0
    for each in findings:
        line = each.location.line if each.location else 0
        matching = [
            pragma
            for pragma in pragmas
            if pragma.first_line <= line <= pragma.last_line and matches_code(each.code, pragma.codes)
        ]
        used.update(matching)
        suppressed += bool(matching)
        remaining += [] if matching else [each]
    unused = [
        (SourceLocation(path, pragma.line), ", ".join(sorted(pragma.codes - ALL_CODES)))
        for pragma in pragmas
        if pragma not in used and all(any(code.startswith(word) for code in checked_codes) for word in pragma.codes)
    ]
    return FileResult(path=path, findings=tuple(remaining), suppressed=suppressed, unused_pragmas=tuple(unused))
