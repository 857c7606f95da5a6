"""Truncated BPTT with k1 < k2: windows overlap, so most graphs are used twice; one step per sequence."""

import torch
from torch import nn

torch.manual_seed(5)
cell = nn.GRUCell(1, 16)
head = nn.Linear(16, 1)
opt = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=5e-3)
t = torch.arange(0, 400, dtype=torch.float32) * 0.2
signal = torch.sin(t) + 0.3 * torch.sin(3.1 * t)


def train_sequence(chunk, first, k1=5, k2=10):
    """Every k1 steps, go back k2 steps through (input state, output state) pairs that are cut from each other."""
    pairs = []
    last, total = first, 0.0
    opt.zero_grad()
    for step in range(len(chunk) - 1):
        state = last.detach().requires_grad_(True)
        last = cell(chunk[step].view(1, 1), state)
        pairs.append((state, last))
        pairs = pairs[-k2:]
        if (step + 1) % k1 == 0:
            loss = (head(last).squeeze() - chunk[step + 1]) ** 2
            total += loss.item()
            more = step + 1 + k1 < len(chunk)
            loss.backward(retain_graph=more)
            grad = pairs[-1][0].grad
            for before, after in reversed(pairs[:-1]):
                before.grad = None
                after.backward(grad, retain_graph=more)
                grad = before.grad
            for before, _ in pairs:
                before.grad = None
    nn.utils.clip_grad_norm_([*cell.parameters(), *head.parameters()], 1.0)
    opt.step()
    return last.detach(), total


for epoch in range(3):
    hidden = torch.zeros(1, 16)
    for chunk in signal.unfold(0, 41, 40):
        hidden, loss = train_sequence(chunk, hidden)
    print(epoch, loss)
