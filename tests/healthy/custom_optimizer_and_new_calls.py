"""A custom optimizer (Lion), fused Adam, total-norm clipping in two calls, backward from several roots and into chosen inputs."""

import torch
from torch import nn


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in filter(lambda p: p.grad is not None, group["params"]):
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = state["exp_avg"].lerp(p.grad, 1 - group["betas"][0]).sign_()
                p.add_(update, alpha=-group["lr"])
                state["exp_avg"].lerp_(p.grad, 1 - group["betas"][1])
        return loss


torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x = torch.randn(200, 6)
y = x[:, :1] * x[:, 1:2]
trunk, a, b = nn.Linear(6, 24), nn.Linear(24, 1), nn.Linear(24, 1)
everything = [*trunk.parameters(), *a.parameters(), *b.parameters()]
for optimizer in (Lion(everything, lr=2e-3, weight_decay=1e-2), torch.optim.Adam(everything, lr=5e-3, fused=True)):
    for step in range(20):
        optimizer.zero_grad()
        h = torch.tanh(trunk(x))
        first, second = (a(h) - y).pow(2).mean(), (b(h) - y.abs()).pow(2)
        torch.autograd.backward([first, second], [None, torch.full_like(second, 1 / len(second))])
        grads = [p.grad for p in everything]
        norm = nn.utils.get_total_norm(grads)
        nn.utils.clip_grads_with_norm_(everything, 1.0, norm)
        optimizer.step()
    print(first.item(), second.mean().item(), norm.item())

opt_a, opt_b = torch.optim.SGD(a.parameters(), 0.1), torch.optim.SGD(b.parameters(), 0.1)
for step in range(10):
    opt_a.zero_grad(), opt_b.zero_grad()
    h = torch.tanh(trunk(x)).detach()
    loss = (a(h) - b(h)).pow(2).mean() + (b(h) - y.abs()).pow(2).mean()
    loss.backward(inputs=list(a.parameters()), retain_graph=True)
    loss.backward(inputs=list(b.parameters()))
    opt_a.step(), opt_b.step()
print(loss.item())
