"""The torch.nn tutorial: from raw tensors with requires_grad_ to a manual update under no_grad."""

import math

import torch
from sklearn.datasets import load_digits

digits = load_digits()
x_train = torch.tensor(digits.data[:1500], dtype=torch.float32) / 16
y_train = torch.tensor(digits.target[:1500])
n, c = x_train.shape
torch.manual_seed(0)
weights = torch.randn(64, 10) / math.sqrt(64)
weights.requires_grad_()
bias = torch.zeros(10, requires_grad=True)


def log_softmax(x):
    return x - x.exp().sum(-1).log().unsqueeze(-1)


def model(xb):
    return log_softmax(xb @ weights + bias)


def nll(input, target):
    return -input[range(target.shape[0]), target].mean()


def accuracy(out, yb):
    return (torch.argmax(out, dim=1) == yb).float().mean()


bs, lr, epochs = 50, 0.5, 2
for epoch in range(epochs):
    for i in range((n - 1) // bs + 1):
        xb, yb = x_train[i * bs : i * bs + bs], y_train[i * bs : i * bs + bs]
        loss = nll(model(xb), yb)
        loss.backward()
        with torch.no_grad():
            weights -= weights.grad * lr
            bias -= bias.grad * lr
            weights.grad.zero_()
            bias.grad.zero_()
print(loss.item(), accuracy(model(xb), yb).item())
