"""Three losses over one trunk, each with its own backward; only the last one frees the graph."""

import torch
from torch import nn

torch.manual_seed(9)


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 24), nn.Tanh())
        self.age, self.sex, self.group = nn.Linear(24, 1), nn.Linear(24, 1), nn.Linear(24, 4)

    def forward(self, x):
        h = self.trunk(x)
        return self.age(h).squeeze(-1), self.sex(h).squeeze(-1), self.group(h)


x = torch.randn(400, 6)
targets = x[:, 0] * 3 + x[:, 1], (x[:, 2] > 0).float(), (x[:, 3:5] > 0).long() @ torch.tensor([1, 2])
net = MultiTask()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
fns = nn.SmoothL1Loss(), nn.BCEWithLogitsLoss(), nn.CrossEntropyLoss()
for step in range(30):
    idx = torch.randint(0, 400, (64,))
    outs = net(x[idx])
    losses = [f(o, t[idx]) for f, o, t in zip(fns, outs, targets)]
    opt.zero_grad()
    for k, loss in enumerate(losses):
        loss.backward(retain_graph=k < len(losses) - 1)
    opt.step()
print([loss.item() for loss in losses])
