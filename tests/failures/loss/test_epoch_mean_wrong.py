"""LOS012: the loss of an epoch divided by the wrong number."""

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
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
"""

FAULTY = {
    "a sum over samples by the batches": """
for epoch in range(2):
    total = 0.0
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        total += loss.item()* len(a)
    print(total / len(loader))  # <- LOS012
""",
    "in place": """
for epoch in range(2):
    total = 0.0
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        total += loss.item()
    total /= len(loader.dataset)  # <- LOS012
""",
}

CORRECT = {
    "a sum over batches": """
for epoch in range(2):
    total = 0.0
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(total / len(loader))
""",
    "a sum over samples": """
for epoch in range(2):
    total = 0.0
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(a)
    print(total / len(loader.dataset))
""",
    "sums": """
for epoch in range(2):
    total = 0.0
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b, reduction='sum')
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(total / len(loader.dataset))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


TWO_LOADERS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
x, y = torch.randn(160, 8), torch.randint(0, 2, (160,))
train_data, val_data = TensorDataset(x[:120], y[:120]), TensorDataset(x[120:], y[120:])
train_loader = DataLoader(train_data, batch_size=16, shuffle=True)
val_loader = DataLoader(val_data, batch_size=16)
model, criterion = nn.Linear(8, 2), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train():
    model.train()
    for a, b in train_loader:
        optimizer.zero_grad()
        criterion(model(a), b).backward()
        optimizer.step()
"""
OTHER_LOADER = {
    "of the training loader": """
for epoch in range(2):
    train()
    model.eval()
    val_loss = 0.0
    with torch.no_grad():
        for a, b in val_loader:
            val_loss += criterion(model(a), b).item()
    print(val_loss / len(train_loader))  # <- LOS012
""",
    "a function": """
def validate(net, loader):
    total = 0.0
    net.eval()
    with torch.no_grad():
        for a, b in loader:
            total += criterion(net(a), b).item()
    return total / len(train_loader)  # <- LOS012
train()
validate(model, val_loader)
""",
    "a class": """
class Trainer:
    def __init__(self, train_loader, val_loader):
        self.train_loader, self.val_loader = train_loader, val_loader
    def evaluate(self):
        model.eval()
        correct = 0
        with torch.no_grad():
            for a, b in self.val_loader:
                pred = model(a).argmax(1)
                correct += (pred == b).sum().item()
        return correct / len(self.train_loader.dataset)  # <- LOS012
train()
Trainer(train_loader, val_loader).evaluate()
""",
    "the dataset": """
train()
model.eval()
correct = 0
with torch.no_grad():
    for a, b in val_loader:
        pred = model(a).argmax(1)
        correct += (pred == b).sum().item()
accuracy = 100.0 * correct / len(train_data)  # <- LOS012
""",
    "a list": """
train()
model.eval()
losses = []
with torch.no_grad():
    for i, (a, b) in enumerate(val_loader):
        loss = criterion(model(a), b)
        losses.append(loss.item())
print(sum(losses) / len(train_loader))  # <- LOS012
""",
    "a number": """
batches = len(train_loader)
train()
model.eval()
val_loss = 0.0
with torch.no_grad():
    for a, b in val_loader:
        val_loss += criterion(model(a), b).item()
val_loss /= batches  # <- LOS012
""",
}
OWN_LOADER = {
    "one variable for two loops": """
total = 0.0
for a, b in train_loader:
    optimizer.zero_grad()
    loss = criterion(model(a), b)
    loss.backward()
    optimizer.step()
    total += loss.item()
print(total / len(train_loader))
total = 0.0
model.eval()
with torch.no_grad():
    for a, b in val_loader:
        total += criterion(model(a), b).item()
print(total / len(val_loader))
""",
    "a function that gets the loader": """
def evaluate(loader):
    total = 0.0
    model.eval()
    with torch.no_grad():
        for a, b in loader:
            total += criterion(model(a), b).item()
    return total / len(val_loader)
train()
evaluate(val_loader)
""",
    "an alias": """
test_loader = val_loader
train()
model.eval()
total = 0.0
with torch.no_grad():
    for a, b in test_loader:
        total += criterion(model(a), b).item()
