"""One optimizer per parameter, stepped from a post-accumulate-grad hook inside the backward."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer_dict = {p: torch.optim.AdamW([p], lr=5e-3, foreach=False) for p in model.parameters()}


def optimizer_hook(parameter) -> None:
    optimizer_dict[parameter].step()
    optimizer_dict[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(optimizer_hook)

x = torch.randn(256, 8)
y = x.abs().sum(1, keepdim=True)
for step in range(20):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
print(loss.item())
