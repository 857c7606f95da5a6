"""OPT002: copies that prepare_qat returns, trained with the optimizer of the original model."""

import pytest

HEAD = """
import torch
from torch import nn, optim
from torch.ao.quantization import prepare_qat

"""
LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(prepared(x), y).backward()
    optimizer.step()
"""
SCRIPT = """
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = optim.SGD(model.parameters(), lr=0.1)
"""
TRAINER = """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = optim.Adam(self.net.parameters())

    def train_epoch(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.net(x), y).backward()
            self.optimizer.step()

    def quantize(self):
"""
FAULTY = {
    "a script": SCRIPT + "prepared = prepare_qat(model)  # <- OPT002\n" + LOOP,
    "in train mode": SCRIPT + "prepared = torch.quantization.prepare_qat(model.train())  # <- OPT002\n" + LOOP,
    "a method": TRAINER + "        self.net = torch.quantization.prepare_qat(self.net)  # <- OPT002\n"
    "        for epoch in range(3):\n            self.train_epoch()\n",
    "a function that trains": SCRIPT + "model = prepare_qat(model)  # <- OPT002\nfit(model, optimizer, loader)\n"
    "def fit(model, optimizer, loader):\n    for x, y in loader:\n        optimizer.zero_grad()\n"
    "        model(x).sum().backward()\n        optimizer.step()\n",
}
CORRECT = {
    "in place": SCRIPT + "prepare_qat(model, inplace=True)\nprepared = model\n" + LOOP,
    "a new optimizer": SCRIPT
    + "prepared = prepare_qat(model)\noptimizer = optim.SGD(prepared.parameters(), lr=0.1)\n"
    + LOOP,
    "the optimizer is built later": "model = make()\nprepared = prepare_qat(model)\n"
    "optimizer = optim.SGD(prepared.parameters(), lr=0.1)\n" + LOOP,
    "only evaluated": TRAINER + "        self.net = prepare_qat(self.net)\n        self.evaluate(self.net)\n",
    "a method that builds it": TRAINER + "        self.net = prepare_qat(self.net)\n"
    "        self.optimizer = optim.SGD(self.net.parameters(), lr=0.1)\n        self.train_epoch()\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_copy(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
