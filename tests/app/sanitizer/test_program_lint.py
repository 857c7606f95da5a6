"""What `trueloop run` adds to its report from the program's source."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trueloop.app.lint.lint_command import active_rules
from trueloop.app.sanitizer.run_command import RunOptions, sanitize
from trueloop.failures.load import find_failure
from trueloop.failures.selection import select_failures
from trueloop.lint.check_file import lint_text
from trueloop.sanitizer.run_program import ProgramCommand

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F

x = torch.randn(64, 6)
y = torch.randint(0, 3, (64,))
"""
TRAINING = """
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
WRONG_MASK = """
class Attention(nn.Module):
    def forward(self, q, k, v, tokens):
        mask = torch.triu(torch.ones(4, 4, dtype=torch.bool), diagonal=1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
"""


@pytest.fixture
def report(program: Callable[..., Path], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(text: str, **options: Any) -> dict[str, Any]:
        path, output = program(text), tmp_path / "report.json"
        assert sanitize(ProgramCommand(target=str(path)), RunOptions(json=output, quiet=True, **options)) == 0
        return json.loads(output.read_text())

    return run


def codes(report: dict[str, Any]) -> list[str]:
    return [each["code"] for each in report["findings"]]


def test_what_only_the_source_shows_is_added(report: Callable[..., dict[str, Any]]):
    added = report(HEAD + WRONG_MASK + TRAINING)
    assert codes(added) == ["MDL006"]
    assert added["findings"][0]["line"] == 12
    [verdict] = [each for each in added["verdicts"] if each["code"] == "MDL006"]
    assert (verdict["verdict"], verdict["reason"]) == ("fired", "found in the source")


def test_other_files_of_the_program_are_linted_too(report: Callable[..., dict[str, Any]], program: Callable[..., Path]):
    program(HEAD + WRONG_MASK, "attention_of_this_test.py")
    program("def broken(:\n", "never_imported.py")
    found = report("import attention_of_this_test\n" + HEAD + TRAINING)
    assert [Path(each["path"]).name for each in found["findings"]] == ["attention_of_this_test.py"]


def test_what_one_file_passes_to_another_is_known(report: Callable[..., dict[str, Any]], program: Callable[..., Path]):
    pairs = """
    class Pairs:
        def __init__(self, images, masks, transform):
            self.images, self.masks, self.transform = images, masks, transform
        def __getitem__(self, i):
            image, mask = self.images[i], self.masks[i]
            image = self.transform(image)
            mask = self.transform(mask)
            return image, mask
    """
    flips = """
    import torch
    class RandomFlip:
        def __init__(self, p=0.5):
            self.p = p
        def __call__(self, t):
            return torch.flip(t, dims=[-1]) if torch.rand(1) < self.p else t
    """
    program(pairs, "pairs_of_this_test.py")
    program(flips, "flips_of_this_test.py")
    imports = "from flips_of_this_test import RandomFlip\nfrom pairs_of_this_test import Pairs\n"
    found = report(imports + HEAD + TRAINING + "print(Pairs(x, x, transform=RandomFlip())[0][0].shape)\n")
    assert [(each["code"], Path(each["path"]).name) for each in found["findings"]] == [
        ("DAT019", "pairs_of_this_test.py")
    ]


def test_an_ignored_code_and_a_comment_suppress_it(report: Callable[..., dict[str, Any]]):
    assert codes(report(HEAD + WRONG_MASK + TRAINING, ignore=["MDL006"])) == []
    silenced = WRONG_MASK.replace("attn_mask=mask)", "attn_mask=mask)  # trueloop: ignore[MDL006]")
    assert codes(report(HEAD + silenced + TRAINING)) == []


def test_a_warning_is_not_added_where_the_run_has_judged(report: Callable[..., dict[str, Any]], tmp_path: Path):
    unused = """
def accumulate(loader):
    for i, (a, b) in enumerate(loader):
        F.cross_entropy(model(a), b).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
    source = HEAD + TRAINING + unused
    linted = lint_text(source, "train.py", active_rules(select_failures((), (), folder=tmp_path)))
    assert [(each.code, each.severity) for each in linted.findings] == [("GRD003", "warning")]
    assert codes(report(source)) == []


def test_a_warning_about_another_form_than_the_run_has_judged_is_added(report: Callable[..., dict[str, Any]]):
    momentum = """
weights = [torch.zeros(6, 3, requires_grad=True)]
velocity = [torch.zeros_like(each) for each in weights]
for _ in range(12):
    F.cross_entropy(x @ weights[0], y).backward()
    with torch.no_grad():
        for w, v in zip(weights, velocity):
            v = 0.9 * v + w.grad
            w -= 0.1 * v
            w.grad = None
"""
    found = report(HEAD + momentum)
    assert [(each["code"], each["line"]) for each in found["findings"] if each["severity"] != "note"] == [
        ("GRD016", 15)
    ]


def test_the_linter_locates_what_a_run_only_sees_the_effect_of(report: Callable[..., dict[str, Any]]):
    bad = find_failure("LOS018").failure.bad  # pyright: ignore[reportOptionalMemberAccess]
    line = next(number for number, text in enumerate(bad.splitlines(), 1) if "for reward in rewards" in text)
    [named] = report(bad)["findings"]
    assert (named["code"], named["line"]) == ("LOS018", line)
    [renamed] = report(re.sub(r"\breward(s?)\b", r"value\1", bad))["findings"]
    assert renamed["code"] == "LOS018"
    assert "loss.backward()" in bad.splitlines()[renamed["line"] - 1]
