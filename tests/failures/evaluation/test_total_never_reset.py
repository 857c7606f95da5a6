"""EVL009: sums over batches that are not reset in each epoch."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from tqdm import tqdm
import torchmetrics

train = DataLoader(data, batch_size=16, shuffle=True)
held_out = DataLoader(other, batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def update(a, b):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(a), b)
    loss.backward()
    optimizer.step()
    return loss
"""

BROKEN = {
    "a running loss": """
running = 0.0
for epoch in range(10):
    for a, b in train:
        running += update(a, b).item()
    print(f"epoch {epoch}: {running / len(train):.3f}")  # <- EVL009
""",
    "hits over the dataset": """
def evaluate(epochs):
    correct = 0
    for epoch in range(epochs):
        for a, b in train:
            update(a, b)
        with torch.no_grad():
            for a, b in tqdm(held_out, desc="held out"):
                prediction = model(a).argmax(1)
                correct += (prediction == b).sum().item()
        accuracy = 100.0 * correct / len(held_out.dataset)  # <- EVL009
        print(accuracy)
""",
    "samples times means, in a while": """
class Fit:
    def run(self):
        total, epoch = 0.0, 0
        while epoch < 5:
            for i, (a, b) in enumerate(self.loader):
                loss = update(a, b)
                total += loss.item() * len(a)
            self.log("loss", total / len(self.loader.dataset))  # <- EVL009
            epoch += 1
""",
    "hits as a tensor": """
hits = torch.zeros(())
for epoch in range(10):
    for a, b in train:
        update(a, b)
        hits += model(a).argmax(1).eq(b).sum()
    print(hits.item() / len(train.dataset))  # <- EVL009
""",
    "a metric of torchmetrics": """
accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=2)
for epoch in range(10):
    for a, b in held_out:
        accuracy.update(model(a), b)
    print(accuracy.compute())  # <- EVL009
""",
    "a metric that is called": """
mean = torchmetrics.classification.MulticlassF1Score(2)
for epoch in range(10):
    for a, b in held_out:
        mean(model(a), b)
    print(epoch, mean.compute().item())  # <- EVL009
""",
}

CORRECT = {
    "set to zero in every epoch": """
for epoch in range(10):
    running, correct = 0.0, 0
    for a, b in train:
        running += update(a, b).item()
        correct += (model(a).argmax(1) == b).sum().item()
    print(running / len(train), correct / len(train.dataset))
""",
    "set to zero at its end": """
running = 0.0
for epoch in range(10):
    for a, b in train:
        running += update(a, b).item()
    print(running / len(train))
    running = 0.0
""",
    "a count that is not reset either": """
correct = total = 0
for epoch in range(10):
    for a, b in train:
        correct += (model(a).argmax(1) == b).sum().item()
        total += len(b)
    print(correct / total)
""",
    "also divided by the epochs": """
running = 0.0
for epoch in range(10):
    for a, b in train:
        running += update(a, b).item()
    print(running / (len(train) * (epoch + 1)), running / (epoch + 1) / len(train.dataset[0]))
""",
    "once, after all epochs": """
running = 0.0
for epoch in range(10):
    for a, b in train:
        running += update(a, b).item()
print(running / len(train) / 10)
""",
    "one pass": """
correct = 0
for a, b in held_out:
    correct += (model(a).argmax(1) == b).sum().item()
print(correct / len(held_out.dataset))
""",
    "another loader in every iteration": """
correct = 0
for loader in (train, held_out):
    for a, b in loader:
        correct += (model(a).argmax(1) == b).sum().item()
    print(correct / len(loader.dataset))
""",
    "folds of one dataset": """
correct = 0
for fold in range(5):
    fold_loader = DataLoader(data[fold], batch_size=16)
    for a, b in fold_loader:
        correct += (model(a).argmax(1) == b).sum().item()
    print(correct / len(data), correct / len(fold_loader.dataset))
""",
    "progress in updates": """
steps = 0
for epoch in range(10):
    for a, b in train:
        update(a, b)
        steps += 1
    print(steps / len(train))
""",
    "a function for each epoch": """
def run(loader):
    total = 0.0
    for a, b in loader:
        total += update(a, b).item()
    return total / len(loader)
for epoch in range(10):
    print(run(train))
""",
    "a metric that is reset": """
accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=2)
for epoch in range(10):
    for a, b in held_out:
        accuracy.update(model(a), b)
    print(accuracy.compute())
    accuracy.reset()
""",
    "a metric of all epochs": """
losses = torchmetrics.MeanMetric()
for epoch in range(10):
    for a, b in held_out:
        losses.update(update(a, b))
print(losses.compute())
""",
    "a metric that is passed on": """
accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=2)
for epoch in range(10):
    for a, b in held_out:
        accuracy.update(model(a), b)
    print(accuracy.compute())
    reset_metric(accuracy)
""",
}


