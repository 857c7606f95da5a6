"""Unchanged files are not checked again, and a cache never changes what is found."""

import json
from pathlib import Path

import pytest

from trueloop.analysis.project import Project
from trueloop.app.lint.lint_command import LintOptions, lint
from trueloop.failures.load import catalogue
from trueloop.lint import check_tree
from trueloop.lint.cache import FOLDER, MAX_CALLS, MIN_FILES, LintCache
from trueloop.lint.check_file import ActiveRule, FileResult
from trueloop.lint.check_tree import LintJob, lint_files
from trueloop.lint.files import read_text

RULES = [ActiveRule(e.failure, e.slug, e.failure.rule) for e in catalogue().values() if e.failure.rule]
CODES = [each.failure.code for each in RULES]
BAD = catalogue()["GRD001"].failure.bad
PROJECT = {
    "train.py": BAD,
    "steps.py": """
def step(optimizer, loss):
    loss.backward()
    optimizer.step()
""",
    "main.py": """
import torch
from torch import nn
from steps import step
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in [(torch.randn(8, 4), torch.randn(8, 1))] * 4:
    step(optimizer, nn.functional.mse_loss(model(x), y))
""",
    "other.py": "x = 1  # trueloop: ignore[GRD001]\n",
    "broken.py": "def\n",
    "cells.ipynb": json.dumps({
        "cells": [{"cell_type": "code", "metadata": {}, "outputs": [], "source": BAD.splitlines(keepends=True)}],
        "nbformat": 4,
    }),
}  # fmt: skip


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    return sorted(tmp_path / name for name in PROJECT)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are checked."""
    names: list[str] = []
    lint_file = check_tree.lint_file
    monkeypatch.setattr(check_tree, "lint_file", lambda path, job: (names.append(path.name), lint_file(path, job))[1])
    return names


def results(paths: list[Path], *, cached: bool = True, codes: list[str] = CODES) -> list[FileResult]:
    job = LintJob(RULES, project=Project(map(str, paths), read_text))
    cache = LintCache(paths[0].parent, paths, codes) if cached else None
    found = [each.result for each in lint_files(paths, job, jobs=1, cache=cache)]
    if cache is not None:
        cache.save()
    return found


def test_unchanged_files_are_not_checked_again(paths, checked):
    first = results(paths)
    assert sorted(checked) == sorted(PROJECT)
    checked.clear()
    assert results(paths) == first
    assert not checked
    codes = {finding.code for each in first for finding in each.findings}
    assert "GRD001" in codes
    assert any(each.problem for each in first)
    assert any(each.unused_pragmas for each in first)
    assert any(finding.autofix for each in first for finding in each.findings)


def test_a_changed_file_is_checked_with_the_files_that_import_it(paths, checked, tmp_path):
    results(paths)
    checked.clear()
    (tmp_path / "steps.py").write_text(PROJECT["steps.py"] + "    optimizer.zero_grad()\n")
    found = results(paths)
    assert sorted(checked) == ["main.py", "steps.py"]
    assert found == results(paths, cached=False)
    assert not [each for each in found if each.path.endswith(("main.py", "steps.py")) and each.findings]


def test_a_new_file_and_other_rules_make_another_cache(paths, checked, tmp_path):
    results(paths)
    (tmp_path / "new.py").write_text("x = 1\n")
    checked.clear()
    results([*paths, tmp_path / "new.py"])
    assert len(checked) == len(PROJECT) + 1
    checked.clear()
    results(paths, codes=CODES[:3])
    assert len(checked) == len(PROJECT)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: json.dumps(dict.fromkeys(json.loads(text), None)),
        lambda text: json.dumps({key: {"read": {}} for key in json.loads(text)}),
        lambda text: json.dumps({key: {"read": {}, "findings": [{"code": 1}]} for key in json.loads(text)}),
        lambda text: json.dumps({key: {"read": [], "findings": []} for key in json.loads(text)}),
    ],
    ids=["cut", "a list", "nothing", "no findings", "no finding", "a list of files"],
)
def test_a_damaged_cache_is_ignored(paths, checked, tmp_path, damage):
    first = results(paths)
    (file,) = (tmp_path / FOLDER).glob("lint-*.json")
    file.write_text(damage(file.read_text()))
    checked.clear()
    assert results(paths) == first
    assert sorted(checked) == sorted(PROJECT)


def test_few_caches_are_kept(paths, tmp_path):
    for number in range(MAX_CALLS + 3):
        results(paths[:1], codes=CODES[:number])
    assert len(list((tmp_path / FOLDER).glob("lint-*.json"))) == MAX_CALLS
    assert (tmp_path / FOLDER / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize(
    ("count", "options", "expected"),
    [
        (MIN_FILES, {}, True),
        (MIN_FILES - 1, {}, False),
        (MIN_FILES, {"no_cache": True}, False),
        (MIN_FILES, {"diff": True}, False),
    ],
    ids=["many files", "few files", "no cache", "fixes"],
)
def test_the_command_uses_it_for_many_files(tmp_path, monkeypatch, capsys, count, options, expected):
    monkeypatch.chdir(tmp_path)
    for number in range(count):
        (tmp_path / f"train{number}.py").write_text(BAD)
    printed = []
    for _ in range(2):
        lint(["."], LintOptions(format="concise", **options))
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert printed[0]
    assert (tmp_path / FOLDER).exists() is expected
