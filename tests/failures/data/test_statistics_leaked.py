"""DAT002: features scaled with statistics of held-out samples."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split

x = torch.randn(500, 6) * torch.tensor([1.0, 20.0, 0.1, 3.0, 5.0, 9.0]) + torch.tensor([0.0, 5.0, 1.0, 90.0, -2.0, 3.0])
y = x[:, :1] * 2
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def fit(train_loader, val_loader, epochs=1):
    for epoch in range(epochs):
        model.train()
        for a, b in train_loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            print(sum(nn.functional.mse_loss(model(a), b).item() for a, b in val_loader))
"""

FAULTY = {
    "scaled, then sliced": """
x = (x - x.mean(0)) / x.std(0)
train_loader = DataLoader(TensorDataset(x[:400], y[:400]), 50, shuffle=True)  # <- DAT002
fit(train_loader, DataLoader(TensorDataset(x[400:], y[400:]), 50))
""",
    "scaled, then split": """
def scale(a):
    return (a - a.mean(dim=0, keepdim=True)) / (a.std(dim=0, keepdim=True) + 1e-8)
train_set, held_out = random_split(TensorDataset(scale(x), y), [400, 100])
train_loader = DataLoader(train_set, 50, shuffle=True)  # <- DAT002
fit(train_loader, DataLoader(held_out, 50), epochs=2)
""",
    "by scikit-learn, in numpy": """
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
a = StandardScaler().fit_transform(x.numpy()).astype("float32")
a_train, a_test, b_train, b_test = train_test_split(a, y.numpy(), test_size=0.2, random_state=0)

class Table(Dataset):
    def __init__(self, a, b):
        self.a, self.b = a, b
    def __len__(self):
        return len(self.a)
    def __getitem__(self, i):
        return torch.from_numpy(self.a[i]), torch.from_numpy(self.b[i])

def main():
    train_loader = DataLoader(Table(a_train, b_train), 50, shuffle=True)  # <- DAT002
    fit(train_loader, DataLoader(Table(a_test, b_test), 50))
main()
""",
    "as one number, three parts": """
x = torch.rand(500, 6) * 255
y = x[:, :1] / 255
x = (x - x.mean()) / x.std()
parts = [TensorDataset(x[i:j], y[i:j]) for i, j in ((0, 350), (350, 420), (420, 500))]
train_loader = DataLoader(parts[0], 50, shuffle=True)  # <- DAT002
val_loader, test_loader = DataLoader(parts[1], 50), DataLoader(parts[2], 50)
fit(train_loader, val_loader)
fit(train_loader, test_loader)
""",
}

CORRECT = {
    "statistics of the training part": """
m, s = x[:400].mean(0), x[:400].std(0)
x = (x - m) / s
fit(DataLoader(TensorDataset(x[:400], y[:400]), 50, shuffle=True), DataLoader(TensorDataset(x[400:], y[400:]), 50))
""",
    "each part with its own statistics": """
a, b = x[:400], x[400:]
a, b = (a - a.mean(0)) / a.std(0), (b - b.mean(0)) / b.std(0)
fit(DataLoader(TensorDataset(a, y[:400]), 50, shuffle=True), DataLoader(TensorDataset(b, y[400:]), 50))
""",
    "nothing held out": """
x = (x - x.mean(0)) / x.std(0)
loader = DataLoader(TensorDataset(x, y), 50, shuffle=True)
fit(loader, DataLoader(TensorDataset(x, y), 50))
""",
    "a part of the training set measured": """
x = (x - x.mean(0)) / x.std(0)
data = TensorDataset(x, y)
fit(DataLoader(data, 50, shuffle=True), DataLoader(Subset(data, range(100)), 50))
""",
    "fixed constants": """
x = torch.rand(500, 6)
x = (x - 0.5) / 0.25
data = TensorDataset(x, y)
train_set, held_out = random_split(data, [400, 100])
fit(DataLoader(train_set, 50, shuffle=True), DataLoader(held_out, 50))
""",
    "a balanced design": """
bits = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 6)
data = TensorDataset(bits, bits.prod(1, keepdim=True))
train_set, held_out = random_split(data, [48, 16])
fit(DataLoader(train_set, 8, shuffle=True), DataLoader(held_out, 8))
""",
    "centred by its publisher": """
from sklearn.datasets import load_diabetes
a, b = load_diabetes(return_X_y=True)
data = TensorDataset(torch.tensor(a[:, :6], dtype=torch.float32), torch.tensor(b, dtype=torch.float32)[:, None] / 100)
train_set, held_out = random_split(data, [342, 100])
fit(DataLoader(train_set, 50, shuffle=True), DataLoader(held_out, 50))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)
