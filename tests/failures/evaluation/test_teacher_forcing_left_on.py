"""EVL026: teacher forcing is left on in an evaluation."""

import pytest

MODEL = """
import random
import torch
from torch import nn

class Seq2Seq(nn.Module):
    def __init__(self, size=16):
        super().__init__()
        self.embedding = nn.Embedding(12, size)
        self.rnn = nn.GRU(size, size, batch_first=True)
        self.out = nn.Linear(size, 12)

    def forward(self, src, trg, teacher_forcing_ratio=0.5):
        state = self.rnn(self.embedding(src))[1]
        token, outputs = trg[:, :1], []
        for step in range(1, trg.size(1)):
            hidden, state = self.rnn(self.embedding(token), state)
            outputs.append(self.out(hidden))
            token = trg[:, step : step + 1] if random.random() < teacher_forcing_ratio else outputs[-1].argmax(2)
        return torch.cat(outputs, 1)
"""
TRAIN = """
def train(model, loader, optimizer, criterion):
    model.train()
    for src, trg in loader:
        optimizer.zero_grad()
        loss = criterion(model(src, trg).flatten(0, 1), trg[:, 1:].flatten())
        loss.backward()
        optimizer.step()
"""
EVALUATE = """
def evaluate(model, loader, criterion):
    model.eval()
    total = 0
    with torch.no_grad():
        for src, trg in loader:
            output = model(src, trg)  # <- EVL026
            total += criterion(output.flatten(0, 1), trg[:, 1:].flatten()).item()
    model.train()
    return total / len(loader)
"""
MAIN = """
model = Seq2Seq(32).to("cpu")
optimizer = torch.optim.Adam(model.parameters())
src = torch.randint(1, 12, (64, 5))
batches = list(zip(src.split(16), src.split(16)))
for epoch in range(3):
    train(model, batches, optimizer, nn.CrossEntropyLoss())
    print(evaluate(model, batches, nn.CrossEntropyLoss()))
"""
ALL = MODEL + TRAIN + EVALUATE + MAIN
QUIET = ALL.replace("  # <- EVL026", "")
DECORATED = """
@torch.no_grad()
def accuracy(src, trg):
    return (model(src, trg=trg).argmax(2) == trg[:, 1:]).float().mean()  # <- EVL026
"""
FAULTY = {
    "in a function under no_grad": ALL,
    "in eval mode": ALL.replace("with torch.no_grad():", "if True:"),
    "in a decorated function": MODEL
    + TRAIN
    + DECORATED
    + MAIN.replace("evaluate(model, batches, nn.CrossEntropyLoss())", "accuracy(src, src)"),
    "passed": ALL.replace("= model(src, trg)", "= model(src, trg, teacher_forcing_ratio=0.5)"),
    "passed from a constant": "RATIO = 0.5\n" + ALL.replace("= model(src, trg)", "= model(src, trg, RATIO)"),
    "in a class": MODEL
    + """
class Trainer:
    def __init__(self, loader):
        self.model = Seq2Seq()
        self.loader = loader

    def fit(self, optimizer):
        for src, trg in self.loader:
            optimizer.zero_grad()
            self.model(src, trg).sum().backward()
            optimizer.step()

    @torch.no_grad()
    def validate(self):
        return [self.model(src, trg).argmax(2) for src, trg in self.loader]  # <- EVL026
""",
}
CORRECT = {
    "turned off by position": QUIET.replace("= model(src, trg)", "= model(src, trg, 0)"),
    "turned off by name": QUIET.replace("= model(src, trg)", "= model(src, trg, teacher_forcing_ratio=0.0)"),
    "a setting that is not readable": QUIET.replace("= model(src, trg)", "= model(src, trg, ratio())"),
    "only in train mode": QUIET.replace("if random.random()", "if self.training and random.random()"),
    "off by default": QUIET.replace("ratio=0.5", "ratio=0.0"),
    "the loss of the next token": QUIET.replace("ratio=0.5", "ratio=1.0"),
    "without a target": QUIET.replace("= model(src, trg)", "= model(src, None)"),
    "a setting of something else": QUIET.replace("teacher_forcing_ratio", "noise"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_evaluations_with_teacher_forcing(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "EVL026")
