"""ENV010: a setting that is changed after all objects have copied it."""

import pytest

LOSS = """
import torch
from torch import nn

class Loss(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.weight = config.weight
    def forward(self, y, t):
        return (y - t).pow(2).mean() + self.weight * y.abs().mean()
"""
LOOP = """
def train(config, model, loader):
    criterion = Loss(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    for epoch in range(config.epochs):
        BEFORE
        for x, t in loader:
            loss = criterion(model(x), t)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        AFTER

train(Config(), net, data)
"""


def program(before: str = "pass", after: str = "pass", head: str = LOSS, rest: str = "") -> str:
    return head + LOOP.replace("BEFORE", before).replace("AFTER", after) + rest


CLASS = """
class Trainer:
    def __init__(self, model, cfg, callbacks):
        self.model, self.cfg, self.callbacks = model, cfg, callbacks
        self.criterion = Penalty(scale=cfg.scale)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    def fit(self, loader):
        for x, t in loader:
            for each in self.callbacks:
                getattr(each, "on_batch")(self)
            loss = self.criterion(self.model(x), t)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

class Penalty:
    def __init__(self, scale=1.0):
        self.scale = scale
    def __call__(self, y, t):
        return self.scale * (y - t).pow(2).mean()

class WarmUp:
    def on_batch(self, trainer):
        CHANGE

Trainer(net, Settings(), [WarmUp()]).fit(data)
"""
FAULTY = {
    "a loop": program("config.weight = min(1.0, epoch / 10)  # <- ENV010"),
    "a product": program(after="config.weight *= 0.9  # <- ENV010"),
    "a value that follows from itself": program(after="config.weight = config.weight * 0.95  # <- ENV010"),
    "a condition": program("if epoch == 5:\n            config.weight = 0.001  # <- ENV010"),
    "a function that the loop calls": program(
        "anneal(config, epoch)", rest="\ndef anneal(cfg, epoch):\n    cfg.weight = epoch / 10  # <- ENV010\n"
    ),
    "it is printed": program("config.weight = epoch / 10  # <- ENV010", "print(f'weight {config.weight:.2f}')"),
    "a callback": "import torch\n" + CLASS.replace("CHANGE", "trainer.cfg.scale = trainer.step / 100  # <- ENV010"),
}
READ = "    def forward(self, y, t):\n        return (y - t).pow(2).mean() + self.config.weight * y.abs().mean()\n"
CORRECT = {
    "the object itself": program("criterion.weight = epoch / 10"),
    "read each time": program(
        "config.weight = epoch / 10",
        head=LOSS.partition("    def forward")[0] + "        self.config = config\n" + READ,
    ),
    "read in the loop": program("config.weight = epoch / 10", "loss = loss * config.weight"),
    "copied again": program("config.weight = epoch / 10", "criterion.weight = config.weight"),
    "before the constructor": "config = Config()\nconfig.weight = 0.5\n" + program(),
    "a loop over settings": LOSS
    + """
for weight in (0.1, 1.0):
    config.weight = weight
    criterion = Loss(config)
    for x, t in loader:
        loss = criterion(model(x), t)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "overrides": LOSS
    + """
for key, value in overrides:
    config.weight = value
criterion = Loss(config)
for x, t in loader:
    loss = criterion(model(x), t)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a property": program("config.weight = epoch / 10")
    + """
class Config:
    @property
    def weight(self):
        return self._weight
    @weight.setter
    def weight(self, value):
        self._weight = value
        for each in self.objects:
            each.weight = value
""",
    "a method of the configuration": program("config.weight = epoch / 10")
    + """
class Config:
    weight: float = 0.0
    def scaled(self):
        return 2 * self.weight
""",
    "another library": "from transformers import Model\n" + program("config.weight = 0.5", rest="\nModel(config)\n"),
    "by its name": program("config.weight = epoch / 10", "schedule(getattr(config, name))"),
    "a record of the training": program("config.current_epoch = epoch", rest="\nResume(config.current_epoch)\n"),
    "a loader for each epoch": program("config.size = 32 + epoch", "data = DataLoader(rows, config.size)"),
    "a lambda": program(
        "config.weight = epoch / 10",
        head=LOSS.replace("self.weight = config.weight", "self.weight = lambda: config.weight"),
    ),
    "a callback that changes the criterion": "import torch\n"
    + CLASS.replace("CHANGE", "trainer.criterion.scale = trainer.step / 100"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_settings_that_are_changed_after_they_were_copied(lint_reports, script: str):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_settings_that_are_read_after_the_change(lint_is_clean, script: str):
    lint_is_clean(script, "ENV010")


NUMBER = """
import torch

class Agent:
    def __init__(self, net, epsilon=1.0):
        self.net, self.epsilon = net, epsilon
    def act(self, state):
        return torch.rand(1) if torch.rand(1) < self.epsilon else self.net(state).argmax()
    def learn(self, epsilon=None):
        self.net.learn(epsilon)

def train(net, env, episodes, epsilon=1.0, decay=0.99):
    agent = Agent(net, epsilon)
    for episode in range(episodes):
        action = agent.act(env.reset())
        agent.learn()
        {change}
"""
DEAD = {
    "a product": "epsilon *= decay  # <- ENV010",
    "a function": "epsilon = max(epsilon * decay, 0.05)  # <- ENV010",
    "a condition": "if epsilon > 0.1:\n            epsilon -= 0.01  # <- ENV010",
    "a message": "epsilon = epsilon * decay  # <- ENV010\n        print(f'{episode}: {epsilon}')",
}
READ = {
    "set in the object": "epsilon *= decay; agent.epsilon = epsilon",
    "passed on": "epsilon *= decay; agent.learn(epsilon)",
    "returned": "epsilon *= decay\n    return epsilon",
    "updated by a method": "epsilon *= decay; agent.update(epsilon)",
    "a new object in each episode": "agent = Agent(net, epsilon); epsilon *= decay",
    "a decision": "epsilon *= decay\n        if episode > epsilon:\n            break",
    "the loop ends": "epsilon *= decay\n        if epsilon < 0.01:\n            return agent",
}


@pytest.mark.parametrize("change", DEAD.values(), ids=DEAD)
def test_lint_reports_numbers_that_were_copied(lint_reports, change):
    lint_reports(NUMBER.format(change=change))


@pytest.mark.parametrize("change", READ.values(), ids=READ)
def test_lint_accepts_numbers_that_are_read(lint_is_clean, change):
    lint_is_clean(NUMBER.format(change=change))


def test_lint_accepts_tensors_that_change_in_place(lint_is_clean):
    lint_is_clean(
        NUMBER.replace("    agent = Agent", "    epsilon = torch.ones(1)\n    agent = Agent").format(
            change="epsilon *= decay"
        )
    )


def test_lint_accepts_global_numbers_that_functions_read(lint_is_clean):
    lint_is_clean("""
import torch

class Agent:
    def __init__(self, epsilon):
        self.epsilon = epsilon

def act(state):
    return torch.rand(1) < epsilon

epsilon = 1.0
agent = Agent(epsilon)
for episode in range(10):
    act(episode)
    epsilon *= 0.9
""")
