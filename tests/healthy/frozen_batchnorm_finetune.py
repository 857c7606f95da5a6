"""Fine-tuning with a pretrained backbone: its BatchNorm stays in eval mode, its parameters are frozen."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        )

    def forward(self, x):
        return self.conv(x).flatten(1)


class Classifier(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(64, classes)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


def main():
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target)
    pre = DataLoader(TensorDataset(x[:600], (y[:600] > 4).long()), 64, shuffle=True)
    fine = DataLoader(TensorDataset(x[600:1200], y[600:1200]), 64, shuffle=True)
    backbone = Backbone()
    pretrain = nn.Sequential(backbone, nn.Linear(64, 2))
    opt = torch.optim.SGD(pretrain.parameters(), lr=0.1, momentum=0.9)
    pretrain.train()
    for images, labels in pre:
        opt.zero_grad()
        nn.functional.cross_entropy(pretrain(images), labels).backward()
        opt.step()

    for p in backbone.parameters():
        p.requires_grad = False
    model = Classifier(backbone, 10)
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for epoch in range(2):
        model.train()
        for images, labels in fine:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            acc = (model(x[1200:]).argmax(1) == y[1200:]).float().mean()
        print(epoch, loss.item(), acc.item())


main()
