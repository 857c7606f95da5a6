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
CORRECT = {
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
