"""LRN002 in the source: standardised values as targets of a sigmoid, tanh or ReLU."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""
IMAGES = """
from torchvision import datasets, transforms

transform = transforms.Compose([{steps}])
loader = torch.utils.data.DataLoader(datasets.MNIST(".", transform=transform), batch_size=8)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 8), nn.ReLU())
        self.decoder = nn.Sequential(nn.Linear(8, 784){end})

    def forward(self, x):
        return self.decoder(self.encoder(x))


def train():
    model, criterion = Autoencoder().cuda(), nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters())
    for images, labels in loader:
        images = images.view(images.size(0), -1).cuda()
        target = {target}
        loss = criterion(model(images), target)  # <- LRN002
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
HALF = "transforms.ToTensor(), transforms.Normalize((0.5,), (0.5,))"
IMAGENET = "transforms.ToTensor(), transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])"
TABLE = """
def train(x, y, model):
    x = (x - x.mean(dim=0)) / x.std(dim=0)
    y = (y - y.mean()) / y.std()
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1){end})
    optimizer = torch.optim.Adam(net.parameters())
    for rows in torch.randperm(len(x)).split(32):
        loss = {loss}  # <- LRN002
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
FAULTY = {
    "a sigmoid": IMAGES.format(steps=HALF, end=", nn.Sigmoid()", target="images"),
    "a ReLU": IMAGES.format(steps=HALF, end=", nn.ReLU(True)", target="images"),
    "a tanh": IMAGES.format(steps=IMAGENET, end=", nn.Tanh()", target="images"),
    "a table": TABLE.format(end=", nn.Sigmoid()", loss="F.mse_loss(net(x[rows]), y[rows])"),
    "an absolute loss": TABLE.format(end=", nn.ReLU()", loss="F.l1_loss(net(x[rows]).squeeze(1), y[rows].view(-1))"),
}
CORRECT = {
    "in the range": IMAGES.format(steps=HALF, end=", nn.Tanh()", target="images"),
    "not normalised": IMAGES.format(steps="transforms.ToTensor()", end=", nn.Sigmoid()", target="images"),
    "scaled back": IMAGES.format(steps=HALF, end=", nn.Sigmoid()", target="(images + 1) / 2"),
    "no activation": IMAGES.format(steps=HALF, end="", target="images"),
    "other targets": IMAGES.format(steps=HALF, end=", nn.Sigmoid()", target="labels.float().view(-1, 1)"),
    "a linear output": TABLE.format(end="", loss="F.mse_loss(net(x[rows]), y[rows])"),
    "scaled to the range": TABLE.replace("(y - y.mean()) / y.std()", "(y - y.min()) / (y.max() - y.min())").format(
        end=", nn.Sigmoid()", loss="F.mse_loss(net(x[rows]), y[rows])"
    ),
    "a probability": TABLE.format(end=", nn.Sigmoid()", loss="F.mse_loss(net(x[rows]), (y[rows] > 0).float())"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_loss(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script.replace("  # <- LRN002", ""), "LRN002")