METER = """
class Meter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += float(value)
        self.count += n
        self.val = value

    @property
    def avg(self):
        return self.sum / max(self.count, 1)

    def __str__(self):
        return f"{self.avg:.3f}"

def validate(net, loader, meter):
    net.eval()
    for a, b in loader:
        meter.update((net(a).argmax(1) == b).sum(), len(b))

"""

UNRESET_METERS = {
    "one of two meters": """
loss_meter, acc_meter = Meter(), Meter()
for epoch in range(10):
    loss_meter.reset()
    for a, b in train:
        loss_meter.update(update(a, b).item())
    for a, b in held_out:
        acc_meter.update((model(a).argmax(1) == b).float().mean(), len(b))
    print(loss_meter.avg, acc_meter.avg)  # <- EVL009
""",
    "passed to the function that updates it": """
accuracy = Meter()
for epoch in range(10):
    for a, b in train:
        update(a, b)
    validate(model, held_out, accuracy)
    print(f"{accuracy}")  # <- EVL009
""",
    "an attribute that a method updates and reads": """
class Trainer:
    def __init__(self):
        self.val_loss = Meter()

    def check(self):
        for a, b in held_out:
            self.val_loss.update(F.cross_entropy(model(a), b).item() * len(b), len(b))
        return self.val_loss.avg  # <- EVL009

    def fit(self):
        for epoch in range(10):
            for a, b in train:
                update(a, b)
            print(self.check())

Trainer().fit()
""",
    "sums that are divided outside of the class": """
hits = Meter()
epoch = 0
while epoch < 4:
    for a, b in train:
        update(a, b)
    for batch in range(0, 64, 8):
        hits.update((model(x[batch:batch + 8]).argmax(1) == y[batch:batch + 8]).sum(), 8)
    print(hits.sum / hits.count)  # <- EVL009
    epoch += 1
""",
    "predictions that are collected, without a reset": """
class F1:
    def __init__(self):
        self.predicted, self.labels = [], []

    def __call__(self, outputs, labels):
        self.predicted.append(outputs.argmax(1))
        self.labels.append(labels)

    def compute(self):
        return f1_score(torch.cat(self.labels), torch.cat(self.predicted))

f1 = F1()
for epoch in range(10):
    for a, b in train:
        update(a, b)
    for a, b in held_out:
        f1(model(a), b)
    print(f1.compute())  # <- EVL009
""",
    "a confusion matrix": """
class Confusion:
    def __init__(self, n):
        self.matrix = torch.zeros(n, n)

    def clear(self):
        self.matrix.zero_()

    def add(self, predicted, labels):
        self.matrix = self.matrix + count_pairs(predicted, labels)

    def accuracy(self):
        return self.matrix.diag().sum() / self.matrix.sum()

confusion = Confusion(2)
def main():
    for epoch in range(10):
        for a, b in train:
            update(a, b)
        for a, b in held_out:
            confusion.add(model(a).argmax(1), b)
        print(confusion.accuracy())  # <- EVL009
main()
""",
    "a metric of torchmetrics in a class": """
class Trainer:
    def __init__(self):
        self.acc = torchmetrics.Accuracy(task="multiclass", num_classes=2).to("cpu")

    def epoch(self):
        for a, b in held_out:
            self.acc.update(model(a), b)
        print(self.acc.compute())  # <- EVL009

trainer = Trainer()
for epoch in range(10):
    trainer.epoch()
""",
}

