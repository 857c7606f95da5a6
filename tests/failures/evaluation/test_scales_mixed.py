"""EVL028: a prediction in the original scale that is compared with a scaled target, or the other way round."""

import pytest

HEAD = """
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import mean_absolute_error
from sklearn.preprocessing import MinMaxScaler, StandardScaler

model = torch.nn.Linear(4, 1)
x, y = np.random.randn(100, 4).astype("float32"), 50 + 9 * np.random.randn(100, 1).astype("float32")
y_train, y_test = y[:80], y[80:]
scaler = StandardScaler().fit(y_train)
mean, std = y_train.mean(), y_train.std()
"""

FAULTY = {
    "a metric": """
y_test_s = scaler.transform(y_test)
pred = model(torch.tensor(x[80:])).detach().numpy()
pred = scaler.inverse_transform(pred)
print(mean_absolute_error(y_test_s, pred))  # <- EVL028
""",
    "the targets converted back, not the predictions": """
class Data:
    def __init__(self):
        self.y_scaler = MinMaxScaler()
        self.targets = self.y_scaler.fit_transform(y)
    def evaluate(self, net):
        predicted = self.y_scaler.transform(net(x).reshape(-1, 1))
        actual = self.y_scaler.inverse_transform(self.targets)
        return np.abs(predicted - actual).mean()  # <- EVL028
""",
    "by hand": """
target = torch.tensor((y_test - mean) / std)
with torch.no_grad():
    out = model(torch.tensor(x[80:])) * std + mean
    print(F.l1_loss(out, target))  # <- EVL028
""",
    "flattened, in one line": """
truth = scaler.transform(y_test).flatten()
out = model(torch.tensor(x[80:])).detach()
print(((scaler.inverse_transform(out).ravel() - truth) ** 2).mean())  # <- EVL028
""",
}

TRAINED = """
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.tensor(x), torch.tensor(y)
"""
FAULTY |= {
    "trained on scaled targets, judged by the original ones": TRAINED
    + """
mu, sd = y[:80].mean(), y[:80].std()
for start in range(0, 80, 16):
    loss = F.mse_loss(model(x[start:start + 16]), (y[start:start + 16] - mu) / sd)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    print((model(x[80:]) - y[80:]).pow(2).mean().sqrt().item())  # <- EVL028
""",
    "the same, with split parts and a dataset": TRAINED
    + """
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset
a, b, ya, yb = train_test_split(x, y)
ya_scaled = (ya - ya.mean()) / ya.std()
for inputs, targets in DataLoader(TensorDataset(a, ya_scaled), batch_size=16, shuffle=True):
    loss = F.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    pred = model(b)
    print("MAE", mean_absolute_error(yb.numpy(), pred.numpy()))  # <- EVL028
""",
}
CORRECT = {
    "the same name in the loop that scales and in the training": """
class Table:
    def __init__(self, parts):
        self.train, self.val = [
            torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor((y - mean) / std)) for x, y in parts
        ]
def fit(data, net):
    optimizer = torch.optim.Adam(net.parameters())
    for x, y in torch.utils.data.DataLoader(data.train, 8):
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
fit(Table([(x[:80], y_train), (x[80:], y_test)]), model)
""",
    "converted back before the comparison": TRAINED
    + """
mu, sd = y[:80].mean(), y[:80].std()
for start in range(0, 80, 16):
    loss = F.mse_loss(model(x[start:start + 16]), (y[start:start + 16] - mu) / sd)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    pred = model(x[80:]) * sd + mu
    print((pred - y[80:]).pow(2).mean().sqrt().item(), (y[80:] - mu).pow(2).mean().sqrt().item())
""",
    "all targets scaled before": TRAINED
    + """
y = (y - y[:80].mean()) / y[:80].std()
for start in range(0, 80, 16):
    loss = F.mse_loss(model(x[start:start + 16]), y[start:start + 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    print((model(x[80:]) - y[80:]).pow(2).mean().sqrt().item())
""",
    "inputs scaled, targets not": TRAINED
    + """
x = (x - x[:80].mean(0)) / x[:80].std(0)
for start in range(0, 80, 16):
    loss = F.mse_loss(model(x[start:start + 16]), y[start:start + 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    print((model(x[80:]) - y[80:]).pow(2).mean().sqrt().item())
""",
    "the model converts back itself": TRAINED
    + """
class Scaled(torch.nn.Module):
    def __init__(self, inner, mu, sd):
        super().__init__()
        self.inner, self.mu, self.sd = inner, mu, sd
    def forward(self, x):
        return self.inner(x) * self.sd + self.mu
mu, sd = y[:80].mean(), y[:80].std()
for start in range(0, 80, 16):
    loss = F.mse_loss(model(x[start:start + 16]), (y[start:start + 16] - mu) / sd)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
final = Scaled(model, mu, sd)
with torch.no_grad():
    print((final(x[80:]) - y[80:]).pow(2).mean().sqrt().item())
""",
    "both converted back": """
y_test = scaler.transform(y_test)
pred = scaler.inverse_transform(model(torch.tensor(x[80:])).detach().numpy())
y_test = scaler.inverse_transform(y_test)
print(mean_absolute_error(y_test, pred))
""",
    "both scaled": """
target = torch.tensor(scaler.transform(y_test))
print(F.mse_loss(model(torch.tensor(x[80:])), target))
""",
    "two scalers": """
x_scaler = StandardScaler().fit(x)
print(mean_absolute_error(x_scaler.transform(x)[:, :1], scaler.inverse_transform(y)))
""",
    "the original targets": """
pred = scaler.inverse_transform(model(torch.tensor(x[80:])).detach().numpy())
print(mean_absolute_error(y[80:], pred))
""",
    "scaled in a loop": """
for name in ("a", "b"):
    y_test = scaler.transform(y_test) if name == "a" else scaler.inverse_transform(y_test)
    print(F.mse_loss(torch.tensor(scaler.inverse_transform(y_test)), torch.tensor(y_test)))
""",
    "noise added by hand": """
z = torch.randn(4) * std + mean
print(((z - mean) / std - torch.randn(4)).abs().mean())
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_mixed_scales(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_equal_scales(lint_is_clean, script):
    lint_is_clean(HEAD + script)
