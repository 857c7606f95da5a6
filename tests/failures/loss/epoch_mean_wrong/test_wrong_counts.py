"""LOS012: totals over the wrong count."""

import pytest

FAULTY = {
    "the full dataset of a sampler": """
train_sampler = SubsetRandomSampler(rows[100:])
train_loader = DataLoader(data, batch_size=20, sampler=train_sampler)
for x, y in train_loader:
    loss = criterion(model(x), y)
    train_loss += loss.item() * x.size(0)
train_loss = train_loss / len(train_loader.dataset)  # <- LOS012
""",
    "both totals of the quickstart swapped": """
def test_loop(dataloader, model, loss_fn):
    size = len(dataloader.dataset)
    num_batches = len(dataloader)
    test_loss, correct = 0, 0
    with torch.no_grad():
        for X, y in dataloader:
            pred = model(X)
            test_loss += loss_fn(pred, y).item()
            correct += (pred.argmax(1) == y).type(torch.float).sum().item()
    test_loss /= size  # <- LOS012
    correct /= num_batches  # <- LOS012
""",
    "the counter of the loop": """
for i, (x, y) in enumerate(train_loader):
    _, pred = model(x).max(1)
    correct += pred.eq(y).sum().item()
    print(correct / (i + 1))  # <- LOS012
""",
    "a percentage of the batches": """
correct = 0
for x, y in loader:
    pred = model(x).argmax(1)
    correct += torch.sum(pred == y)
accuracy = 100.0 * correct / len(loader)  # <- LOS012
""",
    "a weighted sum over the batches": """
def evaluate(model, val_loader, criterion):
    total = 0.0
    for x, y in val_loader:
        loss = criterion(model(x), y)
        total += loss.item() * x.size(0)
    return total / len(val_loader)  # <- LOS012
""",
    "a mean of each batch over the samples": """
class Trainer:
    def epoch(self):
        running = 0.0
        for x, y in self.train_loader:
            loss = self.criterion(self.model(x), y)
            running += float(loss)
        return running / len(self.train_loader.dataset)  # <- LOS012
""",
    "classes that are not called predictions": """
c = 0
for a, b in loader:
    o = net(a)
    c += (o.argmax(1) == b).sum().item()
print(100 * c / len(loader))  # <- LOS012
""",
    "a batch size in a variable": """
for x, t in loader:
    n = len(x)
    total += n * float(criterion(model(x), t))
mean = total / len(loader)  # <- LOS012
""",
    "the length of a list of sums": """
for x, t in loader:
    losses.append(criterion(model(x), t).item() * x.size(0))
mean = sum(losses) / len(losses)  # <- LOS012
""",
    "a counter of batches": """
total, steps = 0.0, 0
for x, t in loader:
    total = total + criterion(model(x), t).item() * x.size(0)
    steps += 1
print(total / steps)  # <- LOS012
""",
    "a counter of samples": """
total, seen = 0.0, 0
for x, t in loader:
    total += criterion(model(x), t).item()
    seen += x.size(0)
print(total / seen)  # <- LOS012
""",
}

