import ast
import re
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest

from trueloop.analysis.project import Project, contains_word
from trueloop.analysis.source_file import Hit
from trueloop.core.findings import Severity, SourceLocation
from trueloop.failures.failure import Failure, Rule
from trueloop.failures.load import catalogue
from trueloop.lint.check_file import ActiveRule, lint_text
from trueloop.lint.files import read_text


def active_rule(find, words=(), code="GRD001"):
    rule = Rule(words, find)
    made_up = Failure(code=code, title="T", severity=Severity.ERROR, doc="", bad="", good="", fix="Fix it.", rule=rule)
    return ActiveRule(made_up, "slug", rule)


def find_calls(name):
    def find(source):
        return (
            Hit(message="It is called.", node=node)
            for node in source.all_calls
            if isinstance(node.func, ast.Name) and node.func.id == name
        )

    return find


BAD = active_rule(find_calls("bad"), ("bad",))


def test_a_finding_has_line_column_end_and_function():
    text = textwrap.dedent("""
        class A:
            def f(self):
                try:
                    pass
                except ValueError:
                    é = bad(1,
                            2)
    """)
    (found,) = lint_text(text, "a.py", [BAD]).findings
    assert (found.location.line, found.column, found.end) == (7, 17, (8, 23))
    assert found.location.function == "A.f"
    assert (found.code, found.severity, found.fix) == ("GRD001", Severity.ERROR, "Fix it.")


def test_findings_are_unique_and_sorted_by_location():
    text = "bad(2)\nfor x in y: bad(bad(1))\n"
    found = lint_text(text, "a.py", [BAD, BAD]).findings
    assert [(each.location.line, each.column) for each in found] == [(1, 1), (2, 13), (2, 17)]


def test_rules_without_their_required_words_are_skipped():
    def find(source):
        raise AssertionError

    assert lint_text("x = 1", "a.py", [active_rule(find, ("x", "y"))]).findings == ()


def test_comments_suppress_and_unused_ones_are_listed():
    text = "bad()  # trueloop: ignore[GRD001]\nbad()  # trueloop: ignore\ngood()  # trueloop: ignore[GRD]\nbad()\n"
    linted = lint_text(text, "a.py", [BAD])
    assert [found.location.line for found in linted.findings] == [4]
    assert linted.suppressed == 2
    assert linted.unused_pragmas == ((SourceLocation("a.py", 3), "GRD"),)
    other = lint_text("good()  # trueloop: ignore[EVL001]\n", "a.py", [BAD])
    assert other.unused_pragmas == (), "the rule of EVL001 was not applied"


def test_a_syntax_error_is_reported_with_its_line():
    for text, words in (
        ("x = (\n", "line 1"),
        ("print 'a'\n", "Missing parentheses"),
        ("\0", "null"),
        ("x" + "[1]" * 5, ""),
    ):
        problem = lint_text(text, "a.py", [BAD]).problem
        assert words in problem
        assert bool(problem) is bool(words)
    assert "nested" in lint_text("(" * 5000 + ")" * 5000, "a.py", [BAD]).problem.lower()


UNUSUAL = {
    "an empty index, a schedule without a factor, and a copy of an object": """
import torch, copy
import torch.nn.functional as F
from torch import nn

class Decoder(nn.Module):
    def forward(self, ids, labels=None):
        scale = self.scale[()]
        logits = self.head(self.transformer(self.embedding(ids[:, :-1])) * scale)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

class Keeper:
    def __init__(self, model):
        self.model, self.best = model, None
    def keep(self):
        self.best = self
        self.state = {k: v for k, v in self.model.state_dict().items()}
        best_state = self.state
        return best_state

model = Decoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=None)
keeper = Keeper(model)
for epoch in range(20):
    for ids in loader:
        loss = model(ids, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    keeper.keep()
""",
    "positional-only parameters with defaults": """
import torch

def distil(student, teacher, temperature=2.0, /, scale=1.0):
    return torch.nn.functional.cross_entropy(student * temperature, teacher) * scale

def blend(a=1, b=2, /):
    return a + b
""",
    "a metric that is updated outside of all loops": """
import torch
from torch import nn
from torchmetrics import Accuracy

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.accuracy = Accuracy(task="binary")

    def training_step(self, x, y):
        self.log("accuracy", self.accuracy(x, y), prog_bar=True)
""",
}


