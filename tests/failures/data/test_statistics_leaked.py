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
from sklearn.decomposition import PCA
from sklearn.impute import KNNImputer
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


LINT_HEAD = """
import numpy as np
import torch
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import LabelEncoder, MinMaxScaler, StandardScaler
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split
x, y = np.load("x.npy"), np.load("y.npy")
n_train = int(0.8 * len(x))
"""
LINT_FAULTY = {
    "scikit-learn, then split": """
x = StandardScaler().fit_transform(x)  # <- DAT002
x_train, x_test, y_train, y_test = train_test_split(x, y)
""",
    "fit and transform": """
def load(frame):
    scaler = MinMaxScaler()
    scaler.fit(frame[["a", "b"]].values)
    values = scaler.transform(frame[["a", "b"]].values)  # <- DAT002
    return train_test_split(values, frame["y"].values, test_size=0.2)
""".replace("return train", "a, b, c, d = train"),
    "mean and deviation in variables": """
mean, std = x.mean(axis=0), x.std(axis=0)
data = TensorDataset(torch.tensor((x - mean) / std), torch.tensor(y))  # <- DAT002
train_set, val_set = random_split(data, [400, 100])
""",
    "a projection": """
z = PCA(20).fit_transform(x)  # <- DAT002
x_train, x_test, y_train, y_test = train_test_split(z, y)
""",
    "missing values": """
def load(table, y):
    filler = KNNImputer()
    table = filler.fit_transform(table)  # <- DAT002
    a, b, c, d = train_test_split(table, y)
    return torch.tensor(a), torch.tensor(b)
""",
    "a position": """
x = (x - np.mean(x, axis=0)) / np.std(x, axis=0)  # <- DAT002
train_x, test_x = x[:n_train], x[n_train:]
""",
    "windows of a series": """
scaler = MinMaxScaler(feature_range=(-1, 1))
series = scaler.fit_transform(x.reshape(-1, 1))  # <- DAT002
windows = np.array([series[i:i + 20] for i in range(len(series) - 20)])
train_windows = torch.tensor(windows[:n_train])
test_windows = torch.tensor(windows[n_train:])
""".replace("np.array([series[i:i + 20] for i in range(len(series) - 20)])", "make_windows(series, 20)"),
    "a dataset of a period": """
class Series(Dataset):
    def __init__(self, period="train", scaler=None):
        raw = read_data()
        self.scaler = scaler or MinMaxScaler().fit(raw)
        data = self.scaler.transform(raw)  # <- DAT002
        cut = int(len(data) * 0.7)
        self.samples = data[:cut] if period == "train" else data[cut - 24:]
""",
    "a dataset that is split later": """
class Table(Dataset):
    def __init__(self, x, y):
        self.x = (x - x.mean(0)) / x.std(0)  # <- DAT002
        self.y = y
def main():
    table = Table(x, y)
    train_set, val_set = random_split(table, [400, 100])
""",
    "two subsets": """
class Table(Dataset):
    def __init__(self, x, y):
        sc = StandardScaler()
        self.x, self.y = sc.fit_transform(x), y  # <- DAT002
table, order = Table(x, y), np.random.permutation(500)
train_set = Subset(table, order[:400])
val_set = Subset(table, order[400:])
""",
}
LINT_CORRECT = {
    "fitted on the training part": """
x_train, x_test, y_train, y_test = train_test_split(x, y)
scaler = StandardScaler()
x_train = scaler.fit_transform(x_train)
x_test = scaler.transform(x_test)
""",
    "the training part is split again": """
x_train, x_test, y_train, y_test = train_test_split(x, y)
x_train = StandardScaler().fit_transform(x_train)
x_train, x_val = train_test_split(x_train)
""",
    "statistics of the first part": """
mean, std = x[:n_train].mean(0), x[:n_train].std(0)
x = (x - mean) / std
train_x, test_x = x[:n_train], x[n_train:]
""",
    "a series, fitted on its first part": """
class Series(Dataset):
    def __init__(self, period="train"):
        raw = read_data()
        cut = int(len(raw) * 0.7)
        scaler = MinMaxScaler().fit(raw[:cut])
        data = scaler.transform(raw)
        self.samples = data[:cut] if period == "train" else data[cut:]
""",
    "each sample by its own mean": """
x = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
train_x, test_x = x[:n_train], x[n_train:]
""",
    "a projection for a plot": """
plot(PCA(2).fit_transform(x))
a, b, c, d = train_test_split(x, y)
""",
    "a projection of the training part": """
a, b, c, d = train_test_split(x, y)
pca = PCA(20).fit(a)
a, b = pca.transform(a), pca.transform(b)
""",
    "labels encoded": "y = LabelEncoder().fit_transform(y)\na, b, c, d = train_test_split(x, y)\n",
    "constants": "x = (x - 0.5) / 0.25\nx_train, x_test, y_train, y_test = train_test_split(x, y)\n",
    "the largest pixel": "x = x / x.max()\ntrain_x, test_x = x[:n_train], x[n_train:]\n",
    "advantages in two halves": """
def update(advantages, half):
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    return step(advantages[:half]) + step(advantages[half:])
""",
    "nothing is held out": """
class Table(Dataset):
    def __init__(self, x):
        self.x = (x - x.mean(0)) / x.std(0)
table = Table(x)
small = Subset(table, range(100))
""",
}


