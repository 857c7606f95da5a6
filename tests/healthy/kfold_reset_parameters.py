"""K-fold by hand: one model is re-initialised with reset_parameters, and the optimizer is built again for each fold."""

import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

torch.manual_seed(42)


def reset_weights(m):
    if hasattr(m, "reset_parameters"):
        m.reset_parameters()


x = torch.randn(300, 5)
y = (x.prod(1) > 0).long()
dataset = TensorDataset(x, y)
network = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 2))
folds = torch.randperm(300).chunk(3)
results = {}
for fold, test_ids in enumerate(folds):
    train_ids = torch.cat([f for i, f in enumerate(folds) if i != fold])
    trainloader = DataLoader(dataset, batch_size=50, sampler=SubsetRandomSampler(train_ids.tolist()))
    testloader = DataLoader(dataset, batch_size=50, sampler=SubsetRandomSampler(test_ids.tolist()))
    network.apply(reset_weights)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for epoch in range(4):
        for inputs, targets in trainloader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(inputs), targets)
            loss.backward()
            optimizer.step()
    correct = 0
    network.eval()
    with torch.no_grad():
        for inputs, targets in testloader:
            correct += (network(inputs).argmax(1) == targets).sum().item()
    network.train()
    results[fold] = correct / len(test_ids)
print(results)
