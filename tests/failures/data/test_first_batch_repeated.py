"""DAT012: every step uses the first batch."""

import pytest

HEAD = """
import copy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=False)
"""

FAULTY = {
    "a while loop": """
step = 0
while step < 16:
    a, b = next(iter(loader))  # <- DAT012
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
    step += 1
""",
    "a loader in each step": """
def sample_batch(dataset):
    return next(iter(DataLoader(dataset, batch_size=16)))  # <- DAT012
dataset = TensorDataset(x, y)
for step in range(16):
    a, b = sample_batch(dataset)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(a), b)
    loss.backward()
    optimizer.step()
""",
    "in a function": """
def train_step(model, loader, optimizer):
    a, b = next(iter(loader))  # <- DAT012
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(a), b)
    loss.backward()
    optimizer.step()
for _ in range(16):
    train_step(model, loader, optimizer)
""",
    "an iterator in each step": """
for step in range(16):
    batches = iter(loader)  # <- DAT012
    a, b = next(batches)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
""",
}
FAULTY["settings of a dictionary"] = (
    "config = {'size': 16, 'shuffle': False}\n"
    "ordered = DataLoader(TensorDataset(x, y), batch_size=config['size'], shuffle=config['shuffle'])\n"
    + FAULTY["a while loop"].replace("iter(loader)", "iter(ordered)")
)

CORRECT = {
    "one batch on purpose": """
a, b = next(iter(loader))
for step in range(16):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
""",
    "one iterator": """
batches = iter(loader)
for step in range(9):
    a, b = next(batches)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
""",
    "a validation batch in each epoch": """
train_loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
for epoch in range(13):
    for a, b in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    a, b = next(iter(loader))
    with torch.no_grad():
        error = nn.functional.mse_loss(model(a), b)
""",
    "a shuffling loader": """
shuffling = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
for step in range(16):
    a, b = next(iter(shuffling))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
""",
    "a new pass after the last batch": """
batches = iter(loader)
for step in range(24):
    try:
        a, b = next(batches)
    except StopIteration:
        batches = iter(loader)
        a, b = next(iter(loader))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
""",
    "all samples": """
whole = DataLoader(TensorDataset(x, y), batch_size=len(x))
for step in range(16):
    a, b = next(iter(whole))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
""",
    "new samples at each index": """
class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, index):
        sample = torch.randn(8)
        return sample, sample.sum(0, keepdim=True)
noise = DataLoader(Noise(), batch_size=16)
for step in range(11):
    a, b = next(iter(noise))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)


BEFORE = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=16, shuffle=True)
x, y = next(iter(loader))
print(F.mse_loss(model(x), y))
"""
NOT_READ = {
    "a loop of a script": """
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)  # <- DAT012
    loss.backward()
    optimizer.step()
""",
    "enumerate": """
for number, (inputs, targets) in enumerate(loader):
    output = model(x)  # <- DAT012
    loss = F.mse_loss(output, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(number, loss.item())
""",
    "epochs": """
for epoch in range(3):
    for batch in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()  # <- DAT012
        optimizer.step()
""",
    "a function": """
def train(network, loader):
    sgd = torch.optim.SGD(network.parameters(), lr=0.1)
    first, wanted = next(iter(loader))
    print(network(first).shape)
    for a, b in loader:
        predicted = network(first)  # <- DAT012
        sgd.zero_grad()
        F.mse_loss(predicted, wanted).backward()
        sgd.step()
train(model, loader)
""",
    "a function with arguments": """
def train(network, sgd, sample, wanted, train_loader):
    network.train()
    for image, label in train_loader:
        sgd.zero_grad()
        F.mse_loss(network(sample), wanted).backward()  # <- DAT012
        sgd.step()
""",
}
NOT_READ["a batch that is moved to a device"] = NOT_READ["a loop of a script"].replace(
    "loader:\n", "loader:\n    inputs, targets = inputs.to('cpu'), targets.to('cpu').float()\n"
)
READ = {
    "a batch that is moved under another name": """
for inputs, targets in loader:
    x = inputs.to("cpu")
    optimizer.zero_grad()
    F.mse_loss(model(x), targets).backward()
    optimizer.step()
""",
    "the batch": """
for inputs, targets in loader:
    optimizer.zero_grad()
    F.mse_loss(model(inputs), targets).backward()
    optimizer.step()
""",
    "the batch under another name": """
for batch in loader:
    x, y = batch
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    "one batch on purpose": """
for _ in loader:
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    "targets only": """
for inputs, targets in loader:
    optimizer.zero_grad()
    F.mse_loss(model(x), targets).backward()
    optimizer.step()
""",
    "other data, drawn in the loop": """
others = iter(loader)
for batch, _ in loader:
    x, y = next(others)
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    "a copy into a fixed tensor": """
fixed = torch.zeros(16, 8)
for inputs, targets in loader:
    fixed.copy_(inputs)
    optimizer.zero_grad()
    F.mse_loss(model(fixed), y).backward()
    optimizer.step()
""",
    "an evaluation": """
for inputs, targets in loader:
    print(F.mse_loss(model(x), y).item())
""",
}


@pytest.mark.parametrize("name", NOT_READ)
def test_lint_reports_a_loop_that_does_not_read_its_batch(lint_reports, name):
    assert [each.severity for each in lint_reports(BEFORE + NOT_READ[name])] == ["warning"]


@pytest.mark.parametrize("name", READ)
def test_lint_accepts_a_loop_that_reads_its_batch(lint_is_clean, name):
    lint_is_clean(BEFORE + READ[name], "DAT012")


def test_lint_notes_a_fragment_whose_variables_are_undefined(lint_reports):
    found = lint_reports(BEFORE.partition("x, y =")[0] + NOT_READ["a loop of a script"])
    assert [each.severity for each in found] == ["note"]
