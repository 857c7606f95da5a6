"""Adam updates most parameters; a temperature and the prototypes are updated by hand under no_grad."""

import torch
from torch import nn
from torch.nn import functional as F


class ProtoNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.prototypes = nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        return -torch.cdist(self.body(x), self.prototypes) * self.log_temperature.exp()


torch.manual_seed(0)
net = ProtoNet()
opt = torch.optim.Adam(net.body.parameters(), lr=5e-3)
x = torch.randn(300, 6)
y = (x @ torch.randn(6, 3)).argmax(1)
for step in range(40):
    i = torch.randint(0, 300, (60,))
    loss = F.cross_entropy(net(x[i]), y[i])
    net.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        net.log_temperature -= 0.01 * net.log_temperature.grad.sign()
        net.prototypes -= 0.1 * net.prototypes.grad
        net.prototypes.copy_(F.normalize(net.prototypes, dim=1) * 2)
print(loss.item(), net.log_temperature.item())
