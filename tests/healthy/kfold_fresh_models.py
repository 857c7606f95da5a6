"""Five-fold cross-validation: a new model and a new optimizer for every fold; scaling fitted within the fold."""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def build_model():
    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))


def fit(dataset, epochs=3):
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss_fn = nn.BCEWithLogitsLoss()
    model.train()
    for _ in range(epochs):
        for x, y in DataLoader(dataset, batch_size=65, shuffle=True, drop_last=True):
            optimizer.zero_grad()
            loss_fn(model(x).squeeze(1), y).backward()
            optimizer.step()
    return model


def score(model, dataset):
    model.eval()
    with torch.inference_mode():
        hits = [((model(x).squeeze(1) > 0) == y.bool()).sum().item() for x, y in DataLoader(dataset, batch_size=200)]
    return sum(hits) / len(dataset)


torch.manual_seed(0)
X, y = load_breast_cancer(return_X_y=True)
scores = []
for fold, (tr, te) in enumerate(StratifiedKFold(5, shuffle=True, random_state=0).split(X, y)):
    scaler = StandardScaler().fit(X[tr])
    full = TensorDataset(torch.tensor(scaler.transform(X), dtype=torch.float32), torch.tensor(y, dtype=torch.float32))
    scores.append(score(fit(Subset(full, tr.tolist())), Subset(full, te.tolist())))
    print(fold, scores[-1])
print(np.mean(scores))
