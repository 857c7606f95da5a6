"""Workers, a weighted sampler for an unbalanced problem, a custom collate, and a plain loader for the test set."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler


class Rare(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = (torch.rand(n, generator=g) < 0.1).long()
        self.x = torch.randn(n, 6, generator=g) + self.y.unsqueeze(1) * 1.5

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"features": self.x[i], "label": int(self.y[i])}


def collate(rows):
    return torch.stack([r["features"] for r in rows]), torch.tensor([r["label"] for r in rows])


def main():
    torch.manual_seed(0)
    train, test = Rare(600, 0), Rare(200, 1)
    counts = torch.bincount(train.y)
    sampler = WeightedRandomSampler((1.0 / counts)[train.y].tolist(), num_samples=600, replacement=True)
    train_loader = DataLoader(
        train, batch_size=60, sampler=sampler, num_workers=1, collate_fn=collate, persistent_workers=True
    )
    test_loader = DataLoader(test, batch_size=50, collate_fn=collate)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(2):
        model.train()
        for x, y in train_loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
    model.eval()
    tp = fn = 0
    with torch.no_grad():
        for x, y in test_loader:
            guess = model(x).argmax(1)
            tp += ((guess == 1) & (y == 1)).sum().item()
            fn += ((guess == 0) & (y == 1)).sum().item()
    print(loss.item(), tp / (tp + fn))


if __name__ == "__main__":
    main()
