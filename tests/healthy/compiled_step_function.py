"""The loss function is compiled (aot_eager); the rest of the loop is ordinary PyTorch."""

import torch
from torch import nn

torch.manual_seed(0)
torch._dynamo.reset()
model = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.2)


@torch.compile(backend="aot_eager")
def loss_fn(x, y):
    return nn.functional.cross_entropy(model(x), y)


x = torch.randn(300, 4)
y = (x @ torch.randn(4, 3)).argmax(1)
for step in range(25):
    opt.zero_grad()
    loss = loss_fn(x, y)
    loss.backward()
    opt.step()
print(loss.item())
torch._dynamo.reset()
