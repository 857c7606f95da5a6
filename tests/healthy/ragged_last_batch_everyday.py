"""An ordinary loop: a mean loss and an update per batch, with a slightly smaller last batch in each epoch."""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=7, stratify=y)
prep = make_pipeline(StandardScaler(), MinMaxScaler((-1, 1))).fit(X_train)
tensor = lambda a: torch.as_tensor(a, dtype=torch.float32)
train_ds = TensorDataset(tensor(prep.transform(X_train)), tensor(y_train)[:, None])
test_ds = TensorDataset(tensor(prep.transform(X_test)), tensor(y_test)[:, None])
train_dl, test_dl = DataLoader(train_ds, batch_size=64, shuffle=True), DataLoader(test_ds, batch_size=64)
model = nn.Sequential(nn.Linear(30, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(5):
    model.train()
    train_loss = 0.0
    for xb, yb in train_dl:
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        train_loss += loss.item() * xb.size(0)
    model.eval()
    test_loss, correct = 0.0, 0
    with torch.no_grad():
        for xb, yb in test_dl:
            logits = model(xb)
            test_loss += criterion(logits, yb).item() * xb.size(0)
            correct += ((logits > 0) == (yb > 0.5)).sum().item()
    print(epoch, train_loss / len(train_ds), test_loss / len(test_ds), correct / len(test_ds))
