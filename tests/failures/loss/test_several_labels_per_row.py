"""LOS040: losses with a softmax whose targets have several labels per sample."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(192, 8)
labels = (x[:, :5] > 0).float()
classes = x[:, :5].argmax(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for rows in torch.arange(192).split(32):
    optimizer.zero_grad()
    out = model(x[rows])
"""
TAIL = """
    loss.backward()
    optimizer.step()
"""
FAULTY = {
    "a function": "loss = F.cross_entropy(out, labels[rows])  # <- LOS040",
    "a module, with a sum": "loss = nn.CrossEntropyLoss(reduction='sum')(out, labels[rows])  # <- LOS040",
    "without a reduction": "loss = F.cross_entropy(out, labels[rows], reduction='none').mean()  # <- LOS040",
    "two terms": "loss = 0.5 * F.cross_entropy(out, labels[rows]) + out.pow(2).mean()  # <- LOS040",
    "a binary loss of a softmax": "loss = F.binary_cross_entropy(out.softmax(1), labels[rows])  # <- LOS040",
    "a squared error of a softmax": "loss = F.mse_loss(nn.Softmax(dim=-1)(out), labels[rows])  # <- LOS040",
}
CORRECT = {
    "classes": "loss = F.cross_entropy(out, classes[rows])",
    "one-hot": "loss = F.cross_entropy(out, F.one_hot(classes[rows], 5).float())",
    "smoothed": "loss = F.cross_entropy(out, 0.9 * F.one_hot(classes[rows], 5) + 0.02)",
    "rows of zeros": "loss = F.cross_entropy(out, F.one_hot(classes[rows], 5) * (x[rows, :1] > 0).float())",
    "shares": """
    share = labels[rows] / labels[rows].sum(1, keepdim=True).clamp(min=1)
    loss = F.cross_entropy(out, share)
""",
    "a teacher": "loss = F.cross_entropy(out, labels[rows].softmax(1))",
    "positives of a batch": """
    same = (classes[rows][:, None] == classes[rows]).float()
    loss = F.cross_entropy(out @ out.T, same)
""",
    "a multinomial by hand": "loss = -(labels[rows] * out.log_softmax(1)).sum(1).mean()",
    "binary": "loss = F.binary_cross_entropy_with_logits(out, labels[rows])",
    "a sigmoid": "loss = F.binary_cross_entropy(out.sigmoid(), labels[rows])",
    "a softmax with classes": "loss = F.mse_loss(out.softmax(1), F.one_hot(classes[rows], 5).float())",
}
LINTED = {
    "functions": """
import torch
from torch import nn

criterion = nn.CrossEntropyLoss()

def train(model, loader, optimizer):
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)  # <- LOS040
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

def predict(model, x):
    logits = model(x)
    return (logits.sigmoid() >= 0.5).float()

def main(loader, test):
    model = nn.Linear(8, 4)
    train(model, loader, torch.optim.SGD(model.parameters(), lr=0.1))
    return predict(model, test)
""",
}
LINT_CORRECT = {
    "two losses": """
import torch
from torch import nn
net, head = nn.Linear(8, 4), nn.Linear(8, 4)
def losses(x, y, tags):
    loss = nn.functional.cross_entropy(net(x), y) + nn.functional.binary_cross_entropy_with_logits(head(x), tags)
    loss.backward()
    return torch.sigmoid(net(x)) > 0.5
""",
    "one output or several": """
import torch
from torch import nn
class Steps:
    def __init__(self, model, criterion):
        self.model, self.criterion = model, criterion
    def step(self, x, y):
        loss = self.criterion(self.model(x), y)
        loss.backward()
    def correct(self, x, y):
        out = self.model(x)
        if out.shape[1] > 1:
            _, predicted = torch.max(out, 1)
        else:
            predicted = (torch.sigmoid(out) > 0.5).long()
        return (predicted == y).sum()
Steps(nn.Linear(8, 4), nn.CrossEntropyLoss()).step(torch.randn(3, 8), torch.tensor([0, 1, 2]))
""",
    "the largest elsewhere": """
import torch
from torch import nn
net = nn.Linear(8, 4)
def train(x, y):
    nn.functional.cross_entropy(net(x), y).backward()
def classes(x):
    return net(x).argmax(dim=1)
def sure(x):
    return torch.sigmoid(net(x)) > 0.5
""",
    "another model": """
import torch
from torch import nn
net, gate = nn.Linear(8, 4), nn.Linear(8, 4)
def loss_of(x, y):
    open_ = torch.sigmoid(gate(x)) > 0.5
    loss = nn.functional.cross_entropy(net(x) * open_, y)
    loss.backward()
""",
}


@pytest.mark.parametrize("line", FAULTY.values(), ids=FAULTY)
def test_run_reports_several_labels(run_reports, line):
    run_reports(HEAD + (line.strip("\n") if "\n" in line else f"    {line}") + TAIL)


@pytest.mark.parametrize("line", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_programs(run_is_clean, line):
    run_is_clean(HEAD + (line.strip("\n") if "\n" in line else f"    {line}") + TAIL)


@pytest.mark.parametrize("script", LINTED.values(), ids=LINTED)
def test_lint_reports_labels_found_with_a_sigmoid(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", LINT_CORRECT.values(), ids=LINT_CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS040")
