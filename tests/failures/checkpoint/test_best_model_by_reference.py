"""CKP006: a best model that is the trained model itself, under a second name."""

import pytest

DATA = """
import copy
import io
import torch
import torch.nn.functional as F
from torch import nn, optim

x = torch.randn(120, 6)
y = x.sum(1, keepdim=True)
def build():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
model = build()
optimizer = optim.Adam(model.parameters(), lr=0.01)
def train(model=model, optimizer=optimizer):
    model.train()
    for rows in torch.arange(100).split(50):
        optimizer.zero_grad()
        F.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
def evaluate(net):
    net.eval()
    with torch.no_grad():
        return F.mse_loss(net(x[100:]), y[100:]).item()
"""

FAULTY = {
    "in a script": """
best_loss = float("inf")
for epoch in range(8):
    train()
    loss = evaluate(model)
    if loss < best_loss:
        best_loss = loss
        best_model = model  # <- CKP006
print(evaluate(best_model))
""",
    "returned by a function": """
def fit(net, epochs=8):
    best, best_net, waiting = float("inf"), None, 0
    opt = optim.Adam(net.parameters(), lr=0.01)
    for epoch in range(epochs):
        net.train()
        for rows in torch.randperm(100).split(25):
            loss = F.mse_loss(net(x[rows]), y[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
        loss = evaluate(net)
        if loss < best:
            best, best_net = loss, net  # <- CKP006
            waiting = 0
        else:
            waiting += 1
            if waiting > 3:
                break
    return best_net
print(evaluate(fit(model)))
""",
    "an attribute of a trainer": """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = optim.SGD(net.parameters(), lr=0.01)
        self.best_net, self.best_loss = None, 1e9
    def epoch(self):
        self.net.train()
        for rows in torch.randperm(100).split(25):
            self.optimizer.zero_grad()
            F.mse_loss(self.net(x[rows]), y[rows]).backward()
            self.optimizer.step()
    def fit(self):
        for epoch in range(6):
            self.epoch()
            loss = evaluate(self.net)
            if loss <= self.best_loss:
                self.best_loss = loss
                self.best_net = self.net  # <- CKP006
    def predict(self, inputs):
        return self.best_net(inputs)
trainer = Trainer(model)
trainer.fit()
trainer.predict(x)
""",
}

FAULTY["the model itself as a placeholder"] = """
best_loss, best_model = float("inf"), model
for epoch in range(8):
    train()
    loss = evaluate(model)
    if loss < best_loss:
        best_loss, best_model = loss, model  # <- CKP006
print(evaluate(best_model))
"""
CORRECT = {
    "a reference at first, then copies": """
best_loss = float("inf")
for epoch in range(6):
    train()
    loss = evaluate(model)
    if epoch == 0:
        best_model = model
    if loss < best_loss:
        best_loss = loss
        best_model = copy.deepcopy(model)
print(evaluate(best_model))
""",
    "a deep copy": """
best_loss = float("inf")
for epoch in range(6):
    train()
    loss = evaluate(model)
    if loss < best_loss:
        best_loss = loss
        best_model = copy.deepcopy(model)
print(evaluate(best_model))
""",
    "a placeholder until the first copy": """
best_loss, best_model = float("inf"), model
for epoch in range(6):
    train()
    loss = evaluate(model)
    if loss < best_loss:
        best_loss, best_model = loss, copy.deepcopy(model)
print(evaluate(best_model))
""",
    "the best of several models": """
best_loss = float("inf")
for width in range(4):
    net = build()
    opt = optim.Adam(net.parameters(), lr=0.01)
    for _ in range(3):
        train(net, opt)
    loss = evaluate(net)
    if loss < best_loss:
        best_loss = loss
        best_model = net
print(evaluate(best_model))
""",
    "training ends with the assignment": """
for epoch in range(6):
    train()
    loss = evaluate(model)
    if epoch == 5:
        best_model = model
print(evaluate(best_model))
""",
    "saved at once and loaded again": """
best_loss, file = float("inf"), None
for epoch in range(6):
    train()
    loss = evaluate(model)
    if loss < best_loss:
        best_loss = loss
        best_model = model
        file = io.BytesIO()
        torch.save(best_model.state_dict(), file)
file.seek(0)
best_model.load_state_dict(torch.load(file, weights_only=True))
print(evaluate(best_model))
""",
    "used only where it is assigned": """
best_loss = float("inf")
for epoch in range(6):
    train()
    loss = evaluate(model)
    if loss < best_loss:
        best_loss = loss
        best_model = model
        torch.save(best_model.state_dict(), io.BytesIO())
""",
    "a copy of the weights": """
best_loss = float("inf")
for epoch in range(6):
    train()
    loss = evaluate(model)
    if loss < best_loss:
        best_loss = loss
        best_weights = copy.deepcopy(model.state_dict())
model.load_state_dict(best_weights)
print(evaluate(model))
""",
    "the best loss": """
best_loss = best_epoch = float("inf")
for epoch in range(6):
    train()
    loss = evaluate(model)
    if loss < best_loss:
        best_loss = loss
        best_epoch = epoch
print(best_loss, best_epoch)
""",
    "folds": """
best_loss = float("inf")
for fold in torch.arange(100).chunk(3):
    net = build()
    opt = optim.Adam(net.parameters(), lr=0.01)
    for _ in range(4):
        opt.zero_grad()
        F.mse_loss(net(x[fold]), y[fold]).backward()
        opt.step()
    loss = evaluate(net)
    if loss < best_loss:
        best_loss, best_model = loss, net
print(evaluate(best_model))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script: str):
    assert "is the trained model itself" in run_reports(DATA + script).findings[0].message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(DATA + script)


LINT_FINDS = {
    "a loop that the file shows": """
best = 0
for epoch in range(20):
    for a, b in loader:
        optimizer.zero_grad()
        F.mse_loss(model(a), b).backward()
        optimizer.step()
    score = -evaluate(model)
    if score > best:
        best = score
        best_model = model  # <- CKP006
torch.save(best_model, "best.pt")
""",
}
LINT_MISSES = {"in a script", "the model itself as a placeholder", "an attribute of a trainer"}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - LINT_MISSES), *LINT_FINDS])
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(DATA + {**FAULTY, **LINT_FINDS}[name])


@pytest.mark.parametrize("name", CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, name):
    lint_is_clean(DATA + CORRECT[name])
