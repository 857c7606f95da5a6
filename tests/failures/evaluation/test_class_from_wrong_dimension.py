"""EVL011: predicted classes along the wrong dimension."""

import pytest

FAULTY = {
    "values of max": """
for x, y in test_loader:
    outputs = model(x)
    predicted, _ = torch.max(outputs, 1)  # <- EVL011
    correct += (predicted == y).sum().item()
""",
    "the batch dimension": """
for x, y in loader:
    out = model(x)
    correct += (out.argmax(0) == y).sum().item()  # <- EVL011
""",
    "the second result of max over the batch": """
def accuracy(model, test_loader):
    hits = 0
    for images, labels in test_loader:
        scores = torch.softmax(model(images), dim=1)
        _, predicted = torch.max(scores.data, 0)  # <- EVL011
        hits += (predicted == labels).sum()
    return hits
""",
    "no dimension": """
for i, (x, y) in enumerate(loader):
    predicted = torch.argmax(model(x))  # <- EVL011
    correct += predicted.eq(y).float().mean()
""",
    "the first result by index": """
for x, labels in loader:
    predicted = torch.max(model(x), dim=1)[0]  # <- EVL011
    correct += (predicted == labels).sum()
""",
}

CORRECT = {
    "classes of samples": """
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
    "a single sample": """
for x, y in dataset:
    pred = model(x.unsqueeze(0))[0].argmax(0)
    correct += (pred == y).sum().item()
print(correct / len(dataset))
""",
    "batches of one sample": """
loader = DataLoader(ds, batch_size=1)
for x, y in loader:
    pred = model(x).argmax()
    correct += (pred == y).sum().item()
print(correct / len(loader))
""",
    "the scores themselves": """
for x, y in loader:
    out = model(x)
    m = (out == out.max(1, keepdim=True)[0]).sum()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)
