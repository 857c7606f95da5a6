"""A Lookahead wrapper that is not a torch Optimizer: k fast steps, then the slow weights move half of the way."""

import torch
from torch import nn


class Lookahead:
    def __init__(self, base, k=5, alpha=0.5):
        self.base, self.k, self.alpha, self.count = base, k, alpha, 0
        self.slow = [[p.detach().clone() for p in g["params"]] for g in base.param_groups]

    @property
    def param_groups(self):
        return self.base.param_groups

    def zero_grad(self):
        for group in self.base.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.detach_()
                    p.grad.zero_()

    @torch.no_grad()
    def step(self):
        self.base.step()
        self.count += 1
        if self.count % self.k == 0:
            for group, slow in zip(self.base.param_groups, self.slow):
                for p, s in zip(group["params"], slow):
                    s.add_(p - s, alpha=self.alpha)
                    p.copy_(s)


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 16), nn.Softplus(), nn.Linear(16, 1))
opt = Lookahead(torch.optim.RAdam(net.parameters(), lr=1e-2))
x = torch.randn(200, 3)
y = x.prod(1, keepdim=True)
for i in range(40):
    batch = torch.randint(0, 200, (50,))
    loss = ((net(x[batch]) - y[batch]) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
