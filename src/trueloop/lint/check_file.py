"""Lints one file: interprets it once and applies every rule."""

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from trueloop.analysis.interpreter.interpreter import interpret
from trueloop.analysis.project import Project, WordSearch, parse_module, parse_tree, program_search, word_search
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Finding, Severity, SourceLocation
from trueloop.core.source_text import cuts_graph
from trueloop.core.suppression import ALL_CODES, Pragma, find_pragmas, matches_code
from trueloop.failures.failure import Failure, Rule

_TRAINING_CODE: Final = tuple(
    map(
        re.compile,
        (
            r"optim(?<!\woptim)\b", r"ptimizer(?<=[Oo]ptimizer)", r"\.backward\(", r"oader(?<=[Ll]oader)\b",
            r"epoch(?<!\wepoch)s?\b", r"nn(?<!\wnn)\.[A-Z]\w+\(", r"class \w+\([^)]*Module\b", "train_test_split",
            "random_split", r"fit(?<!\wfit)\w*\(", r"train(?<!\wtrain)\w*\(", r"load_state_dict\(",
            r"manual_seed\(", r"env\.(?:reset|step)\(",
        ),
    )
)  # fmt: skip
"""Code that trains, evaluates, loads or builds a model, acts in an environment, or prepares data.

Patterns that start with a fixed text are searched ten times as fast as one pattern with alternatives.
"""


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
    used_elsewhere: frozenset[tuple[str, int]] = frozenset()
    """Path and line of suppression comments in other files that suppress a finding of this file's program."""
    problem: str = ""
    """Why the file could not be checked: "line 3: invalid syntax"."""


def lint_text(
    source: str, path: str, rules: Iterable[ActiveRule], *, notebook: bool = False, project: Project | None = None
) -> FileResult:
    """Apply rules to a source text and return the result.

    Args:
        source: the source text, decoded as Python decodes it.
        path: path to report in the findings.
        rules: the rules to apply.
        notebook: True if the text consists of the cells of a notebook.
        project: files into which imports are followed; findings may be in any of them.
    """
    file = os.path.abspath(path)  # noqa: PTH100
    rules = list(rules)
    imported = project.imported_files(file, source) if project is not None and _follows(file, source, project) else []
    contains = _word_search(file, source, imported, project)
    applicable = [each for each in rules if each.rule.may_match(contains)]
    codes = frozenset(each.failure.code for each in rules)
    try:
        if not applicable:
            parse_tree(source)
            return _apply_pragmas(path, (), {path: find_pragmas(source)}, codes)
        module = parse_module(file, source) if project is None else project.parse(file, source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return _syntax_problem(path, error)
    try:
        program = interpret(module, notebook=notebook, project=project, follows_imports=bool(imported))
        run = [each.path for each in program.modules[1:]]  # not all files that are imported
        if set(run) != set(imported):
            contains = _word_search(file, source, run, project)
            applicable = [each for each in applicable if each.rule.may_match(contains)]
    except Exception as error:  # noqa: BLE001 - an internal error in one file must not stop the others
        return FileResult(path=path, problem=_internal_error(error))
    found, problem = _apply_rules(applicable, program, path, project)
    return replace(_apply_pragmas(path, found, _pragmas(program, path, project), codes), problem=problem)


def _follows(file: str, source: str, project: Project) -> bool:
    """Return False for a file that imports only files which are checked themselves, and neither trains nor runs.

    Most files of a large package are such files; following their imports would check the imported files many times.
    """
    trains = project.follows_unnamed_files or any(each.search(source) for each in _TRAINING_CODE)
    return trains or project.calls_imported(file, source)


def _word_search(file: str, source: str, others: Iterable[str], project: Project | None) -> WordSearch:
    """Return a function that searches for a word in a file and in some files that it imports."""
    if project is None:
        return program_search([word_search(lambda: source)])
    own = project.search(file) if project.is_text_of(file, source) else word_search(lambda: source)
    return program_search([own, *map(project.search, others)])


def _syntax_problem(path: str, error: BaseException) -> FileResult:
    if isinstance(error, SyntaxError):
        problem = f"line {error.lineno}: {error.msg}" if error.lineno else error.msg
    else:
        problem = "nested too deeply" if isinstance(error, RecursionError | MemoryError) else str(error)
    return FileResult(path=path, problem=problem)


def _internal_error(error: Exception) -> str:
    import traceback

    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(frame.filename)}:{frame.lineno}"  # noqa: PTH119
    return f"trueloop itself failed: {type(error).__name__}: {error} ({where})"


def _apply_rules(
    rules: Iterable[ActiveRule], source: SourceFile, path: str, project: Project | None
) -> tuple[list[Finding], str]:
    """Return what the rules find, and why the first rule that failed did; "" if none did."""
    found: dict[tuple[str, int, int], Finding] = {}
    problem = ""
    for active in rules:
        try:
            for hit in active.rule.find(source):
                if active.rule.depends_on_users and source.is_used_elsewhere(hit.node):
                    continue
                key = active.failure.code, hit.node.lineno, hit.node.col_offset
                if key not in found:
                    found[key] = _build_finding(active, hit, source, path, project)
        except Exception as error:  # noqa: BLE001 - an internal error in one rule must not hide what the others find
            problem = problem or f"{active.failure.code} was not judged: {_internal_error(error)}"
    return sorted(found.values(), key=_sort_key), problem


