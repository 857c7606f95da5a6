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


ITEMS = """
import torch
from torch import nn

def block(i, o):
    return nn.Sequential(nn.Linear(i, 16), nn.ReLU(), nn.Linear(16, o))

class Engine:
    def __init__(self, size):
        self.nets = nn.ModuleDict({{"encoder": block(size, 4), "decoder": block(4, size)}})
        self.opts = {optimizers}

    def update(self, x):
        {clear}
        loss = nn.functional.mse_loss(self.nets["decoder"](self.nets["encoder"](x)), x)
        loss.backward()
        {step}
        return loss.item()

engine = Engine(8)
for _ in range(100):
    engine.update(torch.randn(32, 8))
"""
BY_NAME = "{k: torch.optim.Adam(m.parameters()) for k, m in self.nets.items()}"
LISTED = "[torch.optim.Adam(m.parameters()) for m in self.nets.values()]"
STEP = "for opt in self.opts.values():\n            opt.step()"
UNCLEARED_ITEMS = {
    "a dictionary": (BY_NAME, 'self.opts["encoder"].zero_grad()', STEP),
    "its items": (
        BY_NAME,
        'self.opts["decoder"].zero_grad(set_to_none=True)',
        "for _, opt in self.opts.items():\n            opt.step()",
    ),
    "a list": (LISTED, "self.opts[0].zero_grad()", "for opt in self.opts:\n            opt.step()"),
    "a comprehension": (LISTED, "self.opts[-1].zero_grad()", "[opt.step() for opt in self.opts]"),
}
CLEARED_ITEMS = {
    "all items": (BY_NAME, "for opt in self.opts.values():\n            opt.zero_grad()", STEP),
    "each by its name": (
        '{k: torch.optim.Adam(self.nets[n].parameters()) for k, n in (("a", "encoder"), ("b", "decoder"))}',
        'self.opts["a"].zero_grad()\n        self.opts["b"].zero_grad()',
        STEP,
    ),
    "the networks": (BY_NAME, 'self.opts["encoder"].zero_grad()\n        self.nets.zero_grad()', STEP),
    "a single optimizer": (
        "[torch.optim.Adam(self.nets.parameters())]",
        "self.opts[0].zero_grad()",
        "for opt in self.opts:\n            opt.step()",
    ),
    "after the step": (
        BY_NAME,
        'self.opts["encoder"].zero_grad()',
        STEP + "\n            opt.zero_grad()",
    ),
    "one is stepped": (BY_NAME, 'self.opts["encoder"].zero_grad()', 'self.opts["encoder"].step()'),
}


def items(optimizers: str, clear: str, step: str) -> str:
    return ITEMS.format(optimizers=optimizers, clear=clear, step=step)


@pytest.mark.parametrize("name", UNCLEARED_ITEMS)
def test_lint_reports_a_list_of_which_one_item_is_cleared(lint_reports, name):
    optimizers, clear, step = UNCLEARED_ITEMS[name]
    lint_reports(items(optimizers, clear, step + "  # <- GRD001"))


@pytest.mark.parametrize("name", CLEARED_ITEMS)
def test_lint_accepts_lists_whose_items_are_cleared(lint_is_clean, name):
    lint_is_clean(items(*CLEARED_ITEMS[name]), "GRD001")
