import json
import linecache
import textwrap
from pathlib import Path

import pytest

from trueloop.analysis.project import Project
from trueloop.failures.load import catalogue
from trueloop.lint.check_file import ActiveRule, FileResult
from trueloop.lint.check_tree import (
    MIN_FILES_FOR_PROCESSES,
    LintJob,
    cache_cell_lines,
    lint_content,
    lint_file,
    lint_files,
)
from trueloop.lint.files import read_text

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


# Several files ---------------------------------------------------------------------------------------------------

PROJECT = {
    "engine.py": """\
        import torch

        def evaluate(model, loader):
            with torch.no_grad():
                return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)

        def train_epoch(model, loader, criterion, optimizer):
            for x, y in loader:
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
        """,
    "main.py": """\
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset
        import engine
        from models import Net
        from utils.optim import build_optimizer, build_scheduler

        def main(epochs=10):
            data = TensorDataset(torch.randn(96, 8), torch.randint(0, 4, (96,)))
            train, held_out = DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, batch_size=16)
            model = Net()
            criterion = nn.CrossEntropyLoss()
            optimizer = build_optimizer(model)
            scheduler = build_scheduler(optimizer, epochs * len(train))
            for epoch in range(epochs):
                engine.train_epoch(model, train, criterion, optimizer)
                scheduler.step()
                print(engine.evaluate(model, held_out))

        if __name__ == "__main__":
            main()
        """,
    "models.py": """\
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5))
                self.head = nn.Linear(16, 4)

            def forward(self, x):
                return torch.softmax(self.head(self.body(x)), dim=1)
        """,
    "trainer.py": """\
        class Trainer:
            def __init__(self, model, optimizer, loader, criterion):
                self.model, self.optimizer, self.loader, self.criterion = model, optimizer, loader, criterion

            def fit(self, epochs):
                for epoch in range(epochs):
                    for x, y in self.loader:
                        self.criterion(self.model(x), y).backward()
                        self.optimizer.step()
        """,
    "utils/optim.py": """\
        import torch

        def build_optimizer(model):
            return torch.optim.AdamW(model.parameters(), lr=1e-3)

        def build_scheduler(optimizer, steps):
            return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        """,
    "with_trainer.py": """\
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset
        from trainer import Trainer

        data = TensorDataset(torch.randn(96, 8), torch.randint(0, 4, (96,)))
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        Trainer(model, optimizer, DataLoader(data, batch_size=16, shuffle=True), nn.CrossEntropyLoss()).fit(5)
        """,
}
CORRECTIONS = {
    "engine.py": {
        "    with torch": "    model.eval()\n    with torch",
        "    for x, y in loader:\n        loss": "    model.train()\n    for x, y in loader:\n        loss",
        "loss.backward()": "optimizer.zero_grad()\n        loss.backward()",
    },
    "main.py": {"epochs * len(train)": "epochs"},
    "models.py": {"torch.softmax(self.head(self.body(x)), dim=1)": "self.head(self.body(x))"},
    "trainer.py": {"self.criterion(self.model": "self.optimizer.zero_grad(); self.criterion(self.model"},
}


def write_project(folder: Path, texts: dict[str, str], *, correct: bool = False) -> list[Path]:
    for name, text in texts.items():
        path, content = folder / name, textwrap.dedent(text)
        for before, after in CORRECTIONS.get(name, {}).items() if correct else ():
            assert before in content, before
            content = content.replace(before, after)
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return sorted(folder.rglob("*.py"))


def lint_project(paths: list[Path], jobs: int = 1) -> list[FileResult]:
    job = LintJob(RULES, project=Project(map(str, paths), read_text))
    return [each.result for each in lint_files(paths, job, jobs=jobs)]


def test_what_several_files_do_together_is_found_once_with_both_places(tmp_path):
    results = lint_project(write_project(tmp_path, PROJECT))
    found = {
        (each.code, str(each.location)[len(str(tmp_path)) + 1 :]): {Path(place.path).name for place, _ in each.related}
        for result in results
        for each in result.findings
    }
    assert found == {
        ("EVL001", "engine.py:5"): {"engine.py", "main.py"},
        ("LOS001", "engine.py:9"): {"models.py", "main.py"},
        ("GRD001", "engine.py:11"): {"engine.py", "main.py", "optim.py"},
        ("SCH007", "main.py:17"): {"engine.py", "optim.py"},
        ("GRD001", "trainer.py:9"): {"trainer.py", "with_trainer.py"},
    }
    assert sum(len(result.findings) for result in results) == len(found)


def test_a_correct_project_is_clean(tmp_path):
    assert not [
        each for result in lint_project(write_project(tmp_path, PROJECT, correct=True)) for each in result.findings
    ]


def test_each_file_alone_shows_nothing(tmp_path):
    job = LintJob(RULES)
    read = lint_files(write_project(tmp_path, PROJECT), job, jobs=1)
    assert {each.code for result in read for each in result.result.findings} <= {"GRD001"}


def test_a_comment_in_the_file_of_a_finding_suppresses_it(tmp_path):
    commented = PROJECT["engine.py"].replace("(model(x), y)", "(model(x), y)  # trueloop: ignore[LOS001]")
    texts = {**PROJECT, "engine.py": commented}
    results = lint_project(write_project(tmp_path, texts))
    assert "LOS001" not in {each.code for result in results for each in result.findings}
    used = {Path(path).name: line for result in results for path, line in result.used_elsewhere}
    assert used == {"engine.py": 9}


def test_a_finding_in_another_file_has_no_fix(tmp_path):
    paths = write_project(tmp_path, PROJECT)
    job = LintJob(RULES, fix=True, unsafe=True, project=Project(map(str, paths), read_text))
    results = {each.result.path: each for each in lint_files(paths, job, jobs=1)}
    elsewhere = [f for path, each in results.items() for f in each.result.findings if f.location.path != path]
    assert elsewhere
    assert not [each for each in elsewhere if each.autofix is not None]


@pytest.mark.slow(reason="starts a pool of processes")
def test_several_processes_follow_imports_as_one_does(tmp_path):
    paths = write_project(tmp_path, PROJECT)
    for number in range(MIN_FILES_FOR_PROCESSES):
        copied = tmp_path / f"copy{number}.py"
        copied.write_text(textwrap.dedent(PROJECT["with_trainer.py"]))
        paths.append(copied)
    paths.sort()
    assert lint_project(paths, jobs=2) == lint_project(paths)
