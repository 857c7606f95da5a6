"""CKP003: a note, which the marks of guilty scripts leave out."""

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

GUILTY = {
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
    "a loader of one's own": """
class Store:
    read = staticmethod(partial(torch.load, weights_only=False))
Store.read(path)  # here
""",
}

QUIET = {
    "weights only": "model.load_state_dict(torch.load(path, weights_only=True)['model'])",
    "by default": "model.load_state_dict(torch.load(path)['model'])",
    "not loaded": "print(os.path.getsize(path))",
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_found(run, script):
    ran = run(HEAD + script)
    line = next(n for n, text in enumerate(ran.path.read_text().splitlines(), 1) if text.endswith("# here"))
    assert [(found.code, found.location.line) for found in ran.findings] == [("CKP003", line)]


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes(run, script):
    assert not run(HEAD + script).findings


# The rule --------------------------------------------------------------------------------------------------------

SILENT = {"a loader of one's own"}
"""Of these the text cannot tell the line."""

WRITTEN = {
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

UNWRITTEN = {
    "decided elsewhere": """
def read(where, trusted):
    return torch.load(where, weights_only=not trusted)
""",
    "an option of one's own": """
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


@pytest.mark.parametrize("name", [*(GUILTY.keys() - SILENT), *WRITTEN])
def test_the_rule_finds_it(lint_reports, name):
    lint_reports(HEAD + {**GUILTY, **WRITTEN}[name].replace("# here", "# <- CKP003"), fixes=True)


@pytest.mark.parametrize("name", [*SILENT, *QUIET, *UNWRITTEN])
def test_the_rule_leaves_others_alone(lint_is_clean, name):
    lint_is_clean(HEAD + {**GUILTY, **QUIET, **UNWRITTEN}[name], "CKP003")