@pytest.mark.parametrize("text", UNUSUAL.values(), ids=UNUSUAL)
def test_all_rules_judge_unusual_code(text):
    rules = [ActiveRule(each.failure, each.slug, rule) for each in catalogue().values() if (rule := each.failure.rule)]
    result = lint_text(text, "a.py", rules)
    assert (result.problem, result.findings) == ("", ())


def test_an_internal_error_is_reported_and_other_files_are_linted():
    def find(source):
        raise KeyError("x")

    assert (
        "trueloop itself failed: KeyError: 'x' (test_check_file.py:"
        in lint_text("x", "a.py", [active_rule(find)]).problem
    )


def test_an_internal_error_of_one_rule_does_not_hide_what_others_find():
    def fails(source):
        raise KeyError("x")

    def finds(source):
        yield Hit(message="found", node=source.tree.body[0])

    result = lint_text("x", "a.py", [active_rule(fails), active_rule(finds)])
    assert [each.message for each in result.findings] == ["found"]
    assert "was not judged: trueloop itself failed: KeyError" in result.problem


KNOWN = Path(__file__).with_name("known_loops.txt")
BREAKS = {
    "PRC001": ("        scaler.unscale_(optimizer)\n", ""),
    "MEM001": ("train_loss += loss.item()", "train_loss += loss"),
    "GRD002": ("aopt.zero_grad()\n            loss.backward()", "loss.backward()\n            aopt.zero_grad()"),
    "GRD010": (
        "            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)\n            aopt.step()\n",
        "            aopt.step()\n            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)\n",
    ),
}
"""Edits that break one of the loops."""


def all_rules():
    entries = catalogue().values()
    ruled = [ActiveRule(each.failure, each.slug, each.failure.rule) for each in entries if each.failure.rule]
    return [each for each in ruled if not each.rule.opt_in]


def test_well_known_training_loops_have_no_findings():
    found = lint_text(KNOWN.read_text(), "known.py", all_rules()).findings
    assert not [f"{each.code} {each.location}" for each in found if each.severity != Severity.NOTE]


@pytest.mark.parametrize("code", BREAKS)
def test_a_broken_well_known_loop_is_found(code):
    text = KNOWN.read_text()
    broken = text.replace(*BREAKS[code])
    assert broken != text
    assert {each.code for each in lint_text(broken, "known.py", all_rules()).findings} == {code}


ORDINARY = '''
"""Reads settings, and a table of numbers with them."""

import json
import torch


class Settings:
    def __init__(self, path, names=("a", "b")):
        self.path, self.names = path, list(names) * 2

    def values(self):
        with open(self.path) as file:
            loaded = json.load(file)
        for position, name in enumerate(self.names):
            if name in loaded and position > 0:
                yield name, loaded[name]


def table(settings: Settings, width: int) -> torch.Tensor:
    rows = []
    for _, value in settings.values():
        if len(value) != width:
            raise ValueError(f"expected {width} numbers")
        rows.append(value)
    return torch.stack(rows).amax(0)
'''


def test_a_module_that_neither_trains_nor_builds_a_model_is_not_interpreted():
    rules = [entry.failure for entry in catalogue().values() if entry.failure.rule is not None]
    matching = [each.code for each in rules if each.rule.may_match(partial(contains_word, ORDINARY))]
    assert matching == []


def test_imports_of_a_file_without_training_code_are_followed_only_into_files_that_are_not_checked(tmp_path):
    (tmp_path / "bad_words.py").write_text("def run():\n    bad()\n")
    main, seen = tmp_path / "main.py", list[int]()

    def find(source):
        seen.append(len(source.modules))
        return ()

    for files, folders in ((["main.py", "bad_words.py"], []), (["main.py"], [str(tmp_path)])):
        for text in (
            "import bad_words\nif bad_words.run():\n    x = 1\n",
            "import bad_words\nepochs = bad_words.run()\n",
        ):
            project = Project([str(tmp_path / each) for each in files], read_text, folders)
            lint_text(text, str(main), [active_rule(find, ("bad",))], project=project)
    assert seen == [1, 2, 2, 2]


