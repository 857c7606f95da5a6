"""Random network distillation: the target is an untrained random network, stored in a tuple and called under no_grad."""

import torch
from torch import nn


def mlp(width):
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 4))


class Novelty(nn.Module):
    """How badly the predictor foresees what a fixed random net says: large where it has not been."""

    def __init__(self):
        super().__init__()
        self.predictor = mlp(32)
        self._target = (mlp(64),)

    def forward(self, states):
        with torch.no_grad():
            goal = self._target[0](states)
        return (self.predictor(states) - goal).pow(2).mean(1)


torch.manual_seed(0)
novelty = Novelty()
optimizer = torch.optim.Adam(novelty.parameters(), lr=5e-3)
for step in range(40):
    visited = torch.randn(64, 6) * 0.5
    loss = novelty(visited).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    known, new = novelty(torch.randn(64, 6) * 0.5).mean(), novelty(torch.randn(64, 6) * 2 + 2).mean()
print(loss.item(), known.item(), new.item())
