"""Active learning: score a pool without updates, add the least certain samples to the training set, train a new model."""

import torch
from sklearn.datasets import make_classification
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
X, y = make_classification(600, 10, n_informative=5, random_state=0)
data = TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(y))
labelled, pool, test = list(range(40)), list(range(40, 500)), Subset(data, range(500, 600))
for round_ in range(4):
    model = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 2))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(4):
        for xb, yb in DataLoader(Subset(data, labelled), batch_size=20, shuffle=True):
            opt.zero_grad()
            nn.functional.cross_entropy(model(xb), yb).backward()
            opt.step()
    model.eval()
    with torch.no_grad():
        margin = torch.cat(
            [model(xb).softmax(1).max(1).values for xb, _ in DataLoader(Subset(data, pool), batch_size=115)]
        )
        right = sum((model(xb).argmax(1) == yb).sum().item() for xb, yb in DataLoader(test, batch_size=50))
    chosen = margin.argsort()[:20].tolist()
    labelled += [pool[i] for i in chosen]
    pool = [p for i, p in enumerate(pool) if i not in set(chosen)]
    print(round_, len(labelled), right / 100)
