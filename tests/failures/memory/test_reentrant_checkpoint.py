"""MEM003: the reentrant variant of checkpointing."""

from __future__ import annotations

import pytest

HEAD = """
import torch
import torch.utils.checkpoint
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
"""

LINT_FAULTY = {
    "in a forward": """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        return checkpoint(self.layer, x)  # <- MEM003
""",
    "use_reentrant=True": "y = checkpoint(nn.Linear(8, 8), x, use_reentrant=True)  # <- MEM003",
    "by its full name, among other arguments": """
def run(blocks, x, mask):
    for block in blocks:
        x = torch.utils.checkpoint.checkpoint(block, x, mask, preserve_rng_state=False)  # <- MEM003
    return x
""",
    "a chain": "y = checkpoint_sequential(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), 2, x)  # <- MEM003",
    "a module of another name, several lines": """
from torch.utils import checkpoint as saving
y = saving.checkpoint(  # <- MEM003
    nn.Linear(8, 8),
    x,  # the input
)
""",
    "a custom function": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.saves = nn.Linear(8, 8), nn.Linear(8, 8), True
    def forward(self, x):
        def half(x):
            return self.b(self.a(x))
        return checkpoint(half, x, use_reentrant=True) if self.saves and self.training else half(x)  # <- MEM003
""",
}
LINT_CORRECT = {
    "use_reentrant=False": "y = checkpoint(nn.Linear(8, 8), x, use_reentrant=False)",
    "use_reentrant from a variable": "y = checkpoint(nn.Linear(8, 8), x, use_reentrant=old)",
    "passed in **options": "y = checkpoint(nn.Linear(8, 8), x, **options)",
    "a sequence": "y = checkpoint_sequential(nn.Sequential(nn.Linear(8, 8)), 1, x, use_reentrant=False)",
    "another package's": "from fairscale.nn import checkpoint_wrapper as checkpoint\ny = checkpoint(nn.Linear(8, 8))",
    "a function of this file": "def checkpoint(model, path):\n    torch.save(model.state_dict(), path)\n"
    "checkpoint(nn.Linear(8, 8), 'last.pt')",
    "without a call": "wrapped = [checkpoint, checkpoint_sequential]",
}


@pytest.mark.parametrize("script", LINT_FAULTY.values(), ids=LINT_FAULTY)
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script, fixes=True)


@pytest.mark.parametrize("script", LINT_CORRECT.values(), ids=LINT_CORRECT)
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MEM003")
