"""ENV012: seeds that come after the first weights, or only for the GPU."""

import pytest

HEAD = """
import argparse, random
import numpy as np
import torch
import torch as t
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
    def forward(self, x):
        return self.layer(x)

class Trainer:
    def __init__(self, settings):
        self.model = Net()
        self.build()
    def build(self):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def train(self):
        self.model(torch.randn(2, 4)).mean().backward()
        self.optimizer.step()

def train(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).mean().backward()
    optimizer.step()
"""
FAULTY = {
    "after the model": """
def main(args):
    model = Net()
    if args.seed is not None:
        random.seed(args.seed)
        t.manual_seed(args.seed)  # <- ENV012
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
""",
    "after a trainer with a model": """
def main(seed):
    trainer = Trainer({"lr": 0.1})
    torch.manual_seed(seed)  # <- ENV012
    trainer.train()
""",
    "only for the GPU, or only for the CPU": """
def main(args):
    if args.cuda:
        torch.cuda.manual_seed(args.seed)  # <- ENV012
    else:
        torch.manual_seed(args.seed)
    model = Net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "only for the GPU": """
def main(args):
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.cuda.manual_seed_all(args.seed)  # <- ENV012
    model = Net().cuda()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
}
FAULTY |= {
    "in the function that trains": """
def fit(model, seed):
    torch.manual_seed(seed)  # <- ENV012
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        train(model, optimizer)
net = Net()
fit(net, 3)
""",
    "in a method, for several seeds": """
class Runner:
    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer
    def train_with(self, seed):
        np.random.seed(seed)
        torch.manual_seed(seed)  # <- ENV012
        train(self.net, self.optimizer)
def main(seeds):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    runner = Runner(net, optimizer)
    for each_seed in seeds:
        runner.train_with(each_seed)
        torch.save(net, f"net_{each_seed}.pt")
""",
    "a function that trains is defined after it": """
net = Net()
seed = 3
torch.manual_seed(seed)  # <- ENV012
def episode():
    net(torch.randn(2, 4)).mean().backward()
for _ in range(3):
    episode()
""",
    "a loop over seeds": """
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for seed in [0, 1, 2]:
    torch.manual_seed(seed)  # <- ENV012
    for _ in range(3):
        train(model, optimizer)
""",
}
CORRECT = {
    "a model for each seed": """
example = Net()
for seed in [0, 1, 2]:
    torch.manual_seed(seed)
    model = Net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "a model for each seed, made by a function": """
example = Net()
def make_net():
    return Net()
for seed in [0, 1, 2]:
    torch.manual_seed(seed)
    model = make_net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "the same first weights for all seeds": """
import copy
first = Net()
for seed in [0, 1, 2]:
    torch.manual_seed(seed)
    model = copy.deepcopy(first)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "a trained model is judged with several seeds": """
model = Net()
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
for seed in [0, 1, 2]:
    torch.manual_seed(seed)
    print(model(torch.randn(2, 4)))
""",
    "a function that makes its model": """
def fit(seed):
    torch.manual_seed(seed)
    model = Net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
example = Net()
fit(3)
""",
    "before the model": """
def main(args):
    torch.manual_seed(args.seed)
    if args.cuda:
        torch.cuda.manual_seed(args.seed)
    model = Net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "twice": """
def main(seed):
    torch.manual_seed(seed)
    model = Net()
    torch.manual_seed(seed + 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "the weights are loaded": """
def main(seed):
    model = Net()
    model.load_state_dict(torch.load("start.pt"))
    torch.manual_seed(seed)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "to sample after the training": """
def main(seed):
    model = Net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    torch.manual_seed(seed)
    with torch.no_grad():
        print(model(torch.randn(2, 4)))
""",
    "a generator of the split": """
def main(seed):
    model = Net()
    generator = torch.Generator()
    generator.manual_seed(seed)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "a function of its own": """
def set_seed(seed):
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
def main(args):
    set_seed(args.seed)
    model = Net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_seed(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "ENV012")


IMPORTS = """
import random
import numpy as np
import torch
from torch import nn
"""
UPDATES = """
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.randn(16, 4)).pow(2).mean().backward()
    optimizer.step()
"""
NEVER_CALLED = {
    "a function": """
def set_seed(seed=42):  # <- ENV012
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
""",
    "a method": """
class Trainer:
    def fix_seed(self):  # <- ENV012
        torch.manual_seed(self.config["seed"])
        torch.backends.cudnn.deterministic = True
""",
    "a function that nothing calls but its own kind": """
def make_reproducible(value):  # <- ENV012
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(value)
    torch.manual_seed(value)
""",
}
MENTIONED = {
    "called": "def set_seed(seed):\n    torch.manual_seed(seed)\nset_seed(3)\n",
    "passed on": "def set_seed(seed):\n    torch.manual_seed(seed)\nprepare(set_seed)\n",
    "another seed": "def set_seed(seed):\n    torch.manual_seed(seed)\ntorch.manual_seed(1)\n",
    "a seed of numpy": "def set_seed(seed):\n    torch.manual_seed(seed)\nnp.random.seed(1)\n",
    "a library sets it": "def set_seed(seed):\n    torch.manual_seed(seed)\nlightning.seed_everything(3)\n",
    "for workers": "def seed_worker(number):\n    torch.manual_seed(number)\n",
    "a fixture": "@pytest.fixture\ndef seeded():\n    torch.manual_seed(0)\n",
    "exported": "__all__ = ['set_seed']\ndef set_seed(seed):\n    torch.manual_seed(seed)\n",
    "no seed of PyTorch": "def seed_list(seed):\n    return [seed, seed + 1]\n",
}


@pytest.mark.parametrize("script", NEVER_CALLED.values(), ids=NEVER_CALLED)
def test_lint_reports_a_function_that_nothing_calls(lint_reports, script):
    lint_reports(IMPORTS + script + UPDATES)


@pytest.mark.parametrize("script", MENTIONED.values(), ids=MENTIONED)
def test_lint_ignores_other_functions(lint_is_clean, script):
    lint_is_clean(IMPORTS + script + UPDATES, "ENV012")


def test_lint_ignores_files_that_do_not_train(lint_is_clean):
    lint_is_clean(IMPORTS + NEVER_CALLED["a function"].replace("  # <- ENV012", ""), "ENV012")


BACKENDS = "import torch.backends.cudnn as cudnn\nfrom torch import backends\n"
UNKNOWN_SETTINGS = (
    "torch.backends.cudnn.determinstic = True",
    "cudnn.benchmarks = True",
    "torch.cuda.cudnn_enabled = False",
    "backends.cudnn.enable = False",
    "torch.deterministic = True",
    "torch.manual_seed = 42",
    "np.random.seed = 1",
    "random.seed = 3",
)
KNOWN_SETTINGS = (
    "torch.backends.cudnn.deterministic = True",
    "cudnn.benchmark = False",
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.backends.cudnn.allow_tf32 = False",
    "torch.set_seed = torch.manual_seed",
    "torch.traced = True\nif torch.traced:\n    print(1)",
    "model.deterministic = True",
    "torch._dynamo.config.suppress_errors = True",
    "torch.manual_seed(42)",
    "torch.cuda.is_available = lambda: False",
)


@pytest.mark.parametrize("line", UNKNOWN_SETTINGS)
def test_lint_reports_settings_that_do_not_exist(lint_reports, line):
    lint_reports(f"{IMPORTS}{BACKENDS}{line}  # <- ENV012\n{UPDATES}")


@pytest.mark.parametrize("line", KNOWN_SETTINGS)
def test_lint_ignores_settings(lint_is_clean, line):
    lint_is_clean(f"{IMPORTS}{BACKENDS}{line}\ntorch.manual_seed(3)\n{UPDATES}", "ENV012")