CORRECT_METERS = {
    "reset in every epoch": """
acc_meter = Meter()
for epoch in range(10):
    acc_meter.reset()
    validate(model, held_out, acc_meter)
    print(acc_meter.avg)
""",
    "reset in a loop": """
loss_meter, acc_meter = Meter(), Meter()
for epoch in range(10):
    for meter in (loss_meter, acc_meter):
        meter.reset()
    for a, b in train:
        loss_meter.update(update(a, b).item())
    validate(model, held_out, acc_meter)
    print(loss_meter.avg, acc_meter.avg)
""",
    "reset by the function that gets it": """
def check(meter):
    meter.reset()
    for a, b in held_out:
        meter.update((model(a).argmax(1) == b).sum(), len(b))
acc_meter = Meter()
for epoch in range(10):
    check(acc_meter)
    print(acc_meter.avg)
""",
    "created in every epoch": """
for epoch in range(10):
    acc_meter = Meter()
    validate(model, held_out, acc_meter)
    print(acc_meter.avg)
""",
    "created by a function for each epoch": """
def check():
    acc_meter = Meter()
    validate(model, held_out, acc_meter)
    return acc_meter.avg
for epoch in range(10):
    print(check())
""",
    "an object for each epoch": """
class Check:
    def __init__(self):
        self.acc_meter = Meter()
    def run(self):
        validate(model, held_out, self.acc_meter)
        return self.acc_meter.avg
for epoch in range(10):
    print(Check().run())
""",
    "replaced after each epoch": """
acc_meter = Meter()
for epoch in range(10):
    validate(model, held_out, acc_meter)
    print(acc_meter.avg)
    acc_meter = Meter()
""",
    "read once at the end": """
acc_meter = Meter()
for epoch in range(10):
    validate(model, held_out, acc_meter)
print(acc_meter.avg)
""",
    "one pass over the data": """
acc_meter = Meter()
validate(model, held_out, acc_meter)
print(acc_meter.avg)
""",
    "durations": """
batch_time = Meter()
for epoch in range(10):
    for a, b in train:
        start = time.time()
        loss = update(a, b)
        batch_time.update(time.time() - start)
    print(batch_time.avg)
""",
    "only the last value is read": """
loss_meter = Meter()
for epoch in range(10):
    for a, b in train:
        loss_meter.update(update(a, b).item())
    print(loss_meter.val)
""",
    "the value is read and reset by one method": """
class Popping(Meter):
    def pop(self):
        value = self.avg
        self.reset()
        return value
class Mean:
    def __init__(self):
        self.values = []
    def add(self, value):
        self.values.append(value)
    def pop(self):
        mean, self.values = sum(self.values) / len(self.values), []
        return mean
mean_loss, other_loss = Mean(), Popping()
for epoch in range(10):
    for a, b in train:
        loss = update(a, b).item()
        mean_loss.add(loss)
        other_loss.update(loss)
    print(mean_loss.pop(), other_loss.pop())
""",
    "a smoothed loss": """
class Smooth:
    def __init__(self):
        self.loss = 0.0
    def update(self, loss):
        self.loss = 0.9 * self.loss + 0.1 * loss
    def value(self):
        return self.loss
smooth_loss = Smooth()
for epoch in range(10):
    for a, b in train:
        smooth_loss.update(update(a, b).item())
    print(smooth_loss.value())
""",
    "a window": """
class Window:
    def __init__(self):
        self.losses = []
    def add(self, loss):
        self.losses.append(loss)
        if len(self.losses) > 50:
            self.losses.pop(0)
    def mean(self):
        return sum(self.losses) / len(self.losses)
    def recent(self):
        return sum(self.losses[-5:]) / 5
loss_window = Window()
for epoch in range(10):
    for a, b in train:
        loss_window.add(update(a, b).item())
    print(loss_window.mean())
""",
    "the last values of a history": """
class History:
    def __init__(self):
        self.losses = []
    def add(self, loss):
        self.losses.append(loss)
    def recent(self):
        return sum(self.losses[-20:]) / 20
history = History()
for epoch in range(10):
    for a, b in train:
        history.add(update(a, b).item())
    print(history.recent(), len(history.losses))
""",
    "once per epoch": """
history = Meter()
for epoch in range(10):
    loss = 0
    for a, b in train:
        loss += update(a, b).item()
    history.update(loss / len(train))
    print(history.avg)
""",
    "samples so far": """
class Progress:
    def __init__(self):
        self.seen = 0
    def reset(self):
        self.seen = 0
    def add(self, loss, labels):
        self.seen += len(labels)
    def value(self):
        return self.seen
progress = Progress()
for epoch in range(10):
    for a, b in train:
        progress.add(update(a, b), b)
    print(progress.value(), progress.seen)
""",
    "passed to other code": """
acc_meter = Meter()
for epoch in range(10):
    validate(model, held_out, acc_meter)
    print(acc_meter.avg)
    hooks.epoch_ended(acc_meter)
""",
    "several evaluations of one model": """
acc_meter = Meter()
for loader in (train, held_out):
    validate(model, loader, acc_meter)
    print(acc_meter.avg)
""",
}