print(total / len(val_loader), total / len(test_loader))
""",
    "a progress bar": """
from tqdm import tqdm
train()
val_batches = tqdm(val_loader, disable=True)
model.eval()
total = 0.0
with torch.no_grad():
    for a, b in val_batches:
        total += criterion(model(a), b).item()
print(total / len(val_loader))
""",
    "a loader for the same data": """
eval_train_loader = DataLoader(train_data, batch_size=64)
train()
model.eval()
correct = 0
with torch.no_grad():
    for a, b in eval_train_loader:
        correct += (model(a).argmax(1) == b).sum().item()
print(correct / len(train_loader.dataset), correct / len(train_data))
""",
    "validation samples out of the training set": """
train()
test_loader = DataLoader(val_data, batch_size=8)
model.eval()
correct = 0
with torch.no_grad():
    for a, b in test_loader:
        correct += (model(a).argmax(1) == b).sum().item()
print(correct / len(val_data))
""",
}


@pytest.mark.parametrize("script", OTHER_LOADER.values(), ids=OTHER_LOADER)
def test_lint_reports_the_length_of_another_loader(lint_reports, script):
    lint_reports(TWO_LOADERS + script)


@pytest.mark.parametrize("script", OWN_LOADER.values(), ids=OWN_LOADER)
def test_lint_accepts_the_length_of_the_own_loader(lint_is_clean, script):
    lint_is_clean(TWO_LOADERS + script, "LOS012")


LAST_INDEX = """
def train(model, loader, optimizer, criterion):
    total = 0.0
    for i, (x, y) in enumerate({items}):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
{after}
"""


@pytest.mark.parametrize(
    "after",
    ["    total /= i{mark}\n    return total", "    return total / i{mark}", "    print(f'{total / float(i)}'){mark}"],
)
def test_lint_reports_a_mean_over_the_last_index(lint_reports, after):
    script = LAST_INDEX.replace("{items}", "loader").replace("{after}", after)
    (found,) = lint_reports(script.replace("{mark}", "  # <- LOS012"))
    assert "one less" in found.message


@pytest.mark.parametrize(
    ("items", "after"),
    [
        ("loader", "    return total / (i + 1)"),
        ("loader, 1", "    return total / i"),
        ("loader, start=1", "    return total / i"),
        ("loader", "    i += 1\n    return total / i"),
        ("loader", "    for i in range(1, 3):\n        print(total / i)"),
        ("loader", "    i = len(loader)\n    return total / i"),
        ("loader", "        if i:\n            print(total / i)"),
    ],
)
def test_lint_accepts_other_counts(lint_is_clean, items, after):
    lint_is_clean(LAST_INDEX.replace("{items}", items).replace("{after}", after), "LOS012")


DIVIDED_LOSS = """
from torch import nn
from tqdm import tqdm
def train(net, loader, args, optimizer):
    criterion = {criterion}
    losses, total = [], 0.0
    bar = tqdm(loader)
    for x, y in bar:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        {added}
    return total
"""


@pytest.mark.parametrize(
    "added",
    [
        "total += loss.item() / args.batch_size  # <- LOS012",
        "losses.append(loss.item() / x.size(0))  # <- LOS012",
        "share = loss.item() / args.batch_size  # <- LOS012\n        losses.append(share)",
        "total += float(loss) / len(y)  # <- LOS012",
    ],
)
@pytest.mark.parametrize("criterion", ["nn.MSELoss()", "nn.CrossEntropyLoss().cuda()"])
def test_lint_reports_a_mean_that_is_divided_by_the_batch_size(lint_reports, criterion, added):
    lint_reports(DIVIDED_LOSS.replace("{criterion}", criterion).replace("{added}", added))


@pytest.mark.parametrize(
    ("criterion", "added"),
    [
        ('nn.MSELoss(reduction="sum")', "total += loss.item() / args.batch_size"),
        ("make_criterion(args)", "total += loss.item() / args.batch_size"),
        ("nn.MSELoss()", "total += loss.item() / len(loader)"),
        ("nn.MSELoss()", "total += loss.item() / args.accumulation"),
        ("nn.MSELoss()", "total += loss.item() * x.size(0)"),
        ("nn.MSELoss()", "loss = loss * len(x)\n        total += loss.item() / len(x)"),
    ],
)
def test_lint_accepts_other_divisions_of_a_loss(lint_is_clean, criterion, added):
    lint_is_clean(DIVIDED_LOSS.replace("{criterion}", criterion).replace("{added}", added), "LOS012")


def test_lint_accepts_one_of_several_losses(lint_is_clean):
    """The one for evaluation may add up the losses of the samples."""
    script = """
