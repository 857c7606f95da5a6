"""LOS009: loss modules that rebuild their result from numbers."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
class FeatureLoss(nn.Module):
    def __init__(self, net, layers):
        super().__init__()
        self.net, self.layers = net, layers
"""
FAULTY = {
    "a list of losses": """
    def forward(self, a, b):
        fa, fb = self.net(a), self.net(b)
        losses = []
        for k in self.layers:
            losses.append(F.mse_loss(fa[k], fb[k]))
        losses = torch.Tensor([losses]).to(a.device)  # <- LOS009
        return losses
""",
    "a comprehension, added up": """
    def forward(self, a, b):
        fa, fb = self.net(a), self.net(b)
        terms = [F.l1_loss(x, y) for x, y in zip(fa, fb)]
        return torch.tensor(terms, device=a.device).sum()  # <- LOS009
""",
    "two variables": """
    def forward(self, out, target):
        pixel = F.mse_loss(out, target)
        edges = F.l1_loss(out.diff(), target.diff())
        return torch.FloatTensor([pixel, edges]).mean()  # <- LOS009
""",
}
CORRECT = {
    "stacked": """
    def forward(self, a, b):
        losses = [F.mse_loss(x, y) for x, y in zip(self.net(a), self.net(b))]
        return torch.stack(losses).sum()
""",
    "weights": """
    def forward(self, a, b):
        losses = torch.stack([F.mse_loss(a, b), F.l1_loss(a, b)])
        return (torch.tensor([0.3, 0.7]) * losses).sum()
""",
    "numbers besides the loss": """
    def forward(self, a, b):
        pixel, edges = F.mse_loss(a, b), F.l1_loss(a, b)
        self.shown = torch.tensor([pixel, edges])
        return pixel + edges
""",
    "under no_grad": """
    @torch.no_grad()
    def forward(self, a, b):
        pixel, edges = F.mse_loss(a, b), F.l1_loss(a, b)
        return torch.tensor([pixel, edges])
""",
    "a metric": """
    def measure(self, a, b):
        pixel, edges = F.mse_loss(a, b), F.l1_loss(a, b)
        return torch.tensor([pixel, edges])
""",
}


@pytest.mark.parametrize("method", FAULTY.values(), ids=FAULTY)
def test_lint_reports_it(lint_reports, method):
    assert "without a graph" in lint_reports(HEAD + method)[0].message


@pytest.mark.parametrize("method", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_others(lint_is_clean, method):
    lint_is_clean(HEAD + method, "LOS009")
