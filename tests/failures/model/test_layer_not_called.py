"""MDL018: layers and losses created with tensors."""

import pytest

FAULTY = {
    "a loss gets prediction and labels": """
for x, y in loader:
    output = model(x)
    loss = nn.NLLLoss(output, y)  # <- MDL018
    loss.backward()
""",
    "a loss that was never created": """
criterion = nn.CrossEntropyLoss
def step(model, x, labels):
    loss = criterion(model(x), labels)  # <- MDL018
    loss.backward()
""",
    "an activation in forward": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 1)
    def forward(self, x):
        return nn.Sigmoid(self.fc(x))  # <- MDL018
""",
}

CORRECT = {
    "weights of the classes": """
def make(weights, average):
    return nn.CrossEntropyLoss(weights), nn.CrossEntropyLoss(weights, average), nn.BCEWithLogitsLoss(pos_weight=weights)
""",
    "weights of the classes that are computed": """
counts = torch.bincount(labels)
criterion = nn.CrossEntropyLoss(1.0 / counts.float())
""",
    "settings that are variables": """
def layers(p, dim, inplace):
    return nn.Dropout(p), nn.Softmax(dim), nn.ReLU(inplace)
""",
    "created and called": """
for x, y in loader:
    nn.NLLLoss()(nn.LogSoftmax(1)(model(x)), y).backward()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)
