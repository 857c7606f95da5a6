"""LOS075: cumulative products that should be those of the previous steps, and are not."""

import pytest

HEAD = """
import numpy as np
import torch
import torch.nn.functional as F

betas = torch.linspace(1e-4, 0.02, 100)
bar = torch.cumprod(1 - betas, dim=0)
"""
FAULTY = {
    "padded behind": "previous = F.pad(bar[:-1], (0, 1), value=1.0)  # <- LOS075",
    "joined behind": "previous = torch.cat([bar[:-1], torch.ones(1)])  # <- LOS075",
    "the next ones": "previous = torch.cat((bar[1:], torch.tensor([1.0])))  # <- LOS075",
    "the first replaced": "previous = F.pad(bar[1:], [1, 0], 'constant', 1.0)  # <- LOS075",
    "an attribute with NumPy": """
class Schedule:
    def __init__(self, betas):
        self.products = np.cumprod(1.0 - betas, axis=0)
        self.before = np.append(self.products[:-1], 1.0)  # <- LOS075
""",
}
CORRECT = {
    "padded in front": "previous = F.pad(bar[:-1], (1, 0), value=1.0)",
    "joined in front": "previous = torch.cat([torch.ones(1), bar[:-1]])",
    "the next ones, which end with 0": "following = np.append(bar[1:], 0.0)",
    "one entry more": "table = torch.cat([torch.ones(1), bar])",
    "the last one set to 0": "bar = F.pad(bar[:-1], (0, 1), value=0.0)",
    "the first one set to 1": "bar = torch.cat([torch.ones(1), bar[1:]])",
    "products of what comes after": """
rest = torch.cumprod((1 - betas).flip(0), 0).flip(0)
after = torch.cat([rest[1:], torch.ones(1)])
""",
    "another tensor": """
flags = torch.zeros(5)
ends = torch.cat([flags[1:], torch.ones(1)])
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_one_at_the_wrong_side(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS075")
