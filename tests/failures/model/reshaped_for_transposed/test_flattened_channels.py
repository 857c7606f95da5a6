"""MDL017: outputs of convolutions that are cut into rows of classes."""

import pytest

HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F
"""

FAULTY = {
    "a net and a loss of functions": """
net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 5, 1))
optimizer = torch.optim.Adam(net.parameters())
for images, masks in loader:
    scores = net(images)
    loss = F.cross_entropy(scores.view(-1, 5), masks.view(-1))  # <- MDL017
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a sequence tagger": """
class Tagger(nn.Module):
    def __init__(self, tags):
        super().__init__()
        self.body = nn.Conv1d(40, 64, 5, padding=2)
        self.tags = nn.Conv1d(64, tags, 1)

    def forward(self, x):
        return self.tags(torch.relu(self.body(x)))

def step(tagger, criterion, batch, labels, tags):
    out = tagger(batch)
    return criterion(out.reshape(-1, tags), labels.flatten())  # <- MDL017

tagger, criterion = Tagger(9), nn.CrossEntropyLoss(ignore_index=-1)
optimizer = torch.optim.SGD(tagger.parameters(), lr=0.1)
for batch, labels in loader:
    optimizer.zero_grad()
    step(tagger, criterion, batch, labels, 9).backward()
    optimizer.step()
""",
    "a focal loss": """
class Focal(nn.Module):
    def forward(self, pred, gt):
        rows = pred.contiguous().view(-1, pred.size(1))  # <- MDL017
        log_p = F.log_softmax(rows, dim=1)
        log_p = log_p.gather(1, gt.view(-1, 1)).view(-1)
        return -((1 - log_p.exp()) ** 2 * log_p).mean()

class FCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.classify = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x):
        out = self.classify(F.relu(self.down(x)))
        return F.interpolate(out, size=x.shape[-2:], mode="bilinear")

model, focal = FCN(), Focal()
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    optimizer.zero_grad()
    focal(model(x), y).backward()
    optimizer.step()
""",
    "the loss within the model": """
class Seg(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
        self.up = nn.ConvTranspose2d(16, k, 2, stride=2)
        self.conv = nn.Conv2d(3, 16, 3, stride=2, padding=1)

    def forward(self, x, y=None):
        logits = self.up(self.conv(x).relu())
        if y is None:
            return logits
        flat = torch.reshape(logits, (-1, self.k))  # <- MDL017
        return F.nll_loss(F.log_softmax(flat, dim=-1), y.reshape(-1))

seg = Seg(7)
optimizer = torch.optim.Adam(seg.parameters())
for x, y in loader:
    optimizer.zero_grad()
    seg(x, y).backward()
    optimizer.step()
""",
    "a trainer": """
class Trainer:
    def __init__(self, net, classes):
        self.net, self.classes = net, classes
        self.loss_fn = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(net.parameters())

    def loss(self, x, y):
        out = self.net(x.unsqueeze(1)).float()
        out = out.view(-1, self.classes)  # <- MDL017
        return self.loss_fn(out, y.long().view(-1))

    def fit(self, batches):
        for x, y in batches:
            self.optimizer.zero_grad()
            self.loss(x, y).backward()
            self.optimizer.step()

Trainer(nn.Conv3d(1, 4, 3, padding=1), 4).fit(load())
""",
}

CORRECT = {
    "the classes are moved to the end": """
net = nn.Conv2d(3, 5, 1)
optimizer = torch.optim.Adam(net.parameters())
for images, masks in loader:
    rows = net(images).permute(0, 2, 3, 1).reshape(-1, 5)
    loss = F.cross_entropy(rows, masks.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "one position for each image": """
net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 5, 1))
optimizer = torch.optim.Adam(net.parameters())
for images, labels in loader:
    loss = F.cross_entropy(net(images).view(-1, 5), labels.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a classifier of convolutions only": """
class AllConvolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 10, 3, stride=2)
        self.last = nn.Conv2d(10, 10, 13)

    def forward(self, x):
        x = self.last(F.relu(self.first(x))).view(-1, 10)
        return F.log_softmax(x, dim=1)

net = AllConvolutional()
optimizer = torch.optim.Adam(net.parameters())
for images, labels in loader:
    loss = F.nll_loss(net(images), labels.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "features for a linear layer": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 20, 5, padding=2), nn.Linear(20 * 28 * 28, 10)

    def forward(self, x):
        x = self.conv(x)
        return self.fc(x.view(-1, 20 * 28 * 28))

net = Net()
optimizer = torch.optim.Adam(net.parameters())
for images, labels in loader:
    loss = F.cross_entropy(net(images).view(-1, 10), labels.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "tokens of a recurrent layer": """
class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.rnn = nn.Conv1d(8, 16, 3, padding=1), nn.GRU(16, 32, batch_first=True)
        self.out = nn.Linear(32, 50)

    def forward(self, x):
        return self.out(self.rnn(self.conv(x).transpose(1, 2))[0])

net = LM()
optimizer = torch.optim.Adam(net.parameters())
for x, y in loader:
    loss = F.cross_entropy(net(x).view(-1, 50), y.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "positions kept": """
net = nn.Conv2d(3, 5, 1)
optimizer = torch.optim.Adam(net.parameters())
for images, masks in loader:
    out = net(images)
    loss = F.cross_entropy(out.view(out.size(0), 5, -1), masks.view(masks.size(0), -1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_rows_of_several_positions(lint_reports, script):
    lint_reports(HEAD + script, fixes=None)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_rows_of_one_position(lint_is_clean, script):
    lint_is_clean(HEAD + script)
