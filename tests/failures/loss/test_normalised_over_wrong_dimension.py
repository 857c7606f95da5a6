"""LOS007: a log-softmax over the samples or the positions, and correct look-alikes."""

from __future__ import annotations

import pytest

DATA = """
import torch
import torch.nn.functional as F
from torch import nn
x = torch.randn(64, 6)
y = x[:, :4].argmax(1)
"""

LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
"""

CORRECT = {
    "over the classes": "model = nn.Linear(6, 4)\nloss_of = lambda z, y: F.nll_loss(z.log_softmax(1), y)" + LOOP,
    "over the last of two": "model = nn.Linear(6, 4)\nloss_of = lambda z, y: F.nll_loss(z.log_softmax(-1), y)" + LOOP,
    "cross_entropy": "model = nn.Linear(6, 4)\nloss_of = nn.CrossEntropyLoss(label_smoothing=0.1)" + LOOP,
    "one sample without a batch": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.nll_loss(z[0].log_softmax(0), y[0])" + LOOP,
    "tokens, flattened": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.nll_loss(z.view(8, 8, 4).log_softmax(2).view(-1, 4), y)" + LOOP,
    "tokens, transposed": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.nll_loss(z.view(8, 8, 4).log_softmax(-1).transpose(1, 2), y.view(8, 8))" + LOOP,
    "tokens, by cross_entropy": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.cross_entropy(z.view(8, 8, 4).permute(0, 2, 1), y.view(8, 8))" + LOOP,
    "soft targets by hand over the last dimension": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: -(F.one_hot(y, 4).view(8, 8, 4) * z.view(8, 8, 4).log_softmax(-1)).sum() / 64" + LOOP,
    "contrastive, both ways": """
model = nn.Linear(6, 8)
def loss_of(z, y):
    alike = F.normalize(z) @ F.normalize(z.roll(1, 0)).T
    labels = torch.arange(len(z))
    return (F.cross_entropy(alike, labels) + F.cross_entropy(alike.T, labels)) / 2
"""
    + LOOP,
    "attention over the samples inside": "model = nn.Linear(6, 4)\n"
    "loss_of = lambda z, y: F.cross_entropy(z.softmax(0) @ torch.eye(4), y)" + LOOP,
}

CORRECT["the logarithm of a softmax over the classes"] = (
    "model = nn.Linear(6, 4)\nloss_of = lambda z, y: F.nll_loss(torch.log(z.softmax(1) + 1e-9), y)" + LOOP
)

FAULTY = {
    "the logarithm of a softmax": """
model = nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    p = F.softmax(model(x), dim=0)
    loss = F.nll_loss(torch.log(p + 1e-9), y)  # <- LOS007
    loss.backward()
    optimizer.step()
""",
    "over the samples": """
model = nn.Sequential(nn.Linear(6, 4), nn.LogSoftmax(dim=0))
criterion = nn.NLLLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = criterion(model(x), y)  # <- LOS007
    loss.backward()
    optimizer.step()
""",
    "a class and accumulation": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 4)
    def forward(self, x):
        return F.log_softmax(self.head(x), dim=0)
    def loss(self, x, y):
        return F.nll_loss(self(x), y)  # <- LOS007
net = Net()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(4):
    part = slice(step % 2 * 32, step % 2 * 32 + 32)
    (net.loss(x[part], y[part]) / 2).backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "over the positions, under autocast": """
