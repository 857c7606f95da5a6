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