@pytest.mark.parametrize("name", LINT_FAULTY)
def test_lint_reports_scaling_before_the_split(lint_reports, name):
    (found,) = lint_reports(LINT_HEAD + LINT_FAULTY[name])
    assert "statistics of all samples" in found.message


@pytest.mark.parametrize("name", LINT_CORRECT)
def test_lint_accepts_correct_scaling(lint_is_clean, name):
    lint_is_clean(LINT_HEAD + LINT_CORRECT[name], "DAT002")


@pytest.mark.parametrize("name", CORRECT)
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    if "publisher" not in name:
        lint_is_clean(HEAD + CORRECT[name], "DAT002")


def test_scaling_the_targets_before_the_split_is_a_note():
    from trueloop.failures.data.statistics_leaked import FAILURE
    from trueloop.lint.check_file import ActiveRule, lint_text

    text = LINT_HEAD + "y = (y - y.mean()) / y.std()\ny_train, y_test = y[:400], y[400:]\n"
    rules = [ActiveRule(FAILURE, "statistics-leaked", FAILURE.rule)]
    assert [str(each.severity) for each in lint_text(text, "train.py", rules).findings] == ["note"]
    inputs = text.replace("y_", "x_").replace("y ", "x ").replace("y.", "x.").replace("y[", "x[")
    assert [str(each.severity) for each in lint_text(inputs, "train.py", rules).findings] == ["note"]
    series = inputs.replace("x_train, x_test", "window = 24\nx_train, x_test")
    assert [str(each.severity) for each in lint_text(series, "train.py", rules).findings] == ["warning"]


def test_parts_with_their_own_statistics_are_another_failure(run):
    script = """
a, b = x[:400], x[400:]
a, b = (a - a.mean(0)) / a.std(0), (b - b.mean(0)) / b.std(0)
fit(DataLoader(TensorDataset(a, y[:400]), 50, shuffle=True), DataLoader(TensorDataset(b, y[400:]), 50))
"""
    assert {each.code for each in run(HEAD + script).findings} == {"DAT013"}


RANGE = """
series = torch.arange(280) * 0.02 + torch.sin(torch.arange(280) / 8)
low, high = {}.min(), {}.max()
windows = ((series - low) / (high - low)).unfold(0, 9, 1)
train, test = windows[:200], windows[220:]
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(train[:, :8]), train[:, 8:]).backward()
    optimizer.step()
with torch.no_grad():
    print(nn.functional.mse_loss(model(test[:, :8]), test[:, 8:]).item())
"""


def test_the_range_of_all_samples_is_reported_without_a_loader(run, run_is_clean):
    found = run("import torch\nfrom torch import nn\n" + RANGE.format("series", "series")).findings
    assert [each.code for each in found] == ["DAT002"]
    assert "the training samples reach" in found[0].message
    run_is_clean("import torch\nfrom torch import nn\n" + RANGE.format("series[:208]", "series[:208]"))
