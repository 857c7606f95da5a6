"""LOS036: dice and IoU losses of raw outputs."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
"""
FUNCTION = """
def dice_loss(pred, target, eps=1.0):
    inter = (pred * target).sum()
    return 1 - (2 * inter + eps) / (pred.sum() + target.sum() + eps)
"""
CLASS = """
class DiceLoss(nn.Module):
    def __init__(self, smooth=1.0):
        super().__init__()
        self.smooth = smooth
    def forward(self, inputs, targets):
        inputs, targets = inputs.view(-1), targets.view(-1)
        intersection = (inputs * targets).sum()
        dice = (2.0 * intersection + self.smooth) / (inputs.sum() + targets.sum() + self.smooth)
        return 1 - dice
"""
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(8, 1, 1)
    def forward(self, x):
        return self.head(self.body(x))
"""
FAULTY = {
    "a function": FUNCTION
    + """
net = nn.Conv2d(3, 1, 3, padding=1)
opt = torch.optim.Adam(net.parameters())
for x, y in loader:
    opt.zero_grad()
    loss = dice_loss(net(x), y)  # <- LOS036
    loss.backward()
    opt.step()
""",
    "a class": CLASS
    + NET
    + """
model, criterion = Net(), DiceLoss()
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    out = model(x)
    loss = criterion(out, y)  # <- LOS036
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "with a cross-entropy for logits": CLASS
    + """
class Trainer:
    def __init__(self, model):
        self.model, self.optimizer = model, torch.optim.Adam(model.parameters())
        self.dice, self.bce = DiceLoss(), nn.BCEWithLogitsLoss()
    def step(self, x, y):
        logits_or_not = self.model(x)
        loss = self.bce(logits_or_not, y) + 0.5 * self.dice(logits_or_not, y)  # <- LOS036
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
""",
    "a Tversky loss by keyword": NET
    + """
def tversky(outputs, masks, a=0.3, b=0.7):
    p, m = outputs.flatten(1), masks.flatten(1)
    tp = (p * m).sum(1)
    fp = (p * (1 - m)).sum(1)
    fn = ((1 - p) * m).sum(1)
    return (tp + 1) / (tp + a * fp + b * fn).clamp(min=1)
model = Net()
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    prediction = model(x)
    score = tversky(outputs=prediction, masks=y)  # <- LOS036
    total = (1 - score).mean()
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
""",
    "an F1 in a function of the program": NET
    + """
def soft_f1(y_hat, y):
    tp = torch.sum(y_hat * y, dim=0)
    precision = tp / (y_hat.sum(0) + 1e-8)
    recall = tp / (y.sum(0) + 1e-8)
    return (2 * precision * recall / (precision + recall + 1e-8)).mean()
def compute(model, x, y):
    return 1 - soft_f1(model(x), y)  # <- LOS036
model = Net()
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    loss = compute(model, x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}
TRAIN = """
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    optimizer.zero_grad()
    loss = dice_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""
CORRECT = {
    "probabilities, which a loss of probabilities gets too": FUNCTION
    + """
class Masks(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Conv2d(3, 1, 3, padding=1)
    def forward(self, x):
        return torch.sigmoid(self.out(x))
class Both(nn.Module):
    def forward(self, pred, target):
        return 0.5 * F.binary_cross_entropy(pred, target) + 0.5 * dice_loss(pred, target)
model, criterion = Masks(), Both()
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
""",
    "a sigmoid by the caller": FUNCTION
    + NET
    + """
model = Net()
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    out = model(x)
    loss = F.binary_cross_entropy_with_logits(out, y) + dice_loss(out.sigmoid(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a sigmoid in the loss": """
def dice_loss(pred, target, eps=1.0):
    pred = torch.sigmoid(pred)
    inter = (pred * target).sum()
    return 1 - (2 * inter + eps) / (pred.sum() + target.sum() + eps)
model = nn.Conv2d(3, 1, 1)
"""
    + TRAIN,
    "a sigmoid at the end of the model": FUNCTION
    + """
model = nn.Sequential(nn.Conv2d(3, 1, 1), nn.Sigmoid())
"""
    + TRAIN,
    "a sigmoid in the forward": FUNCTION
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(3, 1, 1)
    def forward(self, x):
        return torch.sigmoid(self.head(x))
model = Net()
"""
    + TRAIN,
    "a variable that is assigned again": FUNCTION
    + NET
    + """
model = Net()
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    out = model(x)
    bce = F.binary_cross_entropy_with_logits(out, y)
    out = torch.sigmoid(out)
    loss = bce + dice_loss(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a metric": NET
    + """
def dice(pred, target):
    return 2 * (pred * target).sum() / (pred.sum() + target.sum() + 1e-8)
model = Net()
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    out = model(x)
    loss = F.binary_cross_entropy_with_logits(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        print(dice((out > 0).float(), y))
""",
    "a model from elsewhere": FUNCTION
    + """
import segmentation
model = segmentation.unet(activation="sigmoid")
"""
    + TRAIN,
    "a cosine similarity": NET
    + """
def interaction(a, b):
    return (a * b).sum() / (a.square().sum() * b.square().sum()).sqrt()
model = Net()
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    loss = 1 - interaction(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a softmax chosen in the loss": """
class DiceLoss(nn.Module):
    def __init__(self, activation=None):
        super().__init__()
        self.activation = activation or nn.Sigmoid()
    def forward(self, inputs, targets):
        inputs = self.activation(inputs)
        intersection = (inputs * targets).sum()
        return 1 - 2 * intersection / (inputs.sum() + targets.sum())
dice_loss = DiceLoss()
model = nn.Conv2d(3, 1, 1)
"""
    + TRAIN,
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_raw_outputs(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_probabilities(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS036")
