import json
import linecache

import pytest

from trueloop.failures.load import catalogue
from trueloop.lint.check_file import ActiveRule
from trueloop.lint.check_tree import (
    MIN_FILES_FOR_PROCESSES,
    LintJob,
    cache_cell_lines,
    lint_content,
    lint_file,
    lint_files,
)

RULES = [
    ActiveRule(e.failure, e.slug, e.failure.rule)
    for e in catalogue().values()
    if e.failure.rule and not e.failure.rule.opt_in
]
BAD = catalogue()["GRD001"].failure.bad
GOOD = catalogue()["GRD001"].failure.good
JOB = LintJob(RULES)


def notebook(*sources):
    cells = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": s.splitlines(keepends=True)} for s in sources
    ]
    return json.dumps({"cells": cells, "nbformat": 4}, indent=1).encode()


def test_findings_in_a_notebook_name_cells():
    head, loop = BAD.split("for step", 1)
    read = lint_content(notebook("%time x = 1\n", head, f"for step{loop}"), "nb.ipynb", JOB)
    (found,) = read.result.findings
    assert (str(found.location), found.cell, found.end) == ("nb.ipynb:cell 3:5", 3, (5, 21))
    assert str(found.related[0][0]) == "nb.ipynb:cell 3:4"


def test_unused_comments_in_a_notebook_name_cells():
    read = lint_content(notebook("x = 1\n", "y = 2\nz = 3  # trueloop: ignore[GRD001]\n"), "nb.ipynb", JOB)
    assert [(str(site), codes) for site, codes in read.result.unused_pragmas] == [("nb.ipynb:cell 2:2", "GRD001")]


@pytest.mark.parametrize("head", [b"", b"\xef\xbb\xbf", "# coding: latin-1\n# é ü\n".encode("latin-1")])
def test_fixes_use_byte_positions_of_the_file(head):
    content = head + BAD.lstrip().encode()
    (found,) = lint_content(content, "a.py", JOB).result.findings
    ((start, end, text),) = found.autofix.edits
    fixed = content[:start] + text.encode() + content[end:]
    assert lint_content(content, "a.py", LintJob(RULES, fix=True)).after == fixed


def test_a_notebook_is_fixed_per_cell(tmp_path):
    head, loop = BAD.split("for step", 1)
    before = notebook("!nvidia-smi", head, f"for step{loop}", "syntax error here")
    read = lint_content(before, "nb.ipynb", LintJob(RULES, fix=True))
    assert read.fix_count == 1
    assert not read.result.findings
    old, new = json.loads(before)["cells"], json.loads(read.after)["cells"]
    assert [i for i, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1]] == [2]
    assert new[2]["source"][-1].strip() == "optimizer.zero_grad()"
    assert read.result.problem == "cell 4 line 1: invalid syntax"
    path = tmp_path / "nb.ipynb"
    path.write_bytes(before)
    cache_cell_lines([str(path)])
    assert linecache.getline(f"{path}:cell 3", 1).startswith("for step")


def test_unreadable_files_are_reported_and_others_are_linted(tmp_path):
    contents = {"a.py": BAD.encode(), "b.py": b"\0", "c.py": b"x = (", "d.ipynb": b"{", "e.py": GOOD.encode()}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    reads = {
        read.result.path[len(str(tmp_path)) + 1 :]: read.result
        for read in (lint_file(p, JOB) for p in sorted(tmp_path.iterdir()))
    }
    assert [name for name, linted in reads.items() if linted.problem] == ["b.py", "c.py", "d.ipynb"]
    assert [name for name, linted in reads.items() if linted.findings] == ["a.py"]
    assert "No such file" in lint_file(tmp_path / "gone.py", JOB).result.problem


@pytest.mark.slow(reason="starts a pool of processes")
def test_several_processes_return_results_in_order(tmp_path):
    paths = [tmp_path / f"{number:03}.py" for number in range(MIN_FILES_FOR_PROCESSES + 5)]
    for number, path in enumerate(paths):
        path.write_text(BAD if number % 2 else GOOD)
    alone, together = (list(lint_files(paths, JOB, jobs=jobs)) for jobs in (1, 2))
    assert [read.result for read in together] == [read.result for read in alone]
    assert [read.result.path for read in together] == [str(path) for path in paths]
    assert sum(len(read.result.findings) for read in together) == len(paths) // 2
