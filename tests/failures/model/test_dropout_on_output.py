"""MDL030: dropout between the last layer and the loss."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(192, 8)
classes = x[:, :5].argmax(1)
"""
LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for rows in torch.arange(192).split(32):
        optimizer.zero_grad()
        out = model(x[rows])
        loss = {loss}
        loss.backward()
        optimizer.step()
"""
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(8, 16), nn.Linear(16, 5), nn.Dropout(0.4)

    def hidden(self, x):
        return self.drop(self.a(x))

    def forward(self, x):
        {forward}

model = Net()
"""
CROSS_ENTROPY = "F.cross_entropy(out, classes[rows])"
MARK = "  # <- MDL030"


def program(model: str, loss: str = CROSS_ENTROPY) -> str:
    return HEAD + model + LOOP.format(loss=loss)


FAULTY = {
    "at the end": program(
        "model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5), nn.Dropout(0.3))", CROSS_ENTROPY + MARK
    ),
    "in forward": program(NET.format(forward="return self.drop(self.b(torch.relu(self.a(x))))"), CROSS_ENTROPY + MARK),
    "a function, of a regression": program(
        NET.format(forward="return F.dropout(self.b(torch.relu(self.a(x))), 0.5, self.training)"),
        "F.mse_loss(out, x[rows, :5])" + MARK,
    ),
    "reshaped": program(
        NET.format(forward="return self.drop(self.b(torch.relu(self.a(x))).unsqueeze(1)).squeeze(1)"),
        "nn.CrossEntropyLoss()(out, classes[rows])" + MARK,
    ),
}
LINTED = {
    "at the end": program(
        "model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5), nn.Dropout(0.3))" + MARK
    ),
    "in forward": program(NET.format(forward="return self.drop(self.b(torch.relu(self.a(x))))" + MARK)),
    "a function": program(NET.format(forward="return F.dropout(self.b(self.a(x).relu()), 0.5, self.training)" + MARK)),
}  # fmt: skip
CORRECT = {
    "before the last layer": program(
        "model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 5))"
    ),
    "a layer after it": program(NET.format(forward="return self.b(self.drop(torch.relu(self.a(x))))")),
    "a mask": program("model = nn.Linear(8, 5)", "F.mse_loss(out * (x[rows, :5] > 0), x[rows, :5])"),
    "a rate of 0": program("model = nn.Sequential(nn.Linear(8, 5), nn.Dropout(0.0))"),
    "an attention": program(NET.format(
        forward="h = self.a(x); return self.b(self.drop((h @ h.T).softmax(-1)) @ h)"
    )),
}  # fmt: skip


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_dropped_outputs(run_reports, script):
    run_reports(script)


@pytest.mark.parametrize("script", LINTED.values(), ids=LINTED)
def test_lint_reports_dropped_outputs(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_accepts_correct_programs(run_is_clean, lint_is_clean, script):
    lint_is_clean(script, "MDL030")
    if "attention" not in script and "h.T" not in script:
        run_is_clean(script)


LISTED_HEAD = """
import torch
from torch import nn
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64))
"""
TRAIN = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = make(8, 16, 2, 0.2)
    def forward(self, x):
        return self.head(x).squeeze(-1)
model = Net()
optimizer = torch.optim.Adam(model.parameters())
for x, y in torch.utils.data.DataLoader(data, batch_size=16):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""
LISTED = {
    "a list": """
def make(d, h, n, p):
    layers = [nn.Linear(d, h), nn.ReLU(), nn.Linear(h, 1), nn.Dropout(p)]  # <- MDL030
    return nn.Sequential(*layers)
""",
    "a loop and a last layer": """
def make(d, h, n, p):
    layers = [nn.Linear(d, h), nn.ReLU()]
    for _ in range(n):
        layers += [nn.Linear(h, h), nn.Dropout(p=p), nn.ReLU()]
    layers += [nn.Linear(h, 1), nn.Dropout(p=p)]  # <- MDL030
    return nn.Sequential(*layers)
""",
    "appended": """
def make(d, h, n, p):
    layers = [nn.Linear(d, h), nn.ReLU()]
    layers.append(nn.Linear(h, 1))
    layers.append(nn.Dropout(p))  # <- MDL030
    return nn.Sequential(*layers)
""",
}
LISTED_CORRECT = {
    "dropout before the last layer": """
def make(d, h, n, p):
    layers = [nn.Linear(d, h), nn.ReLU()]
    for _ in range(n):
        layers += [nn.Linear(h, h), nn.ReLU(), nn.Dropout(p)]
    layers += [nn.Linear(h, 1)]
    return nn.Sequential(*layers)
""",
    "a rate of 0": """
def make(d, h, n, p):
    layers = [nn.Linear(d, h), nn.ReLU(), nn.Linear(h, 1), nn.Dropout(0)]
    return nn.Sequential(*layers)
""",
    "a layer under a condition": """
def make(d, h, n, p):
    layers = [nn.Linear(d, h), nn.ReLU(), nn.Dropout(p)]
    if n:
        layers.append(nn.Linear(h, 1))
    return nn.Sequential(*layers)
""",
    "features": """
class Inner(nn.Module):
    def __init__(self, d, h, p):
        super().__init__()
        self.body = nn.Sequential(*[nn.Linear(d, h), nn.ReLU(), nn.Dropout(p)])
        self.out = nn.Linear(h, 1)
    def forward(self, x):
        return self.out(self.body(x))
def make(d, h, n, p):
    return Inner(d, h, p)
""",
}


@pytest.mark.parametrize("script", LISTED.values(), ids=LISTED.keys())
def test_lint_reports_dropout_at_the_end_of_a_list(lint_reports, script):
    lint_reports(LISTED_HEAD + script + TRAIN)


@pytest.mark.parametrize("script", LISTED_CORRECT.values(), ids=LISTED_CORRECT.keys())
def test_lint_accepts_lists_that_end_in_a_layer(lint_is_clean, script):
    lint_is_clean(LISTED_HEAD + script + TRAIN)
