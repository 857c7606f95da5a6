"""GRD001: steps of optimizers that come from outside the file."""

import pytest

FAULTY = {
    "a function that gets everything": """
def train(model, loader, optimizer, criterion):
    model.train()
    for inputs, targets in loader:
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()  # <- GRD001
""",
    "a class": """
class Trainer:
    def __init__(self, model, optimizer, loader):
        self.model, self.optimizer, self.loader = model, optimizer, loader
    def train_step(self, batch):
        loss = self.model(batch).mean()
        loss.backward()
        self.optimizer.step()  # <- GRD001
        return loss.item()
    def fit(self):
        for batch in self.loader:
            self.train_step(batch)
""",
    "a fragment": """
for epoch in range(10):
    for data, target in train_loader:
        output = net(data)
        loss = criterion(output, target)
        loss.backward()
        opt.step()  # <- GRD001
""",
    "a scaler": """
import torch
def epoch(model, loader, optim, scaler):
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optim)  # <- GRD001
        scaler.update()
""",
}
CORRECT = {
    "cleared by the caller": """
def step(loss, optimizer):
    loss.backward()
    optimizer.step()
def train(model, loader, optimizer):
    for batch in loader:
        optimizer.zero_grad()
        step(model(batch).mean(), optimizer)
""",
    "cleared by hand": """
def train(model, loader, optimizer):
    for batch in loader:
        model(batch).mean().backward()
        optimizer.step()
        for p in model.parameters():
            p.grad = None
""",
    "passed to a function of another file": """
from engine import begin_update
def train(model, loader, optimizer):
    for batch in loader:
        begin_update(optimizer)
        model(batch).mean().backward()
        optimizer.step()
""",
    "a closure": """
def train(model, loader, optimizer):
    for batch in loader:
        def closure():
            loss = model(batch).mean()
            loss.backward()
            return loss
        optimizer.step(closure)
""",
    "an engine that clears": """
def train(engine, loader):
    for batch in loader:
        loss = engine(batch)
        engine.backward(loss)
        engine.step()
""",
    "an environment and a scheduler": """
def play(env, policy, scheduler):
    for _ in range(100):
        state, reward = env.step(policy(state))
        (-reward).backward()
        scheduler.step()
""",
    "one update of a single batch": """
loss = model(batch).mean()
loss.backward()
optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_step(lint_reports, script: str):
    (found,) = [each for each in lint_reports(script) if each.code == "GRD001"]
    assert str(found.severity) == "warning"


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_other_programs(lint_is_clean, script: str):
    lint_is_clean(script)
