"""CKP003: torch.load with weights_only=False, reported as a note."""

import pytest

HEAD = """
import os, tempfile
from functools import partial
import torch
from torch import nn

model = nn.Linear(4, 2)
path = os.path.join(tempfile.mkdtemp(), "model.pt")
torch.save({"model": model.state_dict()}, path)
"""

FAULTY = {
    "by path": 'model.load_state_dict(torch.load(path, weights_only=False)["model"])  # here',
    "by file": """
with open(path, "rb") as file:
    saved = torch.load(file, map_location="cpu", weights_only=False)  # here
""",
    "in a function": """
def restore(net):
    net.load_state_dict(torch.load(path, weights_only=False)["model"])  # here
restore(model)
""",
    "a wrapper around torch.load": """
class Store:
    read = staticmethod(partial(torch.load, weights_only=False))
Store.read(path)  # here
""",
}

CORRECT = {
    "weights only": "model.load_state_dict(torch.load(path, weights_only=True)['model'])",
    "by default": "model.load_state_dict(torch.load(path)['model'])",
    "not loaded": "print(os.path.getsize(path))",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run, script):
    ran = run(HEAD + script)
    line = next(n for n, text in enumerate(ran.path.read_text().splitlines(), 1) if text.endswith("# here"))
    assert [(found.code, found.location.line) for found in ran.findings] == [("CKP003", line)]


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run, script):
    assert not run(HEAD + script).findings


# Lint ------------------------------------------------------------------------------------------------------------

LINT_MISSES = {"a wrapper around torch.load"}
"""Lint cannot determine the line of these."""

LINT_FINDS = {
    "imported by name": """
from torch import load as restore
checkpoint = restore(path, weights_only=False)  # <- CKP003
""",
    "imported under another name, on several lines": """
import torch as th
checkpoint = th.load(  # <- CKP003
    path,
    map_location=lambda storage, where: storage,
    weights_only=False,  # it holds the arguments, too
)
""",
    "a class, in a branch, with a hint": """
class Trainer:
    def __init__(self, path: str, resume: bool = False) -> None:
        self.path, self.resume = path, resume

    def load(self) -> dict:
        if self.resume:
            return torch.load(self.path, map_location="cpu", weights_only=False)  # <- CKP003
        return {}
""",
    "one of several, in a comprehension": """
import glob
saved = [torch.load(each, weights_only=False)["model"] for each in glob.glob("*.pt")]  # <- CKP003
first = torch.load("first.pt", weights_only=True)
""",
    "in a nested call": """
def best():
    def read():
        return torch.load(path, weights_only=False)  # <- CKP003
    return read()
""",
}

LINT_IGNORES = {
    "decided elsewhere": """
def read(where, trusted):
    return torch.load(where, weights_only=not trusted)
""",
    "an option of another function": """
from storage import load
saved = load(path, weights_only=False)
""",
    "a method of something else": """
class Store:
    def load(self, path, weights_only=False):
        return torch.load(path, weights_only=weights_only)
Store().load(path, weights_only=False)
""",
    "options unpacked": """
options = {"weights_only": True}
saved = torch.load(path, **options)
""",
    "another option that is off": "saved = torch.load(path, mmap=False, weights_only=True)",
    "torch.jit": "loaded = torch.jit.load(path, map_location='cpu')",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - LINT_MISSES), *LINT_FINDS])
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_FINDS}[name].replace("# here", "# <- CKP003"), fixes=True)


@pytest.mark.parametrize("name", [*LINT_MISSES, *CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_IGNORES}[name], "CKP003")
