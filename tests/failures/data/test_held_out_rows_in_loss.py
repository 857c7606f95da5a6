"""DAT031: a loss over all rows of a graph or a table, and correct programs that look like it."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

"""

FAULTY = {
    "indices of a function": """
adj, features, labels, idx_train, idx_val, idx_test = load_data()
idx_train = idx_train.cuda()
def train(epoch):
    model.train()
    optimizer.zero_grad()
    output = model(features, adj)
    loss_train = F.nll_loss(output, labels)  # <- DAT031
    loss_train.backward()
    optimizer.step()
def test():
    model.eval()
    output = model(features, adj)
    return accuracy(output[idx_test], labels[idx_test])
""",
    "an accuracy that gets the mask": """
def accuracy(logits, labels, mask):
    return (logits[mask].argmax(1) == labels[mask]).float().mean().item()
def main():
    a, x, y, train_mask, val_mask, test_mask = citations()
    for epoch in range(100):
        optimizer.zero_grad()
        logits = model(a, x)
        loss = F.cross_entropy(logits, y)  # <- DAT031
        loss.backward()
        optimizer.step()
        train_accuracy = accuracy(logits, y, train_mask)
        history.append((train_accuracy, accuracy(logits, y, val_mask)))
    print(accuracy(model(a, x), y, test_mask))
""",
    "a graph of PyG": """
def train(model, data, optimizer):
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(data.x, data.edge_index), data.y)  # <- DAT031
    loss.backward()
    optimizer.step()
@torch.no_grad()
def test(model, data):
    model.eval()
    pred = model(data.x, data.edge_index).argmax(1)
    return (pred[data.test_mask] == data.y[data.test_mask]).float().mean()
""",
    "the training mask is used in the evaluation alone": """
class Trainer:
    def step(self):
        self.optimizer.zero_grad()
        out = self.model(self.x, self.edges)
        loss = self.criterion(out, self.labels)  # <- DAT031
        loss.backward()
        self.optimizer.step()
    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            pred = self.model(self.x, self.edges).argmax(1)
        print((pred[self.train_mask] == self.labels[self.train_mask]).float().mean())
        return (pred[self.val_mask] == self.labels[self.val_mask]).float().mean()
""",
    "rows of a table": """
order = torch.randperm(len(X))
train_idx, test_idx = order[:800], order[800:]
print(f"{len(train_idx)} rows for training")
for step in range(100):
    optimizer.zero_grad()
    pred = net(X)
    loss = F.mse_loss(pred, Y)  # <- DAT031
    loss.backward()
    optimizer.step()
with torch.no_grad():
    print(F.mse_loss(net(X[test_idx]), Y[test_idx]))
""",
    "a mask as an argument": """
def accuracy_of(logits, y, mask):
    return (logits[mask].argmax(1) == y[mask]).float().mean()
def run(model, x, y, adj, train_mask, test_mask):
    for epoch in range(10):
        optimizer.zero_grad()
        logits = model(x, adj)
        F.cross_entropy(logits, y).backward()  # <- DAT031
        optimizer.step()
    with torch.no_grad():
        return accuracy_of(model(x, adj), y, test_mask)
""",
}
TRAIN = """
def train():
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    {}
    loss.backward()
    optimizer.step()
@torch.no_grad()
def test():
    pred = model(data.x, data.edge_index).argmax(1)
    return (pred[data.test_mask] == data.y[data.test_mask]).float().mean()
"""
CORRECT = {
    "the mask": TRAIN.format("loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])"),
    "a weighted loss": TRAIN.format(
        "loss = (F.cross_entropy(out, data.y, reduction='none') * data.train_mask).sum() / data.train_mask.sum()"
    ),
    "labels that are ignored": "data.y[data.test_mask] = -100\n" + TRAIN.format("loss = F.cross_entropy(out, data.y)"),
    "ignore_index": TRAIN.format("loss = F.cross_entropy(out, data.y, ignore_index=-1)"),
    "the keys of a split": "train_rows = split_idx['train']\n" + TRAIN.format("loss = F.cross_entropy(out, data.y)"),
    "a helper with the mask, also for the held-out rows": """
def masked_loss(out, y, mask):
    return F.cross_entropy(out[mask], y[mask])
for epoch in range(10):
    optimizer.zero_grad()
    out = model(x)
    loss = masked_loss(out, y, train_mask)
    loss.backward()
    optimizer.step()
    print(masked_loss(out, y, val_mask).item())
""",
    "a helper of another name with the mask, also for the held-out rows": """
def evaluate(out, y, mask):
    return F.cross_entropy(out[mask], y[mask])
for epoch in range(10):
    optimizer.zero_grad()
    out = model(x)
    evaluate(out, y, train_mask).backward()
    optimizer.step()
    print(evaluate(out, y, val_mask).item())
""",
    "a helper with the mask": """
def masked(out, y, mask):
    return F.cross_entropy(out[mask], y[mask])
"""
    + TRAIN.format("loss = masked(out, data.y, data.train_mask)"),
    "a reconstruction": TRAIN.format("loss = F.mse_loss(out, data.x)"),
    "batches": """
for x, y in loader:
    optimizer.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
with torch.no_grad():
    print(accuracy(model(X)[test_idx], y[test_idx]))
""",
    "rows that were selected before": """
x, y = x[keep], y[keep]
for step in range(10):
    optimizer.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
print(accuracy(model(full)[test_idx], labels[test_idx]))
""",
    "a loader of the training rows": """
loader = NeighborLoader(data, input_nodes=data.train_mask)
"""
    + TRAIN.format("loss = F.cross_entropy(out, data.y)"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)


USABLE = """
def train(model, x, y, weight, split):
    optimizer.zero_grad()
    out = model(x)
    aux = F.mse_loss(out, weight){mark}
    valid_indices = {rows}
    weight_0 = weight[valid_indices]
    (aux + weight_0.mean()).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "rows",
    ["torch.where(weight > 0.1)[0]", "y != -1", "~torch.isnan(y)", "(weight >= low) & (weight <= high)"],
)
def test_lint_accepts_rows_that_are_valid_by_a_comparison(lint_codes, rows):
    assert "DAT031" not in lint_codes(HEAD + USABLE.format(rows=rows, mark=""))


@pytest.mark.parametrize("rows", ["split['valid']", "torch.rand(9) > 0.8", "torch.arange(90) > 80"])
def test_lint_reports_rows_that_are_held_out(lint_codes, rows):
    assert "DAT031" in lint_codes(HEAD + USABLE.format(rows=rows, mark=""))


STEP = """
def train_step(model, optimizer, x, adj, y, train_mask):
    model.train()
    optimizer.zero_grad()
    out = model(x, adj)
    loss = F.cross_entropy(ARGUMENTS)MARK
    loss.backward()
    optimizer.step()
    return loss.item()

@torch.no_grad()
def accuracies(model, x, adj, y, *masks):
    model.eval()
    answers = model(x, adj).argmax(1)
    return [(answers[m] == y[m]).float().mean().item() for m in masks]

for epoch in range(100):
    train_step(model, optimizer, x, adj, y, train_mask)
    print(accuracies(model, x, adj, y, train_mask, test_mask))
"""


@pytest.mark.parametrize("name", ["train_mask", "idx_train", "train_idx"])
def test_lint_reports_rows_that_a_training_step_gets_and_does_not_read(lint_reports, name):
    script = STEP.replace("train_mask", name).replace("ARGUMENTS", "out, y").replace("MARK", "  # <- DAT031")
    lint_reports(HEAD + script)


@pytest.mark.parametrize("arguments", ["out[train_mask], y[train_mask]", "out, torch.where(train_mask, y, -100)"])
def test_lint_accepts_rows_that_a_training_step_reads(lint_is_clean, arguments):
    lint_is_clean(HEAD + STEP.replace("ARGUMENTS", arguments).replace("MARK", ""))


def test_lint_accepts_rows_that_are_not_those_of_the_training(lint_is_clean):
    lint_is_clean(HEAD + STEP.replace("train_mask", "node_mask").replace("ARGUMENTS", "out, y").replace("MARK", ""))
