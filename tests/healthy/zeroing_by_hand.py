"""Three ways to clear gradients: after the step, with p.grad.zero_(), and with set_to_none=False at the end of the loop."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(300, 4)
loader = DataLoader(TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=50, shuffle=True)


def after_step(model, opt):
    opt.zero_grad(set_to_none=False)


def by_hand(model, opt):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.detach_().zero_()


def none_by_group(model, opt):
    for group in opt.param_groups:
        for p in group["params"]:
            p.grad = None


def in_place_multiply(model, opt):
    with torch.no_grad():
        for p in model.parameters():
            p.grad.mul_(0)


for clear in (after_step, by_hand, none_by_group, in_place_multiply):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        for xb, yb in loader:
            loss = nn.functional.mse_loss(model(xb), yb)
            loss.backward()
            opt.step()
            clear(model, opt)
    print(clear.__name__, loss.item())
