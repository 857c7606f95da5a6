"""EVL016: metrics that are no means over samples, averaged over batches."""

import pytest

FAULTY = {
    "divided by the number of batches": """
def evaluate(model, val_loader):
    total = 0
    with torch.no_grad():
        for x, y in val_loader:
            p = model(x).argmax(1)
            total += f1_score(y, p, average="macro")  # <- EVL016
    return total / len(val_loader)
""",
    "through a variable and a list": """
aucs = []
for x, y in test_loader:
    scores = torch.sigmoid(model(x))
    auc = roc_auc_score(y.numpy(), scores.numpy())  # <- EVL016
    aucs.append(auc)
print(np.mean(aucs))
""",
    "a meter": """
def validate(model, loader, f1_meter):
    for x, y in loader:
        f1_meter.update(f1_score(y, model(x) > 0), x.size(0))  # <- EVL016
""",
    "weighted by the size of the batch": """
for x, y in loader:
    r2 += r2_score(y, model(x)).item() * len(x)  # <- EVL016
r2 /= len(loader.dataset)
""",
}
CORRECT = {
    "once, after the loop": """
preds, labels = [], []
for x, y in loader:
    preds.append(model(x).argmax(1)); labels.append(y)
f1 = f1_score(torch.cat(labels), torch.cat(preds))
print(f1 / 1.0)
""",
    "displayed during training": """
for x, y in train_loader:
    out = model(x)
    loss(out, y).backward()
    running += f1_score(y, out.argmax(1))
print(running / len(train_loader))
""",
    "a list that is only printed": """
history = []
for epoch in range(3):
    for x, y in loader:
        preds.append(model(x))
    history.append(f1_score(y_all, torch.cat(preds)))
print(np.mean(history))
""",
    "the mean over samples": """
for x, y in loader:
    f1 += f1_score(y, model(x) > 0, average="samples") * len(x)
f1 /= len(dataset)
""",
    "folds": """
for fold, (a, b) in enumerate(kf.split(X)):
    scores.append(f1_score(y[b], fit(X[a], y[a]).predict(X[b])))
print(np.mean(scores))
""",
    "one document for each batch": """
loader = DataLoader(documents, batch_size=1)
for x, y in loader:
    total += f1_score(y, model(x))
print(total / len(loader))
""",
    "an accuracy": """
for x, y in loader:
    correct += accuracy_score(y, model(x).argmax(1)) * len(x)
print(correct / len(dataset))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_metric(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "EVL016")