CORRECT = {
    "the samples of a sampler, counted": """
test_loader = DataLoader(data, batch_size=20, sampler=SubsetRandomSampler(test_rows))
correct, total = 0, 0
for inputs, targets in test_loader:
    correct += (model(inputs).argmax(1) == targets).sum().item()
    total += len(targets)
print(100.0 * correct / total)
""",
    "a list of batches that is joined before": """
targets, losses = [], []
for a, b in loader:
    losses.append(F.cross_entropy(model(a), b).item() * len(a))
    targets.append(b)
targets = torch.cat(targets)
mean_loss = sum(losses) / len(targets)
""",
    "the quickstart": """
def test_loop(dataloader, model, loss_fn):
    size = len(dataloader.dataset)
    num_batches = len(dataloader)
    test_loss, correct = 0, 0
    with torch.no_grad():
        for X, y in dataloader:
            pred = model(X)
            test_loss += loss_fn(pred, y).item()
            correct += (pred.argmax(1) == y).type(torch.float).sum().item()
    test_loss /= num_batches
    correct /= size
    return test_loss
""",
    "a sum of losses over the samples": """
def test(model, device, test_loader):
    test_loss = 0
    correct = 0
    for data, target in test_loader:
        output = model(data)
        test_loss += F.nll_loss(output, target, reduction='sum').item()
        pred = output.argmax(dim=1, keepdim=True)
        correct += pred.eq(target.view_as(pred)).sum().item()
    test_loss /= len(test_loader.dataset)
    print(100. * correct / len(test_loader.dataset))
""",
    "counted samples": """
for i, (x, y) in enumerate(train_loader):
    loss = criterion(model(x), y)
    train_loss += loss.item()
    total += y.size(0)
    correct += pred.eq(y).sum().item()
    print(train_loss / (i + 1), 100. * correct / total)
""",
    "times the batch size, without the last batch": """
loader = DataLoader(data, batch_size=batch_size, drop_last=True)
for x, y in loader:
    correct += (model(x).argmax(1) == y).sum().item()
acc = correct / (len(loader) * batch_size)
acc2 = correct / len(loader) / batch_size
""",
    "means over batches": """
for x, y in loader:
    acc += (model(x).argmax(1) == y).float().mean().item()
acc /= len(loader)
""",
    "weighted means over samples": """
for x, y in loader:
    loss = criterion(model(x), y)
    total += loss.item() * x.size(0)
total /= len(loader.dataset)
""",
    "padding tokens per batch": """
for ids in loader:
    pads += (ids == pad_id).sum().item()
print(pads / len(loader))
""",
    "batches of one sample": """
loader = DataLoader(ds, batch_size=1)
for x, y in loader:
    pred = model(x).argmax()
    correct += (pred == y).sum().item()
print(correct / len(loader))
""",
    "counters": """
total = seen = steps = mean = share = 0
for x, t in loader:
    total += criterion(model(x), t).item() * x.size(0)
    mean += criterion(model(x), t).item()
    share += (model(x).argmax(1) == t).sum().item() / len(t)
    seen += len(t)
    steps += 1
print(total / seen, mean / steps, share / steps)
""",
    "a loss that is multiplied in place": """
total = seen = 0
for x, t in loader:
    loss = criterion(model(x), t)
    loss *= x.size(0)
    total += loss.item()
    seen += x.size(0)
print(total / seen)
""",
    "a counter of single samples": """
right = seen = 0
for x, t in loader:
    for one, label in zip(model(x).argmax(1), t):
        right += (one == label).sum()
        seen += 1
print(right / seen)
""",
    "a loss of the program that adds up": """
def loss_fn(output, target):
    return (output - target).pow(2).sum()
for x, t in loader:
    total += loss_fn(model(x), t).item()
    seen += len(x)
print(total / seen)
""",
}