@pytest.mark.parametrize("script", UNRESET_METERS.values(), ids=UNRESET_METERS)
def test_lint_reports_meters_that_are_never_reset(lint_reports, script):
    assert "all previous epochs" in lint_reports(HEAD + METER + script)[0].message


@pytest.mark.parametrize("script", CORRECT_METERS.values(), ids=CORRECT_METERS)
def test_correct_meters_are_not_reported(lint_is_clean, script):
    lint_is_clean(HEAD + METER + script, "EVL009")


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_lint_reports_it(lint_reports, script):
    assert "is never reset" in lint_reports(HEAD + script)[0].message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(lint_is_clean, script):
    lint_is_clean(HEAD + script, "EVL009")


def test_fix_resets_the_sum_in_every_epoch(lint_reports):
    (found,) = lint_reports(HEAD + BROKEN["a running loss"], fixes=True)
    assert found.autofix is not None


MIXED = {
    "counters of one function": """
for epoch in range(5):
    correct = total = 0
    for a, b in train:
        update(a, b)
        correct += (model(a).argmax(1) == b).sum().item()
        total += len(b)
    print(correct / total)
    model.eval()
    with torch.no_grad():
        for a, b in held_out:
            correct += (model(a).argmax(1) == b).sum().item()
            total += len(b)
    print("val", correct / total)  # <- EVL009
    model.train()
""",
    "a metric of torchmetrics, called": """
accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=2)
for epoch in range(5):
    accuracy.reset()
    for a, b in train:
        update(a, b)
        accuracy(model(a), b)
    print("train", accuracy.compute())
    with torch.no_grad():
        for a, b in held_out:
            accuracy(model(a), b)
    print("val", accuracy.compute())  # <- EVL009
""",
    "a meter that two functions get": """
class Average:
    def __init__(self):
        self.reset()
    def reset(self):
        self.total, self.count = 0.0, 0
    def add(self, value, n=1):
        self.total += value * n
        self.count += n
    @property
    def value(self):
        return self.total / self.count
def fit(loader, meter):
    for a, b in loader:
        meter.add(update(a, b).item(), len(b))
def check(loader, meter):
    with torch.no_grad():
        for a, b in loader:
            meter.add(F.cross_entropy(model(a), b).item(), len(b))
    return meter.value  # <- EVL009
meter = Average()
for epoch in range(5):
    meter.reset()
    fit(train, meter)
    check(held_out, meter)
""",
    "a dictionary of meters in a class": """
class Count:
    def __init__(self):
        self.reset()
    def reset(self):
        self.hits, self.n = 0, 0
    def update(self, out, y):
        self.hits += (out.argmax(1) == y).sum().item()
        self.n += len(y)
    def compute(self):
        return self.hits / self.n
class Learner:
    def __init__(self):
        self.meters = {"acc": Count(), "hits": Count()}
    def clear_all(self):
        for each in self.meters.values():
            each.reset()
    def scores(self):
        return {key: each.compute() for key, each in self.meters.items()}
    def train_epoch(self):
        for a, b in train:
            update(a, b)
            for each in self.meters.values():
                each.update(model(a), b)
        print(self.scores())
    def validate(self):
        with torch.no_grad():
            for a, b in held_out:
                out = model(a)
                for key, each in self.meters.items():
                    each.update(out, b)
        return self.scores()
    def fit(self):
        for epoch in range(5):
            self.clear_all()
            self.train_epoch()
            self.validate()
Learner().fit()
""".replace("each.compute() for", "each.compute()  # <- EVL009\n                for"),
    "lists of losses": """
for epoch in range(5):
    losses = []
    for a, b in train:
        losses.append(update(a, b).item())
    print("train", sum(losses) / len(losses))
    with torch.no_grad():
        for a, b in held_out:
            losses.append(F.cross_entropy(model(a), b).item())
    print("val", sum(losses) / len(losses))  # <- EVL009
""",
}
SEPARATE = {
    "reset before validation": MIXED["counters of one function"].replace(
        "    model.eval()\n", "    model.eval()\n    correct, total = 0, 0\n"
    ),
    "reset by the validation": MIXED["a meter that two functions get"].replace(
        "def check(loader, meter):\n", "def check(loader, meter):\n    meter.reset()\n"
    ),
    "reset at the end of training": MIXED["a dictionary of meters in a class"].replace(
        "        print(self.scores())\n", "        print(self.scores())\n        self.clear_all()\n"
    ),
    "reset when it is computed": MIXED["a dictionary of meters in a class"].replace(
        "        return self.hits / self.n",
        "        value = self.hits / self.n\n        self.reset()\n        return value",
    ),
    "a meter for each pass": """
meters = {"train": torchmetrics.MeanMetric(), "val": torchmetrics.MeanMetric()}
for epoch in range(5):
    for each in meters.values():
        each.reset()
    for a, b in train:
        meters["train"].update(update(a, b).item())
    with torch.no_grad():
        for a, b in held_out:
            meters["val"].update(F.cross_entropy(model(a), b).item())
    print(meters["train"].compute(), meters["val"].compute())
""",
    "new meters in each function": """
def fit(loader):
    total = 0.0
    for a, b in loader:
        total += update(a, b).item()
    return total / len(loader)
def check(loader):
    total = 0.0
    with torch.no_grad():
        for a, b in loader:
            total += F.cross_entropy(model(a), b).item()
    return total / len(loader)
for epoch in range(5):
    print(fit(train), check(held_out))
""",
    "one loop for both phases": """
for epoch in range(5):
    for phase, loader in (("train", train), ("val", held_out)):
        total = 0.0
        for a, b in loader:
            loss = F.cross_entropy(model(a), b)
            if phase == "train":
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item()
        print(phase, total / len(loader))
""",
    "a count of all batches": """
for epoch in range(5):
    batches, total = 0, 0.0
    for a, b in train:
        total += update(a, b).item()
        batches += 1
    print(total / batches)
    with torch.no_grad():
        for a, b in held_out:
            model(a)
            batches += 1
    print(batches / 10)
""",
}