@pytest.mark.parametrize(
    ("text", "is_script"),
    [
        ("from parts import make\nx = make(3)\n", True),
        ("import parts\nprint(parts.make(3))\n", True),
        ("from parts import (\n    make as build,\n)\nfor x in build(3):\n    print(x)\n", True),
        ("from parts import make\n\nif __name__ == '__main__':\n    make(3)\n", True),
        ("from parts import make\ndef f():\n    return make(3)\n", False),
        ("from parts import get_logger\nlogger = get_logger(__name__)\n", False),
        ("from parts import has_cuda\nif has_cuda():\n    x = 1\n", False),
        ("from parts import make\nclass A(make('A')):\n    pass\n", False),
        ("from numpy import array\nimport parts\nx = array([1])\n", False),
    ],
)
def test_a_script_is_a_file_that_calls_what_another_file_defines(tmp_path, text, is_script):
    project = Project([str(tmp_path / "main.py"), str(tmp_path / "parts.py")], read_text)
    assert project.calls_imported(str(tmp_path / "main.py"), text) is is_script


PARTS = "def bad():\n    pass\n\ndef inner():\n    bad()\n\ndef outer():\n    inner()\n\ndef lone():\n    bad()\n"


@pytest.mark.parametrize(
    ("others", "lines"),
    [
        ({}, [5, 11]),
        ({"main.py": "from parts import outer\nouter()\n"}, [11]),  # judged with main.py
        ({"main.py": "from parts import inner, lone\n"}, []),
        ({"main.py": "def inner():\n    pass\nouter = lone = 1\n"}, [5, 11]),  # names of its own
        ({"__init__.py": "from parts import inner, lone\n"}, [5, 11]),
    ],
)
def test_a_rule_that_depends_on_users_leaves_what_other_files_use_to_them(tmp_path, others, lines):
    for name, text in {"parts.py": PARTS, **others}.items():
        (tmp_path / name).write_text(text)
    project = Project([str(tmp_path / each) for each in ("parts.py", *others)], read_text)
    rule = active_rule(find_calls("bad"), ("bad",))
    rule = rule._replace(rule=rule.rule._replace(depends_on_users=True))
    found = lint_text(PARTS, str(tmp_path / "parts.py"), [rule], project=project).findings
    assert [each.location.line for each in found if each.location] == lines


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        (("a|b&c",), "b", False),
        (("a|b&c",), "c b", True),
        (("a", re.compile(r"^x\(", re.MULTILINE)), "a\nx(1)", True),
        (("a", re.compile(r"^x\(", re.MULTILINE)), "a x(1)", False),
    ],
)
def test_required_words_are_alternatives_conjunctions_and_patterns(words, text, expected):
    assert Rule(words, lambda source: ()).may_match(partial(contains_word, text)) is expected


def test_a_long_line_of_data_does_not_delay_the_search_for_words():
    data = "policies = [" + "[('Rotate', 0.5, {'a': [1, 2]}), ('x[y]', z[0:1])], " * 4000 + "]\n"
    words = {word for entry in catalogue().values() if entry.failure.rule for word in entry.failure.rule.required_words}
    started = time.monotonic()
    for word in words - {each for each in words if isinstance(each, str)}:
        contains_word(data, word)
    assert time.monotonic() - started < 60  # three patterns took longer than an hour


@pytest.mark.parametrize(
    ("path", "severity"),
    [("tests/test_loop.py", Severity.NOTE), ("loop_test.py", Severity.NOTE), ("tests/loop.py", Severity.ERROR)],
)
def test_findings_in_unit_tests_are_notes(path, severity):
    text = "def test_one():\n" + textwrap.indent(catalogue()["GRD001"].failure.bad, "    ")
    assert {each.severity for each in lint_text(text, path, all_rules()).findings} == {severity}


def test_a_script_that_evaluates_a_model_is_no_unit_test():
    findings = lint_text(catalogue()["GRD001"].failure.bad, "test_model.py", all_rules()).findings
    assert {each.severity for each in findings} == {Severity.ERROR}