SMALLER = {
    "a product": """
for x, y in loader:
    correct += (model(x).argmax(1) == y).sum().item()
acc = 100 * correct / (len(loader) * batch_size)  # <- LOS012
""",
    "one after the other": """
for x, y in loader:
    correct += (model(x).argmax(1) == y).sum().item()
acc = correct / len(loader) / args.batch_size  # <- LOS012
""",
    "a setting, a variable": """
def evaluate(model, loader, config):
    n = config["batch_size"] * len(loader)
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
    return correct / n  # <- LOS012
""",
    "a number of batches": """
def evaluate(model, loader, batch_size):
    batches, correct = len(loader), 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
    return correct / (batches * batch_size)  # <- LOS012
""",
    "an object": """
class Score:
    def __init__(self, loader):
        self.loader, self.hits = loader, 0
    def add(self, correct):
        self.hits += int(correct.sum())
    def value(self):
        return self.hits / (len(self.loader) * self.loader.batch_size)  # <- LOS012
loader = DataLoader(data[:150], batch_size=64)
""",
    "a counter": """
for x, y in loader:
    correct += (model(x).argmax(1) == y).sum().item()
    total += batch_size  # <- LOS012
print(correct / total)
""",
    "MNIST in batches of 64": """
loader = DataLoader(torchvision.datasets.MNIST("data", train=False), batch_size=64)
for x, y in loader:
    correct += (model(x).argmax(1) == y).sum().item()
acc = correct / (len(loader) * loader.batch_size)  # <- LOS012
""",
    "a sum of scores, one for each image": """
def evaluate(net, loader, args):
    iou = 0.0
    for images, masks in loader:
        iou += iou_per_image(net(images), masks).sum().item()
    return iou / (len(loader) * args.batchsize)  # <- LOS012
""",
    "a summed loss in a variable": """
for x, y in loader:
    loss = F.mse_loss(model(x), y, reduction="sum")
    total += loss.item()
total /= len(loader) * batch_size  # <- LOS012
""",
    "means, times the size of each batch": """
for x, y in loader:
    mae += (model(x) - y).abs().mean().item() * x.size(0)
mae = mae / len(loader) / batch_size  # <- LOS012
""",
}
EQUAL = {
    "means, times the size of the full batches": """
for x, y in loader:
    total += criterion(model(x), y).item() * batch_size
mean = total / (len(loader) * batch_size)
""",
    "a sum over the features, then the mean": """
def mean_distance(loader, batch_size):
    total = 0
    for x, y in loader:
        total += (model(x) - y).abs().sum(1).mean().item()
    return total / (len(loader) * batch_size)
def count(loader):
    total = 0
    for x, y in loader:
        total += (model(x).argmax(1) == y).sum().item()
    return total / len(loader.dataset)
""",
    "a sum over the samples of the dataset": """
for x, y in loader:
    dice += dice_per_image(model(x), y).sum().item()
dice /= len(loader.dataset)
""",
    "sums, without the last batch": """
loader = DataLoader(data, batch_size, drop_last=True)
for x, y in loader:
    dice += dice_per_image(model(x), y).sum().item()
dice /= len(loader) * batch_size
""",
    "multiples": """
x = torch.randn(1000, 8)
loader = DataLoader(TensorDataset(x[:800], y[:800]), batch_size=50)
for a, b in loader:
    correct += (model(a).argmax(1) == b).sum().item()
acc = correct / (len(loader) * 50) + correct / (len(loader) * loader.batch_size)
""",
    "MNIST in batches of 100": """
parser.add_argument("--batch-size", type=int, default=100)
loader = DataLoader(torchvision.datasets.MNIST("data", train=False), batch_size=args.batch_size)
for x, y in loader:
    correct += (model(x).argmax(1) == y).sum().item()
acc = correct / (len(loader) * args.batch_size)
""",
    "the size of each batch": """
for x, y in loader:
    batch_size = x.size(0)
    correct += (model(x).argmax(1) == y).sum().item()
    total += batch_size
print(correct / total)
""",
    "the size that each batch has": """
for batch in loader:
    correct += (model(batch.x).argmax(1) == batch.y).sum().item()
    total += batch.batch_size
print(correct / total)
""",
    "a time": """
for x, y in loader:
    started = time.time()
    correct += (model(x).argmax(1) == y).sum().item()
    seconds += time.time() - started
per_sample = seconds / (len(loader) * batch_size)
print(correct, per_sample)
""",
    "the progress": """
for i, (x, y) in enumerate(loader):
    correct += (model(x).argmax(1) == y).sum().item()
    print(correct, i * batch_size / (len(loader) * batch_size))
""",
}

UNPACKED_MEAN = """
def run(loader, model):
    total = 0.0
    for step, batch in enumerate(loader):
        loss = model.calc_loss(*batch)
        loss.backward()
        total += loss.item()
    return total / len(loader.dataset)  # <- LOS012
"""
FAULTY["a loss that gets an unpacked batch"] = UNPACKED_MEAN
UNPACKED = UNPACKED_MEAN.replace("  # <- LOS012", "")
CORRECT |= {
    "an unpacked batch, over the batches": UNPACKED.replace(".dataset)", ")"),
    "an unpacked batch, times its size": UNPACKED.replace("item()", "item() * len(batch[0])"),
    "a sum over an unpacked batch": UNPACKED.replace("calc_loss", "calc_sum"),
    "a loss of the program that adds up": UNPACKED + """
def calc_loss(x, y):
    return (x - y).square().sum()
""",
}  # fmt: skip


@pytest.mark.parametrize("script", SMALLER.values(), ids=SMALLER)
def test_lint_reports_counts_over_full_batches(lint_reports, script):
    lint_reports(script)


EQUAL["multiples, by a dictionary"] = "config = {'batch_size': 50}" + EQUAL["multiples"].replace(
    "batch_size=50", "batch_size=config['batch_size']"
)


@pytest.mark.parametrize("script", EQUAL.values(), ids=EQUAL)
def test_lint_accepts_equal_batches(lint_is_clean, script):
    lint_is_clean(script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)