@pytest.mark.parametrize("script", MIXED.values(), ids=MIXED)
def test_lint_reports_a_sum_of_training_and_validation(lint_reports, script):
    lint_reports(HEAD + script, fixes=False)


@pytest.mark.parametrize("script", SEPARATE.values(), ids=SEPARATE)
def test_lint_accepts_sums_of_one_pass(lint_is_clean, script):
    lint_is_clean(HEAD + script)


DEFAULTS = {
    "a dictionary": """
def one_pass(loader, tally={"seen": 0, "right": 0}):  # <- EVL009
    with torch.no_grad():
        for a, b in loader:
            tally["seen"] += len(b)
            tally["right"] += (model(a).argmax(1) == b).sum().item()
    return tally["right"] / tally["seen"]
for epoch in range(3):
    print(one_pass(held_out))
""",
    "lists of a metric": """
def evaluate(loader, *, found=[], labels=[]):  # <- EVL009
    with torch.no_grad():
        for a, b in loader:
            found.extend(model(a).argmax(1).tolist())
            labels.extend(b.tolist())
    return f1_score(labels, found)
print(evaluate(train))
print(evaluate(held_out))
""",
    "a method, a defaultdict": """
class Trainer:
    def validate(self, loader, sums: dict = defaultdict(float)):  # <- EVL009
        with torch.no_grad():
            for a, b in loader:
                sums["loss"] += F.cross_entropy(self.model(a), b).item()
        return sums["loss"] / len(loader)
    def fit(self):
        for epoch in range(3):
            self.log(self.validate(self.loader))
""",
    "an object": """
def evaluate(loader, metric=Mean()):  # <- EVL009
    with torch.no_grad():
        for a, b in loader:
            metric.update((model(a).argmax(1) == b).float().mean().item())
    return metric.compute()
for epoch in range(3):
    print(evaluate(held_out))
""",
}
OWN_VALUES = {
    "made in the function": DEFAULTS["a dictionary"]
    .replace('right": 0}):  # <- EVL009', 'right": 0}):\n    tally = {"seen": 0, "right": 0}')
    .replace("one_pass(held_out)", "one_pass(train), one_pass(held_out)"),
    "set to zero": DEFAULTS["a dictionary"].replace(
        "0}):  # <- EVL009", '0}):\n    tally["seen"], tally["right"] = 0, 0\n    tally["right"] = 0'
    ),
    "passed by all calls": DEFAULTS["a dictionary"]
    .replace("  # <- EVL009", "")
    .replace("one_pass(held_out)", "one_pass(held_out, {'seen': 0, 'right': 0})"),
    "called once": DEFAULTS["a dictionary"].replace("  # <- EVL009", "").replace("for epoch in range(3):", "if train:"),
    "a history": """
def evaluate(loader, history=[]):
    right = 0
    with torch.no_grad():
        for a, b in loader:
            right += (model(a).argmax(1) == b).sum().item()
            history.append(right)
    return right / len(loader.dataset), history
for epoch in range(3):
    print(evaluate(held_out))
""",
    "a cache": """
def embed(loader, cache={}):
    found = []
    with torch.no_grad():
        for a, b in loader:
            if a not in cache:
                cache.update({a: model(a)})
            found.append(cache[a].sum().item())
    return sum(found) / len(found)
for epoch in range(3):
    print(embed(held_out))
""",
    "a running mean": """
def smooth(value, last=[]):
    last.append(value)
    return sum(last) / len(last)
with torch.no_grad():
    for a, b in held_out:
        print(smooth(model(a).sum().item()))
""",
}


