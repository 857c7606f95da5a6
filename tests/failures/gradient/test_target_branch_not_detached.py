"""GRD021: SimSiam without the stop-gradient."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

def D(p, z):
    p, z = F.normalize(p, dim=1), F.normalize(z, dim=1)
    return -(p * z).sum(1).mean()

def D_detached(p, z):
    return -F.cosine_similarity(p, z.detach(), dim=-1).mean()
"""

FAULTY = {
    "a function of the program": """
class SimSiam(nn.Module):
    def forward(self, x1, x2):
        z1, z2 = self.encoder(x1), self.encoder(x2)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        return (D(p1, z2)  # <- GRD021
                + D(p2, z1)) / 2  # <- GRD021
""",
    "in the training loop": """
criterion = nn.CosineSimilarity(dim=1)
def step(x1, x2):
    z1 = projector(backbone(x1))
    z2 = projector(backbone(x2))
    p1 = predictor(z1)
    p2 = predictor(z2)
    loss = -criterion(p1, z2).mean()  # <- GRD021
    loss.backward()
""",
}
CORRECT = {
    "detached in the function": """
def forward(self, x1, x2):
    z1, z2 = self.encoder(x1), self.encoder(x2)
    p1, p2 = self.predictor(z1), self.predictor(z2)
    return D_detached(p1, z2) + D_detached(p2, z1)
""",
    "detached before": """
def forward(self, x1, x2):
    z1, z2 = self.encoder(x1), self.encoder(x2)
    p1, p2 = self.predictor(z1), self.predictor(z2)
    z1, z2 = z1.detach(), z2.detach()
    return D(p1, z2) + D(p2, z1)
""",
    "a target network": """
def forward(self, x1, x2):
    online = self.encoder(x1)
    p1 = self.predictor(online)
    target = self.target_encoder(x2)
    return D(p1, target)
""",
    "a loss with negative pairs": """
def loss(x1, x2, negatives):
    z1, z2 = encoder(x1), encoder(x2)
    p1 = predictor(z1)
    p2 = predictor(z2)
    return D(p1, z2) - D(p1, negatives)
""",
    "a supervised predictor": """
def step(x, y):
    z = encoder(x)
    p = predictor(z)
    return F.cross_entropy(p, y) + F.mse_loss(p, y)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_programs(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script)
