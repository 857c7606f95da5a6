"""After some hundred updates the loop starts to accumulate, adds a second loss, and gives the last layer its own optimizer."""

import torch
from torch import nn

torch.manual_seed(0)
body, head = nn.Sequential(nn.Linear(5, 24), nn.ReLU()), nn.Linear(24, 3)
opt = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=3e-3)
x = torch.randn(600, 5)
y = (x @ torch.randn(5, 3)).argmax(1)


def batch(n=32):
    i = torch.randint(0, 600, (n,))
    return x[i], y[i]


for step in range(300):
    xb, yb = batch()
    loss = nn.functional.cross_entropy(head(body(xb)), yb)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
for step in range(150):
    opt.zero_grad()
    for _ in range(4):
        xb, yb = batch()
        loss = nn.functional.cross_entropy(head(body(xb)), yb) / 4
        loss.backward()
    opt.step()
print(4 * loss.item())
opt_body, opt_head = torch.optim.SGD(body.parameters(), 0.01), torch.optim.SGD(head.parameters(), 0.05, momentum=0.9)
for step in range(150):
    xb, yb = batch()
    features = body(xb)
    opt_body.zero_grad(), opt_head.zero_grad()
    loss = nn.functional.cross_entropy(head(features), yb)
    loss.backward(retain_graph=True)
    (1e-3 * features.pow(2).mean()).backward()
    opt_body.step(), opt_head.step()
print(loss.item())