@pytest.mark.parametrize("script", DEFAULTS.values(), ids=DEFAULTS)
def test_lint_reports_default_values_that_collect_totals(lint_reports, script):
    assert "is made once" in lint_reports(HEAD + script)[0].message


@pytest.mark.parametrize("script", OWN_VALUES.values(), ids=OWN_VALUES)
def test_lint_accepts_own_values_and_histories(lint_is_clean, script):
    lint_is_clean(HEAD + script, "EVL009")


WINDOW = """
import torch
from torch.utils.data import DataLoader
loader = DataLoader(train_set, batch_size=32, shuffle=True)
total, steps = 0.0, 0
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        steps += 1
        if (i + 1) % 100 == 0:
            print(epoch, i, total / 100)MARK
            pass
"""
DATASET = """
correct = 0
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        criterion(out, y).backward()
        optimizer.step()
        correct += (out.argmax(1) == y).sum().item()
    print(correct / len(train_set))MARK
"""
LOADER = "loader = DataLoader(train_set, batch_size=32)\n"
UNRESET = {
    "a mean of some batches": WINDOW,
    "a setting": WINDOW.replace("100", "args.log_every"),
    "logged": WINDOW.replace("print(epoch, i, total / 100)", 'writer.add_scalar("loss", total / 100, i)'),
    "reset in each epoch only": WINDOW.replace("    for i,", "    total = 0.0\n    for i,"),
    "of the dataset of the loader": LOADER + DATASET,
}
RESET = {
    "reset after printing": WINDOW.replace("            pass", "            total = 0.0"),
    "all batches so far": WINDOW.replace("total / 100", "total / steps"),
    "another number": WINDOW.replace("total / 100", "total / 32"),
    "reset at the start": WINDOW.replace("        steps += 1", "        if i % 100 == 0:\n            total = 0.0"),
    "a dataset that grows": LOADER + DATASET.replace("    for x, y", "    correct = 0\n    for x, y"),
    "another dataset": LOADER + DATASET.replace("len(train_set)", "len(names)"),
}


@pytest.mark.parametrize("script", UNRESET.values(), ids=UNRESET)
def test_lint_reports_sums_that_no_report_resets(lint_reports, script):
    lint_reports(script.replace("MARK", "  # <- EVL009"))


@pytest.mark.parametrize("script", RESET.values(), ids=RESET)
def test_lint_accepts_sums_that_are_reset(lint_is_clean, script):
    lint_is_clean(script.replace("MARK", ""), "EVL009")