def _sort_key(finding: Finding) -> tuple[str, int, int, str]:
    assert finding.location is not None
    return finding.location.path, finding.location.line, finding.column or 0, finding.code


def _build_finding(active: ActiveRule, hit: Hit, source: SourceFile, path: str, project: Project | None) -> Finding:
    failure, node, fix = active.failure, hit.node, hit.fix
    if fix is not None and any(each.end > len(source.modules[0].text.content) for each in fix.edits):
        fix = None  # an edit of another file
    if fix is not None and fix.safe and cuts_graph(source.text, fix):
        fix = replace(fix, safe=False)  # even if the rule calls it safe: fixing a wrong finding must not stop gradients
    related = (*hit.related, *source.places_in_other_files(hit))
    text = source.module_of(node.lineno).text
    lines_before, location = text.lines_before, _location(source, path, project, node)
    return Finding(
        code=failure.code,
        slug=active.slug,
        title=failure.title,
        severity=Severity.NOTE if _is_unit_test(location.path, text.source) else hit.severity or failure.severity,
        message=hit.message,
        location=location,
        related=tuple((_location(source, path, project, other), message) for other, message in related),
        fix=failure.fix,
        column=_column(source, node.lineno, node.col_offset),
        end=(node.end_lineno - lines_before, _column(source, node.end_lineno, node.end_col_offset)),
        autofix=fix,
    )


def _is_unit_test(path: str, text: str) -> bool:
    """Return True for a file of unit tests, which make a few updates and learn nothing that is used."""
    name = path.replace(os.sep, "/").rpartition("/")[2]
    is_named = name.startswith("test_") or name.endswith("_test.py") or name == "conftest.py"
    return is_named and any(word in text for word in ("pytest", "unittest", "def test_", "TestCase"))


def _column(source: SourceFile, line: int, byte_offset: int) -> int:
    """Convert an offset in bytes, from 0, to a column in characters, from 1."""
    return len(source.text.line(line).encode()[:byte_offset].decode(errors="replace")) + 1


def _location(source: SourceFile, path: str, project: Project | None, node: ast.expr | ast.stmt) -> SourceLocation:
    module = source.module_of(node.lineno)
    if module is not source.modules[0] and project is not None:
        path = project.display_path(module.path)
    return SourceLocation(path, node.lineno - module.text.lines_before, _function_name(module.tree, node.lineno))


def _function_name(tree: ast.Module, line: int) -> str:
    """Return the qualified name of the innermost function or class that contains a line; "" outside of all."""
    names: list[str] = []
    body: list[ast.stmt] = tree.body
    while True:
        inner = next((child for child in body if child.lineno <= line <= (child.end_lineno or child.lineno)), None)
        if inner is None:
            return ".".join(names)
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(inner.name)
        body = list(_statements(inner))


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the direct child statements of a node, including those in its except handlers and match cases."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from child.body


def _pragmas(program: SourceFile, path: str, project: Project | None) -> dict[str, Sequence[Pragma]]:
    """Return the suppression comments of each file of a program, by the path that findings have."""
    first, *others = program.modules
    found: dict[str, Sequence[Pragma]] = {path: find_pragmas(first.text.source)}
    if project is not None:
        found |= {project.display_path(each.path): find_pragmas(each.text.source) for each in others}
    return found


def _apply_pragmas(
    path: str, findings: Iterable[Finding], pragmas: Mapping[str, Sequence[Pragma]], checked_codes: frozenset[str]
) -> FileResult:
    """Drop the findings that comments suppress, and list the comments that suppress nothing.

    Args:
        path: path of the file.
        findings: all findings.
        pragmas: suppression comments in the file, and in the other files that contain findings, by path.
        checked_codes: codes whose rules were applied; comments with other codes are not reported as unused.
    """
    remaining, used, suppressed = list[Finding](), set[tuple[str, Pragma]](), 0
    for each in findings:
        place, line = (each.location.path, each.location.line) if each.location else (path, 0)
        matching = [
            (place, pragma)
            for pragma in pragmas.get(place, ())
            if pragma.first_line <= line <= pragma.last_line and matches_code(each.code, pragma.codes)
        ]
        used.update(matching)
        suppressed += bool(matching) and place == path
        remaining += [] if matching else [each]
    unused = [
        (SourceLocation(path, pragma.line), ", ".join(sorted(pragma.codes - ALL_CODES)))
        for pragma in pragmas.get(path, ())
        if (path, pragma) not in used
        and all(any(code.startswith(word) for code in checked_codes) for word in pragma.codes)
    ]
    return FileResult(
        path=path,
        findings=tuple(remaining),
        suppressed=suppressed,
        unused_pragmas=tuple(unused),
        used_elsewhere=frozenset((place, pragma.line) for place, pragma in used if place != path),
    )