model = nn.Conv1d(6, 4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
series, labels = x.view(8, 8, 6).transpose(1, 2), y.view(8, 8)
for _ in range(3):
    with torch.autocast("cpu", torch.bfloat16):
        out = torch.log_softmax(model(series), -1)
        loss = F.nll_loss(out, labels)  # <- LOS007
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "the default dimension of three-dimensional input, in a closure": """
import warnings
warnings.filterwarnings("ignore")
model = nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
softmax = nn.LogSoftmax()
def closure():
    optimizer.zero_grad()
    out = softmax(model(x.view(16, 4, 6)))
    loss = F.nll_loss(out.reshape(-1, 4), y)  # <- LOS007
    loss.backward()
    return loss
for _ in range(3):
    optimizer.step(closure)
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(DATA + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    (found,) = run_reports(DATA + script).findings
    assert "normalises over the " in found.message


LINT_HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
def train(net, loss_of, batches):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        loss_of(net(x), y).backward()
        optimizer.step()
"""
OVER_SAMPLES = {
    "in a Sequential": """
net = nn.Sequential(
    nn.Linear(6, 3),
    nn.LogSoftmax(dim=0),  # <- LOS007
)
train(net, F.nll_loss, loader)
train(net, lambda out, y: F.nll_loss(out, y), loader)
""",
    "in a forward": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)
    def forward(self, x):
        return F.log_softmax(self.fc(x), dim=0)  # <- LOS007
criterion = nn.NLLLoss()
train(Net(), lambda out, y: criterion(out, y), loader)
""",
    "a softmax": """
one_hot = lambda y: F.one_hot(y, 3).float()
train(nn.Linear(6, 3), lambda out, y: F.mse_loss(torch.softmax(out, 0), one_hot(y)), loader)  # <- LOS007
""",
    "slices": """
net, x, y = nn.Linear(6, 3), torch.randn(64, 6), torch.randint(0, 3, (64,))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(0, 64, 16):
    optimizer.zero_grad()
    F.nll_loss(net(x[i : i + 16]).log_softmax(0), y[i : i + 16]).backward()  # <- LOS007
    optimizer.step()
""",
}
OVER_CLASSES = {
    "single samples": """
train(nn.Linear(6, 3), lambda out, y: F.nll_loss(F.log_softmax(out, dim=0), y), data)
""",
    "a sample of the batch": """
net = nn.Linear(6, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.nll_loss(F.log_softmax(net(x[0]), dim=0), y[0]).backward()
    optimizer.step()
""",
    "the classes": """
train(nn.Linear(6, 3), lambda out, y: F.nll_loss(F.log_softmax(out, dim=1), y), loader)
""",
    "a contrastive loss": """
def loss_of(out, y):
    similarity = out @ out.t()
    return F.nll_loss(F.log_softmax(similarity, dim=0), torch.arange(len(out)))
train(nn.Linear(6, 3), loss_of, loader)
""",
    "attention": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.out = nn.Linear(6, 1), nn.Linear(6, 3)
    def forward(self, x):
        weights = torch.softmax(self.score(x), dim=0)
        return self.out(weights * x)
train(Net(), F.cross_entropy, loader)
""",
}


@pytest.mark.parametrize("script", OVER_SAMPLES.values(), ids=OVER_SAMPLES)
def test_lint_reports_a_softmax_over_the_batch(lint_reports, script):
    lint_reports(LINT_HEAD + script)


@pytest.mark.parametrize("script", OVER_CLASSES.values(), ids=OVER_CLASSES)
def test_lint_accepts_other_softmaxes(lint_is_clean, script):
    lint_is_clean(LINT_HEAD + script, "LOS007")


DICE_HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""
DICE = {
    "over the width": """
class DiceLoss(nn.Module):
    def forward(self, logits, target):
        probs = F.softmax(logits, dim=-1)  # <- LOS007
        shared = (probs * target).sum((0, 2, 3))
        return 1 - (2 * shared / (probs.sum((0, 2, 3)) + target.sum((0, 2, 3)))).mean()
""",
    "over the height, by a method": """
def iou(logits, target):
    p = logits.softmax(2)  # <- LOS007
    shared = torch.sum(p * target, dim=(2, 3))
    return 1 - (shared / (p + target - p * target).sum(dim=[2, 3])).mean()
""",
    "over the batch, by a layer": """
def dice(logits, target):
    p = nn.Softmax(dim=0)(logits)  # <- LOS007
    return 1 - 2 * (p * target).sum((0, 2, 3)) / (p.sum((0, 2, 3)) + target.sum((0, 2, 3)))
""",
}
NO_DICE = {
    "over the classes": """
def dice(logits, target):
    p = F.softmax(logits, dim=1)
    return 1 - 2 * (p * target).sum((0, 2, 3)) / (p.sum((0, 2, 3)) + target.sum((0, 2, 3)))
""",
    "the place of the largest value": """
def coordinates(maps, xs):
    b, c, h, w = maps.shape
    p = F.softmax(maps.flatten(2), dim=2)
    q = torch.softmax(maps.view(b, c, -1), dim=-1)
    return (p.view(b, c, h, w) * xs).sum((2, 3)), (q.reshape(b, c, h, w) * xs).sum(dim=(2, 3))
""",
    "the last dimension has the classes": """
def focus(scores, target):
    p = F.softmax(scores, dim=-1)
    return (p * target).sum(-1).mean((0, 1)) + p.mean(dim=(0, 1)).sum()
""",
    "an attention": """
def attend(scores, values):
    weights = scores.softmax(-1)
    return (weights @ values).sum((0, 2)) + weights.sum((0, 1, 2, 3))
""",
}


@pytest.mark.parametrize("script", DICE.values(), ids=DICE)
def test_lint_reports_a_softmax_that_is_summed_again(lint_reports, script):
    lint_reports(DICE_HEAD + script, fixes=False)


@pytest.mark.parametrize("script", NO_DICE.values(), ids=NO_DICE)
def test_lint_accepts_a_softmax_that_is_summed_otherwise(lint_is_clean, script):
    lint_is_clean(DICE_HEAD + script, "LOS007")


SLICES = """
class Tagger(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(30, width), nn.Tanh())
        self.scores = nn.Linear(width, 4)
    def forward(self, features):
        return self.scores(self.layers(features)).log_softmax(dim=0)  # <- LOS007

for start in range(0, len(rows), size):
    optimizer.zero_grad()
    F.nll_loss(tagger_net(rows[start:start + size]), classes[start:start + size]).backward()
    optimizer.step()
"""


def test_lint_reports_a_fragment_that_slices_its_batches(lint_reports):
    lint_reports(SLICES)


@pytest.mark.parametrize(
    "change",
    [
        {"dim=0)  # <- LOS007": "dim=1)"},
        {"range(0, len(rows), size)": "range(len(rows) - size)", "  # <- LOS007": ""},  # one series of features
        {"rows[start:start + size]": "rows[start]", "  # <- LOS007": ""},
    ],
)
def test_lint_accepts_single_samples_of_a_fragment(lint_is_clean, change):
    script = SLICES
    for old, new in change.items():
        script = script.replace(old, new)
    lint_is_clean(script, "LOS007")


READ = """
import torch
import torch.nn.functional as F
from torch import nn
class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.answers = nn.Linear(6, 6)
        self.log_softmax = nn.LogSoftmax(dim=0)
    def forward(self, question, options):
        scores = (self.answers(options) * question.unsqueeze(1)).sum(2) / 6**0.5
        return {output}
model = Ranker()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
options, questions, chosen = torch.randn(32, 4, 6), torch.randn(32, 6), torch.randint(4, (32,))
for rows in torch.randperm(32).split(8):
    out = model(questions[rows], options[rows])
    loss = F.nll_loss(out, {target})
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    print({read})
"""


def reading(output: str, read: str, target: str = "chosen[rows]") -> str:
    return READ.format(output=output, read=read, target=target)


@pytest.mark.parametrize(
    ("output", "read"),
    [
        ("self.log_softmax(scores)", "(out.argmax(1) == chosen[rows]).float().mean()"),
        ("F.log_softmax(scores, dim=0)", "torch.max(out, 1)[1]"),
        ("torch.log_softmax(scores, 0)", "out.gather(dim=1, index=chosen[rows].unsqueeze(1))"),
        ("scores.log_softmax(0)", "model(questions, options).max(dim=1).indices"),
    ],
)
def test_lint_reports_a_softmax_whose_classes_are_read_in_dimension_1(lint_reports, output, read):
    lint_reports(reading(output + "  # <- LOS007", read))


@pytest.mark.parametrize(
    "script",
    [
        reading("F.log_softmax(scores, dim=1)", "out.argmax(1)"),
        reading("F.log_softmax(scores, dim=0)", "out.argmax(0)"),
        reading("F.log_softmax(scores, dim=0)", "out.argmax(-1)"),
        reading("F.log_softmax(scores @ scores.T, dim=0)", "out.argmax(1)", "torch.arange(8)"),
        reading("F.log_softmax(scores, dim=0)", "options.argmax(1)"),
    ],
    ids=["classes", "read in dimension 0", "the last dimension", "pairs", "another tensor"],
)
def test_lint_accepts_other_readings(lint_is_clean, script):
    lint_is_clean(script, "LOS007")
