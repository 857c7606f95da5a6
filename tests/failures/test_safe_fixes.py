"""Safe fixes: none cuts the graph, and none changes the training of a correct program.

The fixtures ``run_is_clean`` and ``lint_is_clean`` check the same for every correct script of the tests of failures.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import trueloop
from trueloop.analysis.interpreter.interpreter import interpret
from trueloop.analysis.project import parse_module
from trueloop.core.source_text import Edit, Fix, SourceText, cuts_graph
from trueloop.failures.load import Entry, catalogue
from trueloop.lint.check_file import ActiveRule
from trueloop.lint.fix import fix_text

ENTRIES = list(catalogue().values())
TESTS = Path(__file__).parents[1]
CORRECT = {
    **{
        path.relative_to(TESTS / "healthy").as_posix(): path.read_text()
        for path in sorted((TESTS / "healthy").rglob("*.py"))
        if not path.name.startswith("test_")
    },
    **{entry.code: entry.failure.good for entry in ENTRIES},
}
SKIPS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.last = nn.Linear(6, 1)

    def forward(self, x):
        skips = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            skips.append(x)
        for at, layer in enumerate(self.layers):
            x = layer(x) + skips[-at - 1]
        return self.last(x)

x = torch.rand(16, 6)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

def train():
    for step in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()

for epoch in range(3):
    train()
"""


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_a_correct_program_trains_the_same_after_its_safe_fixes(same_training_after_fix, script):
    same_training_after_fix(script)


def test_the_first_updates_of_a_program_are_compared_bit_for_bit(updates):
    seen = updates(SKIPS)
    assert [kind for kind, *_ in seen] == ["gradients", "parameters"] * 5
    assert all(len(digests) == 8 for _, *digests in seen)
    assert updates(SKIPS) == seen


@pytest.mark.parametrize(
    "change",
    [
        ("skips.append(x)", "skips.append(x.detach())"),
        ("lr=0.1", "lr=0.10000001"),
        ("optimizer.step()", "optimizer.step(); torch.rand(1); net.last.bias.data += 1e-7"),
    ],
    ids=["a graph that is cut", "another rate", "a parameter that is moved"],
)
def test_a_change_of_training_is_seen(updates, change):
    assert updates(SKIPS.replace(*change)) != updates(SKIPS)


@pytest.mark.parametrize("slug", ["graph-kept", "forward-bypassed", "samples-never-judged"])
def test_fixes_that_can_change_training_where_the_finding_is_wrong_are_not_safe(slug):
    entry = next(each for each in ENTRIES if each.slug == slug)
    assert entry.failure.rule is not None
    rules = [ActiveRule(entry.failure, slug, entry.failure.rule)]
    assert fix_text(entry.failure.bad, "train.py", rules).text == entry.failure.bad
    assert fix_text(entry.failure.bad, "train.py", rules, unsafe=True).text != entry.failure.bad


# No safe fix cuts the graph --------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [each for each in ENTRIES if each.failure.rule], ids=lambda entry: entry.code)
def test_a_rule_does_not_call_a_fix_safe_that_cuts_the_graph(entry: Entry):
    assert entry.failure.rule is not None
    text = SourceText(entry.failure.bad)
    hits = entry.failure.rule.find(interpret(parse_module("bad.py", entry.failure.bad)))
    fixes = [hit.fix for hit in hits if hit.fix is not None]
    assert not [fix for fix in fixes if fix.safe and cuts_graph(text, fix)]


def test_no_function_that_makes_a_safe_fix_has_words_in_it_that_cut_the_graph():
    """Also where no script of the tests leads to the fix."""
    home, makers = Path(trueloop.__file__).parent, 0
    for path in sorted(home.rglob("*.py")):
        source = path.read_text()
        for function in ast.walk(ast.parse(source)) if " Fix(" in source else ():
            if not isinstance(function, ast.FunctionDef) or not any(map(_makes_safe_fix, ast.walk(function))):
                continue
            makers += 1
            documented = ast.get_docstring(function, clean=False)
            texts = [each.value for each in ast.walk(function) if isinstance(each, ast.Constant)]
            cuts = [
                each
                for each in texts
                if isinstance(each, str)
                and each != documented
                and cuts_graph(SourceText(""), Fix((Edit(0, 0, each),), safe=True))
            ]
            assert not cuts, f"{path}:{function.lineno}: {cuts}"
    assert makers > 10


def _makes_safe_fix(node: ast.AST) -> bool:
    """True for a call of ``Fix`` that may be safe: it is not said to be unsafe right there."""
    if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "Fix":
        return False
    safe = next((each.value for each in node.keywords if each.arg == "safe"), None)
    return getattr(safe, "value", None) is not False
