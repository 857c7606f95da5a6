"""EVL018: outputs (N, 1) that are compared with labels (N,)."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(60, 4)
y = (x.sum(1) > 0).float()
loader = DataLoader(TensorDataset(x, y), batch_size=15, shuffle=True)
held_out = DataLoader(TensorDataset(x + 0.1, y), batch_size=15)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)
    def forward(self, x):
        return self.fc(x)
model = Net()
optimizer = torch.optim.Adam(model.parameters())
"""
TRAIN = """
for epoch in range(2):
    correct, error = 0, 0.0
    for a, b in loader:
        optimizer.zero_grad()
        out = model(a)
        loss = %s
        loss.backward()
        optimizer.step()
        %s
"""
EVALUATE = """
def evaluate(net, data):
    net.eval()
    hits = 0
    with torch.no_grad():
        for inputs, labels in data:
            logits = net(inputs)
            predicted = (torch.sigmoid(logits) > 0.5).float()
            %s
    return hits / len(data.dataset)
evaluate(model, held_out)
"""
UNSQUEEZED = "F.binary_cross_entropy_with_logits(out, b.unsqueeze(1))"
SQUEEZED = "F.mse_loss(out.squeeze(), b)"
FAULTY = {
    "a threshold": TRAIN % (UNSQUEEZED, "correct += ((out > 0).long() == b).sum().item()  # <- EVL018"),
    "eq": TRAIN % (UNSQUEEZED, "correct += (out > 0).eq(b).sum().item()  # <- EVL018"),
    "rounded": TRAIN
    % (
        "nn.BCEWithLogitsLoss()(out, b[:, None])",
        "correct += (torch.round(torch.sigmoid(out)) == b).float().mean()  # <- EVL018",
    ),
    "a mean absolute error": TRAIN % (SQUEEZED, "error += (out - b).abs().mean().item()  # <- EVL018"),
    "errors are counted": TRAIN % (SQUEEZED, "error += torch.sum((out > 0) != b).item()  # <- EVL018"),
    "in an evaluation": TRAIN % ("nn.MSELoss()(out, b.view(-1, 1))", "pass")
    + EVALUATE % "hits += (predicted == labels).sum().item()  # <- EVL018",
}
OUTSIDE_LOOPS = {
    "a function": "def accuracy(output, target):\n    return ((output > 0) == target).float().mean()  # <- EVL018\n"
    + TRAIN % (UNSQUEEZED, "correct += accuracy(out, b)"),
    "a class": """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.criterion = nn.BCEWithLogitsLoss()
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    def train(self):
        self.net.train()
        for a, b in loader:
            self.optimizer.zero_grad()
            self.criterion(self.net(a).squeeze(1), b).backward()
            self.optimizer.step()
    def test(self):
        self.net.eval()
        right = 0
        with torch.no_grad():
            for a, b in held_out:
                answers = self.net(a).sigmoid().round()
                right += (answers == b).sum().item()  # <- EVL018
        return right / len(held_out.dataset)
trainer = Trainer(model)
trainer.train()
trainer.test()
""",
}
ONLY_IN_RUN = {
    "once, after the training": TRAIN % (UNSQUEEZED, "pass")
    + """
model.eval()
with torch.no_grad():
    predicted = torch.sigmoid(model(x + 0.1)).round()
    print(predicted.eq(y).sum().item() / len(y))  # <- EVL018
""",
}
ONLY_IN_TEXT = {
    "labels with one column": """
labels = torch.randint(0, 3, (60, 1))
classifier = nn.Linear(4, 3)
optimizer = torch.optim.SGD(classifier.parameters(), lr=0.1)
for start in range(0, 60, 20):
    a, b = x[start : start + 20], labels[start : start + 20]
    optimizer.zero_grad()
    scores = classifier(a)
    F.cross_entropy(scores, b.squeeze(1)).backward()
    optimizer.step()
    print((scores.argmax(1) == b).float().mean())  # <- EVL018
""",
}
CORRECT = {
    "squeezed": TRAIN % (UNSQUEEZED, "correct += ((out > 0).squeeze(1) == b).sum().item()"),
    "squeezed before": TRAIN.replace("model(a)", "model(a).squeeze(1)")
    % ("F.mse_loss(out, b)", "correct += ((out > 0) == b).sum().item()"),
    "a new label": TRAIN.replace("out =", "b = b.unsqueeze(1)\n        out =")
    % ("F.mse_loss(out, b)", "correct += ((out > 0) == b).sum().item()"),
    "view_as": TRAIN % (UNSQUEEZED, "correct += (out > 0).eq(b.view_as(out)).sum().item()"),
    "the same view": TRAIN % (UNSQUEEZED, "correct += ((out > 0) == b.view(-1, 1)).sum().item()"),
    "a mask of pairs": TRAIN % (UNSQUEEZED, "same = (b.unsqueeze(1) == b).float().mean()"),
    "a mask of pairs, copied": TRAIN % (UNSQUEEZED, "same = (b.clone().unsqueeze(1) == b).float().mean()"),
    "a column against a column": TRAIN % (UNSQUEEZED, "correct += ((out > 0) == b.reshape(out.shape)).sum().item()"),
    "distances between outputs": TRAIN % (UNSQUEEZED, "spread = (out - out.squeeze(1)).abs().mean().item()"),
    "one-hot": TRAIN % (UNSQUEEZED, "hot = (b.unsqueeze(1) == torch.arange(2)).sum().item()"),
    "many outputs, flattened": TRAIN.replace("model(a)", "nn.Linear(4, 1)(a)")
    % ("F.mse_loss(model(a).flatten(), b)", "correct += (model(a).flatten() - b).abs().sum().item()"),
    "labels of all": TRAIN % (UNSQUEEZED, "correct += ((out > 0).view(-1) == b).sum().item()"),
    "labels squeezed as a precaution": """
classifier = nn.Linear(4, 3)
optimizer = torch.optim.SGD(classifier.parameters(), lr=0.1)
for a, b in loader:
    optimizer.zero_grad()
    scores = classifier(a)
    F.cross_entropy(scores, b.squeeze().long()).backward()
    optimizer.step()
    print((scores.argmax(1) == b).float().mean())
""",
    "another model": "other = nn.Linear(4, 15)\n" + TRAIN % (UNSQUEEZED, "error += (other(a) - b).abs().mean().item()"),
}


