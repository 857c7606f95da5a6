"""Logistic regression by LBFGS, with the closure that may be called several times per step."""

import torch
import torch.nn as nn
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

torch.manual_seed(0)
X, y = load_breast_cancer(return_X_y=True)
scaler = StandardScaler().fit(X[:400])
X_train, X_test = (torch.tensor(scaler.transform(a), dtype=torch.float32) for a in (X[:400], X[400:]))
y_train, y_test = (torch.tensor(a, dtype=torch.float32).unsqueeze(1) for a in (y[:400], y[400:]))

model = nn.Linear(30, 1)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=10, line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    loss = criterion(model(X_train), y_train) + 1e-3 * model.weight.square().sum()
    loss.backward()
    return loss


for it in range(5):
    loss = optimizer.step(closure)
    print(it, loss.item())
with torch.no_grad():
    print(((model(X_test) > 0) == (y_test > 0.5)).float().mean().item())
