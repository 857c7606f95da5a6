"""Transfer learning in the style of the tutorial: phases, deep copy of the best, a schedule per epoch."""

import copy

import torch
import torch.nn as nn
import torch.optim as optim
from sklearn.datasets import load_digits
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
datasets = {
    "train": TensorDataset(images[:1200], labels[:1200]),
    "val": TensorDataset(images[1200:1600], labels[1200:1600]),
}
dataloaders = {
    "train": DataLoader(datasets["train"], batch_size=60, shuffle=True),
    "val": DataLoader(datasets["val"], batch_size=100),
}
dataset_sizes = {phase: len(part) for phase, part in datasets.items()}


class SmallResNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
        )
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(8 * 16, classes)

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(x + self.block(x))
        x = nn.functional.max_pool2d(x, 2)
        return self.fc(self.drop(x.flatten(1)))


def validate(model, criterion):
    model.eval()
    running_loss, running_corrects = 0.0, 0
    with torch.no_grad():
        for inputs, targets in dataloaders["val"]:
            outputs = model(inputs)
            running_loss += criterion(outputs, targets).item() * inputs.size(0)
            running_corrects += (outputs.argmax(1) == targets).sum().item()
    return running_loss / dataset_sizes["val"], running_corrects / dataset_sizes["val"]


def train_model(model, criterion, optimizer, scheduler, num_epochs=4):
    best_model_wts = copy.deepcopy(model.state_dict())
    best_acc = 0.0
    model.train()
    for epoch in range(num_epochs):
        running_loss = 0.0
        for inputs, targets in dataloaders["train"]:
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = criterion(outputs, targets)
            loss.backward()
            optimizer.step()  # <- EVL002
            running_loss += loss.item() * inputs.size(0)
        scheduler.step()
        val_loss, val_acc = validate(model, criterion)
        print(f"{epoch}: train {running_loss / dataset_sizes['train']:.4f} val {val_loss:.4f} acc {val_acc:.4f}")
        if val_acc > best_acc:
            best_acc = val_acc
            best_model_wts = copy.deepcopy(model.state_dict())
    print(f"Best val Acc: {best_acc:4f}")
    model.load_state_dict(best_model_wts)
    return model


model_ft = SmallResNet()
optimizer_ft = optim.SGD(model_ft.parameters(), lr=0.05, momentum=0.9)
exp_lr_scheduler = lr_scheduler.StepLR(optimizer_ft, step_size=2, gamma=0.5)
train_model(model_ft, nn.CrossEntropyLoss(), optimizer_ft, exp_lr_scheduler)