@pytest.mark.parametrize(
    "script", [*FAULTY.values(), *OUTSIDE_LOOPS.values(), *ONLY_IN_TEXT.values()],
    ids=[*FAULTY, *OUTSIDE_LOOPS, *ONLY_IN_TEXT],
)  # fmt: skip
def test_lint_reports_the_comparison(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "EVL018")


@pytest.mark.parametrize(
    "script", [*FAULTY.values(), *OUTSIDE_LOOPS.values(), *ONLY_IN_RUN.values()],
    ids=[*FAULTY, *OUTSIDE_LOOPS, *ONLY_IN_RUN],
)  # fmt: skip
def test_run_reports_the_comparison(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_programs(run, script):
    assert "EVL018" not in {each.code for each in run(HEAD + script).findings}


WHOLE = (
    HEAD
    + """
import numpy as np
for epoch in range(2):
    for a, b in loader:
        optimizer.zero_grad()
        F.mse_loss(model(a).squeeze(1), b).backward()
        optimizer.step()
"""
)
AFTER_LOOPS = {
    "residuals of all batches": """
def evaluate(net, data):
    net.eval()
    preds, targets = [], []
    with torch.no_grad():
        for inputs, labels in data:
            preds.append(net(inputs) * 2.0)
            targets.append(labels * 2.0)
    preds, targets = torch.cat(preds), torch.cat(targets)
    residual = targets - preds  # <- EVL018
    return 1 - residual.pow(2).mean() / targets.var()
evaluate(model, held_out)
""",
    "an error of the whole set": """
model.eval()
with torch.inference_mode():
    answers = model(x + 0.1)
print(torch.sqrt(((answers - y) ** 2).mean()))  # <- EVL018
""",
    "batches by hand, a helper, without eval mode": """
def mae(one, other):
    return (one - other).abs().mean()  # <- EVL018
@torch.no_grad()
def predict(inputs):
    return torch.vstack([model(part) for part in inputs.split(12)])
print(mae(predict(x), y))
""",
    "rounded outputs in a class": """
class Judge:
    def __init__(self):
        self.answers, self.truth = [], []
    def add(self, answer, truth):
        self.answers += [answer]
        self.truth += [truth]
    def accuracy(self):
        answers, truth = torch.cat(self.answers), torch.cat(self.truth)
        return (answers.sigmoid().round() == truth).float().mean()  # <- EVL018
judge = Judge()
model.eval()
for a, b in held_out:
    judge.add(model(a).detach(), b)
print(judge.accuracy())
""",
    "true positives": """
model.eval()
with torch.no_grad():
    hits = torch.cat([(model(a) > 0).float() for a, _ in held_out])
positives = (hits * y).sum()  # <- EVL018
print(positives / y.sum())
""",
    "labels with one column": """
column = torch.stack([each for each in y[:, None]])
model.eval()
with torch.no_grad():
    flat = model(x).squeeze(1)
    print((flat - column).square().mean())  # <- EVL018
""",
    "arrays": """
def rmse(predicted, labels):
    return np.sqrt(np.mean((predicted - labels) ** 2))  # <- EVL018
model.eval()
with torch.no_grad():
    arrays = np.concatenate([model(a).numpy() for a, _ in held_out])
print(rmse(arrays, y.numpy()))
""",
    "a loss of PyTorch": """
import warnings
warnings.filterwarnings("ignore")
model.eval()
with torch.no_grad():
    print(F.l1_loss(model(x), y).item())  # <- EVL018
""",
}
PAIRS = {
    "distances on purpose": """
print((outputs - labels[None]).abs().min(), (flat[:, None] - labels).abs().mean())
""",
    "distances in a helper": """
def distances(one, other):
    return (one - other).abs().mean()
print(distances(flat[:, None], labels))
""",
    "the nearest label of each output": """
gaps = (outputs - labels).abs()
print((gaps.argmin(1) == torch.arange(60)).float().mean())
""",
    "the distance to all labels, for each output": """
print(((outputs - labels) ** 2).mean(dim=1).sqrt().max())
""",
    "a ranking": """
order = torch.sign(outputs - outputs.t()) * torch.sign(labels[:, None] - labels)
print(order.sum(), (outputs - flat).abs().mean())
""",
    "an ensemble": """
members = torch.stack([flat, flat + 0.1, flat - 0.1])
print((members - labels).abs().mean(), (members.mean(0) - labels).abs().mean())
""",
    "scores of classes": """
scores, chosen = nn.Linear(4, 3)(x + 0.1), labels.long().unsqueeze(1)
print((scores - chosen).abs().mean(), (scores.argmax(1) == chosen.squeeze(1)).float().mean())
""",
    "an outer product": """
print((outputs * labels).mean(1).shape, (outputs * labels)[0].sum())
""",
    "the same shape": """
print((outputs - labels.view_as(outputs)).abs().mean(), (outputs[:, 0] == labels).float().mean())
print(np.mean((outputs.numpy()[:, 0] - labels.numpy()) ** 2), np.mean(outputs.numpy() - labels.numpy()[:, None]))
""",
    "an array of pairs": """
one, other = flat.numpy()[:, None], labels.numpy()
print(np.mean(np.abs(one - other)), np.mean(np.abs(flat.numpy()[:, None] - other)))
""",
    "a grid": """
levels = torch.linspace(0, 1, 7)
print((outputs - levels).abs().mean(), (outputs > levels).float().sum())
""",
}
PREDICT = """
model.eval()
with torch.no_grad():
    outputs = torch.cat([model(a) for a, _ in held_out])
flat, labels = outputs.squeeze(1), y
"""


@pytest.mark.parametrize("script", AFTER_LOOPS.values(), ids=AFTER_LOOPS)
def test_run_reports_the_metric_of_a_whole_evaluation(run_reports, script):
    run_reports(WHOLE + script)


IN_LISTS = ("residuals of all batches",)
COLLECTED = {
    "a list that is joined": """
answers, truth = [], []
for a, b in held_out:
    with torch.no_grad():
        answers.append(model(a).detach().cpu())
        truth.append(b.cpu())
answers, truth = torch.cat(answers, dim=0), torch.cat(truth, dim=0)
print(torch.mean(torch.abs(answers - truth)))  # <- EVL018
""",
    "a class": """
class Judge:
    def __init__(self, net):
        self.net = net
    @torch.no_grad()
    def predict(self, data):
        outputs, labels = [], []
        for a, b in data:
            outputs.append(self.net(a))
            labels.append(b)
        return torch.cat(outputs), torch.cat(labels)
    def mae(self, data):
        outputs, labels = self.predict(data)
        return (outputs - labels).abs().mean()  # <- EVL018
judge = Judge(model)
print(judge.mae(held_out))
""",
    "comprehensions": """
with torch.no_grad():
    answers = torch.cat([model(a) for a, b in held_out])
truth = torch.cat([b for a, b in held_out])
print((answers - truth).square().mean().sqrt())  # <- EVL018
""",
}
SAME_SHAPE = {
    "squeezed in the list": """
answers, truth = [], []
for a, b in held_out:
    answers.append(model(a).detach().squeeze(1))
    truth.append(b)
print((torch.cat(answers) - torch.cat(truth)).abs().mean())
""",
    "squeezed when joined": """
answers, truth = [], []
for a, b in held_out:
    answers.append(model(a).detach())
    truth.append(b)
answers, truth = torch.cat(answers).squeeze(1), torch.cat(truth)
print((answers - truth).abs().mean())
""",
    "columns in both": """
answers, truth = [], []
for a, b in held_out:
    answers.append(model(a).detach())
    truth.append(b.unsqueeze(1))
print((torch.cat(answers) - torch.cat(truth)).abs().mean())
""",
}


@pytest.mark.parametrize(
    "script",
    [*COLLECTED.values(), *(AFTER_LOOPS[each] for each in IN_LISTS)],
    ids=[*COLLECTED, *IN_LISTS],
)
def test_lint_reports_the_metric_of_collected_outputs(lint_reports, script):
    lint_reports(WHOLE + script)


@pytest.mark.parametrize("script", COLLECTED.values(), ids=COLLECTED)
def test_run_reports_the_metric_of_collected_outputs(run_reports, script):
    run_reports(WHOLE + "model.eval()\n" + script)


@pytest.mark.parametrize("script", SAME_SHAPE.values(), ids=SAME_SHAPE)
def test_equal_shapes_are_accepted(lint_is_clean, run, script):
    lint_is_clean(WHOLE + script, "EVL018")
    assert "EVL018" not in {each.code for each in run(WHOLE + script).findings}


@pytest.mark.parametrize("script", PAIRS.values(), ids=PAIRS)
def test_run_accepts_pairs_on_purpose(run, script):
    assert "EVL018" not in {each.code for each in run(WHOLE + PREDICT + script).findings}


@pytest.mark.parametrize("script", PAIRS.values(), ids=PAIRS)
def test_lint_accepts_pairs_on_purpose(lint_is_clean, script):
    lint_is_clean(WHOLE + PREDICT + script, "EVL018")


TABLE = """
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import nn
X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2)
X_train = torch.tensor(X_train, dtype=torch.float32)
X_test = torch.tensor(X_test, dtype=torch.float32)
y_train = torch.tensor(y_train, dtype=torch.float32)
y_test = torch.tensor(y_test, dtype=torch.float32)
model = nn.Sequential(nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters())
"""
TRAIN_TABLE = """
for epoch in range(3):
    model.train()
    optimizer.zero_grad()
    out = model(X_train)
    loss = criterion(out, y_train.unsqueeze(1))
    loss.backward()
    optimizer.step()
    %s
model.eval()
"""
WHOLE_TABLES = {
    "a function, several calls": """
def accuracy(logits, target):
    pred = (torch.sigmoid(logits) > 0.5).float()
    return (pred == target).float().mean().item()  # <- EVL018
"""
    + TRAIN_TABLE % "print(accuracy(out, y_train))"
    + "best = None\nfor net in [model]:\n    best = net\nprint(accuracy(best(X_test), y_test))\n",
    "integers": TRAIN_TABLE % "pass"
    + """
with torch.no_grad():
    hits = (model(X_test) > 0).long().eq(y_test.long()).sum()  # <- EVL018
print(hits.item() / len(y_test))
""",
    "rounded, NumPy": TRAIN_TABLE % "pass"
    + """
with torch.no_grad():
    predicted = torch.round(torch.sigmoid(model(X_test)))
print(np.mean(predicted.numpy() == y_test.numpy()))  # <- EVL018
""",
    "a class": """
class Trainer:
    def __init__(self, net, x, labels):
        self.net, self.x, self.labels = net, x, labels
    @torch.no_grad()
    def score(self):
        self.net.eval()
        guesses = (self.net(self.x) > 0).int()
        wrong = (guesses != self.labels).sum()  # <- EVL018
        return 1 - wrong.item() / len(self.labels)
"""
    + TRAIN_TABLE % "pass"
    + "print(Trainer(model, X_test, y_test).score())\n",
    "a loss of equal shapes": """
targets = y_train.view(-1, 1)
for epoch in range(3):
    optimizer.zero_grad()
    loss = criterion(model(X_train), targets)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        probability = torch.sigmoid(model(X_test))
        predicted = probability.ge(0.5).float()
        correct = predicted == y_test  # <- EVL018
        print(correct.float().mean().item())
""",
    "torch.eq": TRAIN_TABLE % "print(torch.eq(out > 0, y_train).sum().item() / len(out))  # <- EVL018",
}
CORRECT_TABLES = {
    "squeezed": TRAIN_TABLE % "print((((out > 0).float().squeeze(1)) == y_train).float().mean())",
    "squeezed in the function": """
def accuracy(logits, target):
    pred = (torch.sigmoid(logits) > 0.5).float().squeeze()
    return (pred == target).float().mean().item()
"""
    + TRAIN_TABLE % "print(accuracy(out, y_train))",
    "squeezed in the call": """
def accuracy(logits, target):
    return ((logits > 0) == target).float().mean().item()
"""
    + TRAIN_TABLE % "print(accuracy(out.squeeze(1), y_train), accuracy(out, y_train.unsqueeze(1)))",
    "one column": TRAIN_TABLE.replace("y_train.unsqueeze(1)", "y_train") % "print(((out > 0) == y_train).sum())" + "\n",
    "flattened": TRAIN_TABLE % "print(((out > 0).flatten() == y_train).sum().item())",
    "classes": TRAIN_TABLE % "print((out.argmax(1) == y_train).sum().item())",
    "a mask of pairs": TRAIN_TABLE % "print((y_train[:, None] == y_train[None, :]).float().mean())",
    "a mask of pairs with unsqueeze": TRAIN_TABLE % "print((y_train.unsqueeze(1) == y_train).sum(), epoch)",
    "retrieval": TRAIN_TABLE % "print((out.argsort(0) == torch.arange(len(out))).any(1).sum())",
    "the same on purpose": TRAIN_TABLE
    % "labels = y_train.view(-1, 1)\n    print(torch.eq(labels, labels.T).float().sum(), labels.shape)",
}
CORRECT_TABLES["one column"] = CORRECT_TABLES["one column"].replace(
    "for epoch in range(3)", "y_train = y_train.reshape(-1, 1)\nfor epoch in range(3)"
)


@pytest.mark.parametrize("script", WHOLE_TABLES.values(), ids=WHOLE_TABLES)
def test_lint_reports_comparisons_by_the_shapes_of_the_data(lint_reports, script):
    lint_reports(TABLE + script)


@pytest.mark.parametrize("script", CORRECT_TABLES.values(), ids=CORRECT_TABLES)
def test_lint_accepts_equal_shapes_of_the_data(lint_is_clean, script):
    lint_is_clean(TABLE + script, "EVL018")
