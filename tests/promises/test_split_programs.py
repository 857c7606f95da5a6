"""A program means the same in one file and in several: its failures are found, and nothing else is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from trueloop.analysis.project import Project
from trueloop.core.findings import Finding
from trueloop.failures.load import catalogue
from trueloop.lint.check_file import ActiveRule
from trueloop.lint.check_tree import LintJob, lint_files
from trueloop.lint.files import read_text

ENTRIES = {
    code: entry
    for code, entry in catalogue().items()
    if entry.failure.rule is not None and not entry.failure.rule.opt_in
}
RULES = [ActiveRule(e.failure, e.slug, e.failure.rule) for e in ENTRIES.values() if e.failure.rule]
NOT_FOLLOWED = {
    "CKP009",  # the number that the best value begins with must stand in the same file as the comparison
    "DAT021",  # that the stored array is changed in place must be visible in the loop that stores it
    "DAT042",  # where the noise is drawn must be visible in the file of the loop
    "LOS072",  # the missing space of `=+` is lost when this test writes the parts
    "GRD011",  # what is clipped must be visible as the iterator that an earlier call has used up
}


def names(node: ast.AST, context: type) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, context)}


def unparse(statements: list[ast.stmt], indent: str = "") -> str:
    return "".join(f"{indent}{line}\n" for each in statements for line in ast.unparse(each).split("\n"))


def split(script: str) -> dict[str, str]:
    """Move functions and classes to `parts.py`, and everything from the first loop on to a function in `engine.py`."""
    body = ast.parse(script).body
    imports = [each for each in body if isinstance(each, ast.Import | ast.ImportFrom)]
    definitions = [each for each in body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
    variables = {name for each in body if each not in definitions for name in names(each, ast.Store)}
    moved = [each for each in definitions if not names(each, ast.Load) & variables]
    rest = [each for each in body if each not in moved and each not in imports]
    first = next((number for number, each in enumerate(rest) if isinstance(each, ast.For | ast.While)), len(rest))
    before, after = rest[:first], rest[first:]
    head, files = unparse(imports), dict[str, str]()
    if moved:
        files["parts.py"] = head + unparse(moved)
        head += f"from parts import {', '.join(each.name for each in moved)}\n"
    main = head + unparse(before)
    if after:
        defined = {name for each in before for name in names(each, ast.Store)} | {
            each.name for each in before if isinstance(each, ast.FunctionDef | ast.ClassDef)
        }
        added = {each.target.id for part in after for each in ast.walk(part)
                 if isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name)}  # fmt: skip
        parameters = ", ".join(
            sorted(defined & {name for each in after for name in names(each, ast.Load)} | defined & added)
        )
        files["engine.py"] = f"{head}def run({parameters}):\n{unparse(after, '    ')}"
        main += f"from engine import run\nrun({parameters})\n"
    return {**files, "main.py": main}


def lint(folder: Path, files: dict[str, str]) -> list[Finding]:
    for name, text in files.items():
        (folder / name).write_text(text)
    paths = [folder / name for name in sorted(files)]
    job = LintJob(RULES, project=Project(map(str, paths), read_text))
    results = [each.result for each in lint_files(paths, job, jobs=1)]
    assert not [each.problem for each in results if each.problem]
    return [finding for each in results for finding in each.findings]


@pytest.mark.parametrize("code", ENTRIES)
def test_a_failure_is_found_when_its_program_is_in_several_files(code: str, tmp_path: Path):
    files = split(ENTRIES[code].failure.bad)
    assert (code in {each.code for each in lint(tmp_path, files)}) is (code not in NOT_FOLLOWED), files


@pytest.mark.parametrize("code", ENTRIES)
def test_a_correct_program_in_several_files_is_clean(code: str, tmp_path: Path):
    script = ENTRIES[code].failure.good
    (tmp_path / "alone").mkdir()
    alone = {each.code for each in lint(tmp_path / "alone", {"main.py": script})}
    files = split(script)
    assert {each.code for each in lint(tmp_path, files)} <= alone, files
