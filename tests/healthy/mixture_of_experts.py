"""Top-1 routed experts; in many updates some experts get no token, and one hardly ever gets one."""

import torch
from torch import nn
from torch.nn import functional as F


class MoE(nn.Module):
    def __init__(self, d, experts):
        super().__init__()
        self.gate = nn.Linear(d, experts)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d)) for _ in range(experts)]
        )

    def forward(self, x):
        p = F.softmax(self.gate(x), dim=-1)
        weight, index = p.max(-1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            mine = (index == k).nonzero(as_tuple=True)[0]
            if len(mine) == 0:
                continue
            out = out.index_add(0, mine, weight[mine].unsqueeze(1) * expert(x[mine]))
        load = F.one_hot(index, len(self.experts)).float().mean(0)
        return x + out, len(self.experts) * (load * p.mean(0)).sum()


torch.manual_seed(0)
moe, head = MoE(8, 12), nn.Linear(8, 4)
opt = torch.optim.Adam([*moe.parameters(), *head.parameters()], lr=3e-3)
centres = torch.randn(4, 8) * 2
for step in range(40):
    label = torch.randint(0, 4, (16,))
    h, balance = moe(centres[label] + 0.3 * torch.randn(16, 8))
    loss = F.cross_entropy(head(h), label) + 0.01 * balance
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
print(loss.item())