def evaluate(model, loader, criteria):
    total, count = 0.0, 0
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            total += criteria[1](model(x), y).item()
            count += len(x)
    return total / count
"""
    lint_is_clean(script, "LOS012")


OF_DATASET = """
import torch
from torch import nn
from torch.utils.data import DataLoader
loader = DataLoader(train_set, batch_size=32, shuffle=True)
criterion = nn.CrossEntropyLoss()
total = 0.0
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    total += loss.item()
print(total / len(train_set))  # <- LOS012
"""


@pytest.mark.parametrize("created", ["DataLoader(train_set, ", "DataLoader(dataset=train_set, "])
def test_lint_reports_a_mean_over_the_length_of_the_dataset(lint_reports, created):
    lint_reports(OF_DATASET.replace("DataLoader(train_set, ", created))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("+= loss.item()", "+= loss.item() * len(x)"),
        ("CrossEntropyLoss()", "CrossEntropyLoss(reduction='sum')"),
        ("batch_size=32", "batch_size=1"),
        ("/ len(train_set)", "/ len(epochs)"),
    ],
)
def test_lint_accepts_other_totals_of_a_dataset(lint_is_clean, old, new):
    lint_is_clean(OF_DATASET.replace(old, new).replace("  # <- LOS012", ""), "LOS012")


TWO_SCALES = """
def run(model, train_loader, val_loader, criterion, optimizer):
    for epoch in range(5):
        train_loss, val_loss, seen = 0.0, 0.0, 0
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            train_loss += loss.item()
        with torch.no_grad():
            for x, y in val_loader:
                loss = criterion(model(x), y)
                val_loss += loss.item()
                seen += 1
        AFTER
"""
SCALES = {
    "in one line": 'print(f"{epoch} {train_loss / len(train_loader)} {val_loss:.3f}")  # <- LOS012',
    "logged": 'train_loss /= len(train_loader)\n        writer.add_scalar("train", train_loss, epoch)\n'
    '        writer.add_scalar("val", val_loss, epoch)  # <- LOS012',
    "rounded": 'print(train_loss / len(train_loader))\n        print("val", round(val_loss, 3))  # <- LOS012',
}
SAME_SCALE = {
    "both means": "print(train_loss / len(train_loader), val_loss / len(val_loader))",
    "both sums": "print(train_loss, val_loss)",
    "a mean later": "print(train_loss / len(train_loader), val_loss)\n        val_loss = val_loss / seen",
    "a mean by a function": "print(train_loss / len(train_loader), average(val_loss, seen))",
    "not shown": "print(train_loss / len(train_loader))\n        if val_loss < best:\n            best = val_loss",
}


@pytest.mark.parametrize("after", SCALES.values(), ids=SCALES)
def test_lint_reports_a_sum_next_to_a_mean(lint_reports, after):
    lint_reports(TWO_SCALES.replace("AFTER", after))


@pytest.mark.parametrize("after", SAME_SCALE.values(), ids=SAME_SCALE)
def test_lint_accepts_losses_on_one_scale(lint_is_clean, after):
    lint_is_clean(TWO_SCALES.replace("AFTER", after), "LOS012")


def test_lint_accepts_the_sum_of_one_batch(lint_is_clean):
    head = "val_loader = DataLoader(val_set, batch_size=len(val_set))\n"
    after = SCALES["in one line"].replace("  # <- LOS012", "")
    lint_is_clean(head + TWO_SCALES.replace("AFTER", after), "LOS012")
