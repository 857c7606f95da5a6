"""LOS010: cross-entropy of one output."""

import pytest

FAULTY = {
    "a class with one output": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 1)
    def forward(self, x):
        return self.fc(x)
model = Net()
criterion = nn.CrossEntropyLoss()
for x, y in loader:
    loss = criterion(model(x), y)  # <- LOS010
    loss.backward()
""",
    "a sequential, the function": """
model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
for x, y in loader:
    F.cross_entropy(model(x), y).backward()  # <- LOS010
""",
    "a map of one class": """
head = nn.Conv2d(16, 1, kernel_size=1)
for x, y in loader:
    F.cross_entropy(head(x), y).backward()  # <- LOS010
""",
}

CORRECT = {
    "scores of candidates": """
score = nn.Linear(8, 1)
for x, y in loader:
    F.cross_entropy(score(x).squeeze(-1), y).backward()
""",
    "two outputs": """
model = nn.Linear(8, 2)
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
""",
    "the number of outputs is a variable": """
model = nn.Linear(8, classes)
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
""",
    "the binary loss": """
model = nn.Linear(8, 1)
for x, y in loader:
    F.binary_cross_entropy_with_logits(model(x), y).backward()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)
