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
    assert [(found.code, found.site.line) for found in ran.findings] == [("CKP003", line)]


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes(run, script):
    assert not run(HEAD + script).findings
