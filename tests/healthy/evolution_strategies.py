"""No gradients at all: an evolution strategy over a module's parameters, in inference mode."""

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
x = torch.randn(100, 3)
y = x[:, :1] * x[:, 1:2]
theta = parameters_to_vector(net.parameters()).detach()


def fitness(vector):
    vector_to_parameters(vector, net.parameters())
    with torch.no_grad():
        return -nn.functional.mse_loss(net(x), y).item()


for generation in range(15):
    noise = torch.randn(16, len(theta))
    scores = torch.tensor([fitness(theta + 0.1 * e) - fitness(theta - 0.1 * e) for e in noise])
    theta = theta + 0.02 * (scores / (scores.std() + 1e-8)) @ noise
print(-fitness(theta))
