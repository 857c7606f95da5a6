"""Train a small convolutional network on 8x8 handwritten digits, and keep the weights of its best epoch.

python classification.py --epochs 15
"""

import argparse
import copy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.norm = nn.BatchNorm2d(2 * width)
        self.dropout = nn.Dropout(0.5)
        self.fc1 = nn.Linear(2 * width * 2 * 2, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.norm(self.conv2(x))), 2)
        x = self.dropout(F.relu(self.fc1(x.flatten(1))))
        return self.fc2(x)


def split(dataset, held_out=0.3):
    """Return a training and a held-out part, with the same share of every class."""
    train, val = [], []
    labels = dataset.tensors[1]
    for digit in range(10):
        indices = (labels == digit).nonzero().flatten().tolist()
        cut = int(len(indices) * (1 - held_out))
        train += indices[:cut]
        val += indices[cut:]
    return Subset(dataset, train), Subset(dataset, val)


def train_epoch(model, loader, optimizer, scheduler):
    model.train()
    losses = []
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    loss, right = 0.0, 0
    for images, labels in loader:
        logits = model(images)
        loss += F.cross_entropy(logits, labels, reduction="sum").item()
        right += (logits.argmax(1) == labels).sum().item()
    return loss / len(loader.dataset), right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.005)
    args = parser.parse_args()
    torch.manual_seed(0)

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    dataset = TensorDataset(images, torch.tensor(digits.target))
    train_set, val_set = split(dataset)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=256)

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(train_loader))

    best, best_accuracy = None, 0.0
    for epoch in range(1, args.epochs + 1):
        train_loss = train_epoch(model, train_loader, optimizer, scheduler)
        val_loss, accuracy = evaluate(model, val_loader)
        print(f"epoch {epoch:2}  train loss {train_loss:.4f}  val loss {val_loss:.4f}  accuracy {accuracy:.3f}")
        if accuracy > best_accuracy:
            best, best_accuracy = copy.deepcopy(model.state_dict()), accuracy

    model.load_state_dict(best)
    val_loss, accuracy = evaluate(model, val_loader)
    print(f"best epoch: val loss {val_loss:.4f}  accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
