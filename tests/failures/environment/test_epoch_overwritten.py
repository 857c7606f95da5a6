"""ENV009: an inner loop that overwrites the variable of the loop over epochs."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(4, 1)
x, y = torch.randn(64, 4), torch.randn(64, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def update(a, b):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(a), b)
    loss.backward()
    optimizer.step()
    return loss.item()


"""
FAULTY = {
    "a condition": """
for i in range(10):
    for i, (a, b) in enumerate(loader):  # <- ENV009
        update(a, b)
    if i % 2 == 0:
        print(model.weight.norm().item())
""",
    "a file name": """
for epoch in range(10):
    for epoch, batch in enumerate(loader):  # <- ENV009
        update(*batch)
    torch.save(model.state_dict(), f"model_{epoch}.pt")
""",
    "in a function": """
def fit(epochs, steps):
    for t in range(epochs):
        model.train()
        for t in range(steps):  # <- ENV009
            update(x, y)
        print("epoch", t)


fit(3, 5)
""",
    "a scheduler, nested": """
def rate(optimizer, epoch):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * 0.9**epoch


for e, seed in enumerate([1, 2, 3]):
    with torch.enable_grad():
        for e, (a, b) in enumerate(loader):  # <- ENV009
            update(a, b)
    rate(optimizer, e)
""",
    "an argument": """
def log(epoch, value):
    print(epoch, value)


class Trainer:
    def run(self):
        for n in range(5):
            total = 0
            for n, (a, b) in enumerate(loader):  # <- ENV009
                total += update(a, b)
            log(n, total)


Trainer().run()
""",
    "a held-out loop": """
for i in range(5):
    for a, b in loader:
        update(a, b)
    for i, (a, b) in enumerate(loader):  # <- ENV009
        model(a)
    history = {"epoch": i}
""",
}
CORRECT = {
    "other names": """
for epoch in range(10):
    for i, (a, b) in enumerate(loader):
        update(a, b)
    print(epoch, i)
""",
    "not read": """
for i in range(10):
    for i, (a, b) in enumerate(loader):
        update(a, b)
        print(i)
    print("done")
""",
    "assigned again": """
for i in range(10):
    for i, (a, b) in enumerate(loader):
        update(a, b)
    i = 0
    print(i)
for i in range(10):
    for i, (a, b) in enumerate(loader):
        update(a, b)
    for i in range(2):
        print(i)
""",
    "a count": """
for i in range(10):
    total = 0
    for i, (a, b) in enumerate(loader):
        total += update(a, b)
    print(total / (i + 1))
for i in range(10):
    for i, (a, b) in enumerate(loader):
        update(a, b)
    print(f"{i + 1} batches")
""",
    "underscore": """
for _ in range(10):
    for _, (a, b) in enumerate(loader):
        update(a, b)
    print(_)
""",
    "a comprehension": """
for i in range(10):
    squares = [i * i for i in range(3)]
    update(x, y)
    print(i)
for i in range(10):
    for i, (a, b) in enumerate(loader):
        update(a, b)
    print([i for i in range(3)])
""",
    "a function of its own": """
for i in range(10):
    def run():
        for i, (a, b) in enumerate(loader):
            update(a, b)
    run()
    print(i)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_overwritten_epochs(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "ENV009")
