"""EVL006, a note from lint only: means of batch means."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(161, 6)
y = x.sum(1, keepdim=True)
held_out = DataLoader(TensorDataset(x, y), batch_size=16)
model = nn.Linear(6, 1)
criterion = nn.MSELoss()
"""

LINT_BROKEN = {
    "a list": """
with torch.no_grad():
    losses = [criterion(model(a), b).item() for a, b in held_out]
print(sum(losses) / len(losses))  # <- EVL006
""",
    "a total": """
total = 0.0
with torch.inference_mode():
    for a, b in held_out:
        total += criterion(model(a), b).item()
print(f"{total / len(held_out):.3f}")  # <- EVL006
""",
    "a function, its loss by name": """
@torch.no_grad()
def validate(net, loader):
    net.eval()
    running = 0.0
    for a, b in loader:
        loss = F.mse_loss(net(a), b)
        running += loss.item()
    return running / len(loader)  # <- EVL006
validate(model, held_out)
""",
    "a class, with a progress bar": """
from tqdm import tqdm
class Tester:
    def __init__(self, data):
        self.loader = DataLoader(data, batch_size=64, num_workers=2)
    def run(self, net: nn.Module):
        loss_sum = 0
        with torch.no_grad():
            for a, b in tqdm(self.loader):
                loss_sum += F.cross_entropy(net(a), b).item()
        return loss_sum / len(self.loader)  # <- EVL006
""",
    "enumerated, in a tensor": """
total = torch.zeros(())
with torch.no_grad():
    for i, (a, b) in enumerate(held_out):
        total += F.l1_loss(model(a), b).detach()
mean = total / len(held_out)  # <- EVL006
""",
    "a loader with explicit defaults": """
loader = DataLoader(x, 32, drop_last=False)
total = 0
with torch.no_grad():
    for a in loader:
        total += F.mse_loss(model(a), a[:, :1]).item()
print(total / len(loader))  # <- EVL006
""",
}

LINT_CORRECT = {
    "over samples": """
total = 0.0
with torch.no_grad():
    for a, b in held_out:
        total += F.mse_loss(model(a), b, reduction="sum").item()
print(total / len(held_out.dataset))
""",
    "sums over the number of samples, by len of the data": """
data = TensorDataset(x, y)
total = 0.0
with torch.no_grad():
    for a, b in held_out:
        total += nn.MSELoss(reduction="sum")(model(a), b).item()
print(total / len(data))
""",
    "weighted by the batch size": """
total = 0.0
with torch.no_grad():
    for a, b in held_out:
        total += criterion(model(a), b).item() * len(a)
print(total / len(held_out.dataset))
""",
    "drop_last": """
even = DataLoader(TensorDataset(x, y), batch_size=16, drop_last=True)
total = 0.0
with torch.no_grad():
    for a, b in even:
        total += criterion(model(a), b).item()
print(total / len(even))
""",
    "one sample at a time": """
single = DataLoader(TensorDataset(x, y))
total = 0.0
with torch.no_grad():
    for a, b in single:
        total += criterion(model(a), b).item()
print(total / len(single))
""",
    "a running mean in training": """
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0.0
for a, b in held_out:
    sgd.zero_grad()
    loss = criterion(model(a), b)
    loss.backward()
    sgd.step()
    total += loss.item()
print(total / len(held_out))
""",
    "an unknown loader": """
@torch.no_grad()
def validate(net, loader: DataLoader):
    total = 0.0
    for a, b in loader:
        total += F.mse_loss(net(a), b).item()
    return total / len(loader)
""",
    "counted hits over samples": """
right = 0
with torch.no_grad():
    for a, b in held_out:
        right += (model(a).argmax(1) == b.squeeze(1)).sum().item()
print(right / len(held_out.dataset))
""",
}


@pytest.mark.parametrize("name", LINT_BROKEN)
def test_lint_reports_it(lint_reports, name):
    lint_reports(HEAD + LINT_BROKEN[name], fixes=False)


@pytest.mark.parametrize("name", LINT_CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, name):
    lint_is_clean(HEAD + LINT_CORRECT[name], "EVL006")
