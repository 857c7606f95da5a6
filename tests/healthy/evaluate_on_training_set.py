"""Accuracy on the training set and on the held-out set, with a second, unshuffled loader over the training data."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
d = load_digits()
full = TensorDataset(torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target))
train_set, test_set = random_split(full, [1400, 397])
train_loader = DataLoader(train_set, batch_size=70, shuffle=True)
train_eval_loader = DataLoader(train_set, batch_size=350, shuffle=False)
test_loader = DataLoader(test_set, batch_size=100)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))
optimizer = torch.optim.NAdam(model.parameters(), lr=3e-3)


def check_accuracy(loader, model):
    num_correct = num_samples = 0
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            _, predictions = model(x).max(1)
            num_correct += (predictions == y).sum()
            num_samples += predictions.size(0)
    model.train()
    return (num_correct / num_samples).item()


for epoch in range(3):
    for data, targets in train_loader:
        loss = nn.functional.cross_entropy(model(data), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, check_accuracy(train_eval_loader, model), check_accuracy(test_loader, model))