BY_HAND = """
import torch
criterion = torch.nn.{loss}
n = len(x)
batches = n // 32
def fit(model, optimizer):
    total = 0.0
    for {loop}:
        optimizer.zero_grad()
        loss = {value}
        loss.backward()
        optimizer.step()
        total += loss.item(){factor}
    return total / {divisor}
"""
HAND_MADE = {
    "slices": ("start in range(0, n, 32)", "criterion(model(x[start : start + 32]), y[start : start + 32])", "n"),
    "the length itself": ("i in range(0, len(x), 32)", "criterion(model(x[i : i + 32]), y[i : i + 32])", "x.shape[0]"),
    "a number of batches": ("i in range(n // 32)", "criterion(model(x[i * 32 : i * 32 + 32]), y[i * 32 :])", "n"),
    "a split order": ("rows in torch.randperm(len(x)).split(32)", "criterion(model(x[rows]), y[rows])", "len(x)"),
    "a sum of means": (
        "rows in torch.randperm(len(x)).split(32)",
        "torch.mean(error(x[rows])) + 0.5 * penalty(model).mean()",
        "len(x)",
    ),
}


@pytest.mark.parametrize(("loop", "value", "divisor"), HAND_MADE.values(), ids=HAND_MADE)
def test_lint_reports_batch_means_divided_by_rows(lint_codes, loop, value, divisor):
    script = BY_HAND.format(loss="MSELoss()", loop=loop, value=value, factor="", divisor=divisor)
    assert "LOS012" in lint_codes(script)


@pytest.mark.parametrize(("loop", "value", "divisor"), HAND_MADE.values(), ids=HAND_MADE)
def test_lint_accepts_sums_divided_by_rows(lint_codes, loop, value, divisor):
    weighted = BY_HAND.format(loss="MSELoss()", loop=loop, value=value, factor=" * len(rows)", divisor=divisor)
    summed = value.replace("mean(", "sum(")
    added = BY_HAND.format(loss="MSELoss(reduction='sum')", loop=loop, value=summed, factor="", divisor=divisor)
    batches = BY_HAND.format(loss="MSELoss()", loop=loop, value=value, factor="", divisor="batches")
    assert all("LOS012" not in lint_codes(each) for each in (weighted, added, batches))


SHARES = {
    "in a list": """
loader = DataLoader(test_set, batch_size=BATCH_SIZE)
for x, y in loader:
    predicted = model(x).argmax(1)
    accuracies.append((y == predicted).sum().item() / BATCH_SIZE)  # <- LOS012
print(np.mean(accuracies))
""",
    "in a variable, as a percentage": """
test_loader = DataLoader(test_set, args.batch_size)
for x, y in test_loader:
    _, pred = torch.max(model(x), 1)
    acc = 100 * (pred == y).sum() / args.batch_size  # <- LOS012
    total += acc.item()
print(total / len(test_loader))
""",
    "a sum of PyTorch's mean loss": """
criterion = torch.nn.MSELoss()
loader = DataLoader(train_set, batch_size=32)
for x, y in loader:
    loss = criterion(model(x), y)
    total += loss.sum().item()
print(total / len(loader.dataset))  # <- LOS012
""",
    "a mean of several devices": """
loader = DataLoader(train_set, batch_size=32)
for x, y in loader:
    loss = criterion(model(x), y).mean()
    total += loss.item()
print(total / len(loader.dataset))  # <- LOS012
""",
}
SHARES_FINE = {
    "a full last batch": SHARES["in a list"].replace("BATCH_SIZE)\n", "BATCH_SIZE, drop_last=True)\n", 1),
    "the size of this batch": SHARES["in a list"].replace("/ BATCH_SIZE", "/ y.size(0)"),
    "its own batch size": SHARES["in a list"].replace("    pred", "    BATCH_SIZE = len(x)\n    pred"),
    "smaller ones are skipped": SHARES["in a list"].replace(
        "    pred", "    if len(x) < BATCH_SIZE:\n        continue\n    pred"
    ),
    "a loss per sample": SHARES["a sum of PyTorch's mean loss"].replace("MSELoss()", "MSELoss(reduction='none')"),
    "a loss of the program": SHARES["a sum of PyTorch's mean loss"].replace("torch.nn.MSELoss()", "OwnLoss()"),
}


@pytest.mark.parametrize("script", SHARES.values(), ids=SHARES)
def test_lint_reports_shares_of_full_batches(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", SHARES_FINE.values(), ids=SHARES_FINE)
def test_lint_accepts_other_shares(lint_is_clean, script):
    lint_is_clean(script.replace("  # <- LOS012", ""), "LOS012")