EVALUATOR = """
class Evaluator:
    def __init__(self, n):
        self.n = n
        self.reset()

    def reset(self):
        self.matrix = torch.zeros(self.n, self.n)

    def add_batch(self, predicted, labels):
        self.matrix += torch.bincount(self.n * labels + predicted, minlength=self.n**2).view(self.n, self.n)

    def mean_iou(self):
        hits = self.matrix.diag()
        return (hits / (self.matrix.sum(0) + self.matrix.sum(1) - hits)).mean()

    def judge(self, net, loader):
        {start}
        for a, b in loader:
            self.add_batch(net(a).argmax(1), b)
        return self.mean_iou(){mark}
"""
TRAINING = """
for epoch in range(10):
    for a, b in train:
        update(a, b)
"""
UNRESET_EVALUATORS = {
    "passed to a trainer": EVALUATOR.replace("{start}", "net.eval()").replace("{mark}", "  # <- EVL009")
    + """
class Engine:
    def __init__(self, evaluator):
        self.evaluator = evaluator
    def fit(self, epochs):
        for epoch in range(epochs):
            for a, b in train:
                update(a, b)
            print(self.evaluator.judge(model, held_out))
Engine(Evaluator(2)).fit(10)
""",
    "created at its only use": EVALUATOR.replace("{start}", "pass").replace("{mark}", "  # <- EVL009")
    + "def main(evaluator=Evaluator(2)):\n"
    + TRAINING.replace("\n", "\n    ")
    + "    print(evaluator.judge(model, held_out))\nmain()\n",
    "sums of its own": """
class AccuracyCheck:
    def __init__(self):
        self.correct, self.count = 0, 0

    def check(self, net, batches):
        with torch.no_grad():
            for a, b in batches:
                self.correct += (net(a).argmax(1) == b).sum().item()
                self.count += len(b)
        return self.correct / self.count  # <- EVL009

checks = [AccuracyCheck()]
"""
    + TRAINING
    + "    print(checks[0].check(model, DataLoader(other)))\n",
}
RESET_EVALUATORS = {
    "reset first": EVALUATOR.replace("{start}", "self.reset()").replace("{mark}", "")
    + "evaluator = [Evaluator(2)]\n"
    + TRAINING
    + "    print(evaluator[0].judge(model, held_out))\n",
    "reset by the caller": EVALUATOR.replace("{start}", "net.eval()").replace("{mark}", "")
    + "evaluators = [Evaluator(2)]\n"
    + TRAINING
    + "    evaluators[0].reset()\n    print(evaluators[0].judge(model, held_out))\n",
    "a new one in each epoch": EVALUATOR.replace("{start}", "net.eval()").replace("{mark}", "")
    + TRAINING
    + "    print(Evaluator(2).judge(model, held_out))\n",
    "judged once": EVALUATOR.replace("{start}", "net.eval()").replace("{mark}", "")
    + TRAINING
    + "print(Evaluator(2).judge(model, held_out))\n",
    "durations": """
class TimedAccuracy:
    def __init__(self):
        self.seconds = 0.0

    def judge(self, net, loader):
        for a, b in loader:
            self.seconds += measure(net, a)
        return self.seconds / 60

timed = [TimedAccuracy()]
"""
    + TRAINING
    + "    print(timed[0].judge(model, held_out))\n",
    "a loop that trains": """
class LossFit:
    def __init__(self):
        self.loss_sum, self.steps = 0.0, 0

    def epoch(self, loader):
        for a, b in loader:
            loss = F.cross_entropy(model(a), b)
            loss.backward()
            self.loss_sum += loss.item()
            self.steps += 1
        return self.loss_sum / self.steps

fits = [LossFit()]
for number in range(3):
    for a, b in train:
        update(a, b)
    print(fits[0].epoch(train))
""",
}


@pytest.mark.parametrize("script", UNRESET_EVALUATORS.values(), ids=UNRESET_EVALUATORS)
def test_lint_reports_evaluators_that_are_never_reset(lint_reports, script):
    assert "is never reset" in lint_reports(HEAD + script)[0].message


@pytest.mark.parametrize("script", RESET_EVALUATORS.values(), ids=RESET_EVALUATORS)
def test_lint_accepts_evaluators_that_are_reset_or_called_once(lint_is_clean, script):
    lint_is_clean(HEAD + script, "EVL009")
