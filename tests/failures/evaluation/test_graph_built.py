"""EVL003, a note, or a warning where many are in memory at once: graphs that an evaluation does not use."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 6)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:96], y[:96]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[96:], y[96:]), batch_size=16)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def epoch():
    model.train()
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    model.eval()
"""

BROKEN = {
    "in a loop": """
for _ in range(2):
    epoch()
    for a, b in held_out:
        print(nn.functional.mse_loss(model(a), b).item())  # here
""",
    "a function, at the end": """
def evaluate(loader):
    return sum(float((model(a) - b).abs().mean().detach()) for a, b in loader)  # here
epoch()
print(evaluate(held_out))
""",
    "a class": """
class Metric:
    def __init__(self):
        self.total = 0.0
    def run(self):
        for a, b in held_out:
            out = model(a)  # here
            self.total += nn.functional.mse_loss(out, b).item()
epoch()
Metric().run()
epoch()
""",
    "bf16 on new loaders": """
epoch()
with torch.autocast("cpu", dtype=torch.bfloat16):
    for a, _ in DataLoader(x[96:], batch_size=8) and held_out:
        model(a).argmax()  # here
epoch()
""",
}

CORRECT = {
    "no_grad": """
epoch()
with torch.no_grad():
    for a, b in held_out:
        model(a)
""",
    "saliency by autograd.grad": """
epoch()
for a, b in held_out:
    a = a.requires_grad_(True)
    print(torch.autograd.grad(model(a).sum(), a)[0].abs().mean())
""",
    "gradient norms under an import alias": """
from torch.autograd import grad
epoch()
for a, b in held_out:
    print(sum(g.norm() for g in grad(nn.functional.mse_loss(model(a), b), list(model.parameters()))))
""",
    "several attacks on a batch, then evaluated without a graph": """
epoch()
for a, b in held_out:
    for _ in range(3):
        attacked = a.clone().requires_grad_(True)
        a = a + 0.1 * torch.autograd.grad(nn.functional.mse_loss(model(attacked), b), attacked)[0].sign()
    with torch.no_grad():
        print(nn.functional.mse_loss(model(a), b).item())
""",
    "adversarial evaluation by backward": """
epoch()
for a, b in held_out:
    a = a.requires_grad_(True)
    nn.functional.mse_loss(model(a), b).backward(inputs=[a])
    with torch.no_grad():
        model(a + 0.1 * a.grad.sign())
""",
    "one backward over the sum of an epoch": """
for _ in range(3):
    total = 0
    for a, b in train:
        total = total + nn.functional.mse_loss(model(a), b)
    optimizer.zero_grad()
    (total / len(train)).backward()
    optimizer.step()
model.eval()
""",
    "a frozen model": """
epoch()
model.requires_grad_(False)
for a, b in held_out:
    model(a)
""",
}


COLLECTED = {
    "outputs of a loader": """
for _ in range(2):
    epoch()
    outputs = []
    for a, b in DataLoader(TensorDataset(x, y), batch_size=16):
        outputs.append(model(a))  # <- EVL003
    print(nn.functional.mse_loss(torch.cat(outputs), y).item())
""",
    "a loss that is summed up": """
def validate(loader):
    total = 0
    for a, b in loader:
        total += nn.functional.mse_loss(model(a), b)  # <- EVL003
    return total / len(loader)
for _ in range(2):
    epoch()
    print(f"{validate(DataLoader(TensorDataset(x, y), batch_size=16)):.3f}")
""",
    "slices by hand": """
for _ in range(2):
    epoch()
    outputs = [model(x[i:i + 10]) for i in range(0, 160, 10)]  # <- EVL003
    print((torch.cat(outputs) - y).abs().mean().item())
""",
    "slices by hand, then the end": """
epoch()
outputs = torch.cat([model(part) for part in x.split(8)])  # <- EVL003
""",
}
USED_TOGETHER = {
    "slices in eval mode, one backward": """
epoch()
for _ in range(3):
    outputs = [model(x[i:i + 10]) for i in range(0, 160, 10)]
    optimizer.zero_grad()
    nn.functional.mse_loss(torch.cat(outputs), y).backward()
    optimizer.step()
""",
    "an episode in eval mode": """
epoch()
for _ in range(3):
    rewards = []
    state = torch.randn(1, 6)
    for _ in range(12):
        rewards.append(model(state))
        state = torch.randn(1, 6)
    optimizer.zero_grad()
    torch.stack(rewards[:-1]).mean().backward()
    optimizer.step()
""",
    "outputs without graphs": """
epoch()
outputs = [model(x[i:i + 10]).detach() for i in range(0, 160, 10)]
""",
    "gradients of all outputs with respect to the inputs": """
epoch()
a = x.clone().requires_grad_(True)
outputs = torch.cat([model(part) for part in a.split(8)])
print(torch.autograd.grad(outputs.sum(), a)[0].norm())
""",
}
CORRECT |= USED_TOGETHER


def notes(ran):
    return [found for found in ran.findings if found.code == "EVL003"]


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_run_reports_a_note(run, script):
    lines = (HEAD + script).splitlines()
    ran = run(HEAD + script)
    assert [found.location.line for found in notes(ran)] == [n for n, line in enumerate(lines, 1) if "# here" in line]
    assert not ran.reported_lines


@pytest.mark.parametrize("script", COLLECTED.values(), ids=COLLECTED)
def test_run_warns_if_the_graphs_are_in_memory_at_once(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(run, script):
    assert not notes(run(HEAD + script))


# The rule --------------------------------------------------------------------------------------------------------

LINT_BROKEN = {
    "a function with annotations, a progress bar and a long body": """
from tqdm import tqdm

def validate(net: nn.Module, loader: DataLoader, device: str = "cpu") -> float:
    net.eval()
    correct, total = 0, 0
    for inputs, labels in tqdm(loader):  # the validation set
        inputs = inputs.to(device)

        outputs = net(inputs)  # <- EVL003
        correct += (
            (outputs.argmax(dim=1) == labels)
            .sum()  # of the batch
            .item()
        )
        total += len(labels)
    net.train()
    return correct / total
""",
    "a trainer": """
class Trainer:
    def __init__(self, net, loader, val_loader):
        self.net = net
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.loader, self.val_loader = loader, val_loader

    def fit(self, epochs):
        for _ in range(epochs):
            self.net.train()
            for a, b in self.loader:
                self.optimizer.zero_grad()
                nn.functional.mse_loss(self.net(a), b).backward()
                self.optimizer.step()
            self.net.eval()
            losses = [nn.functional.mse_loss(self.net(a), b).item() for a, b in self.val_loader]  # <- EVL003
            print(sum(losses) / len(losses))

Trainer(model, train, held_out).fit(3)
""",
}

LINT_CORRECT = {
    "inference_mode as a decorator": """
@torch.inference_mode()
def validate(net: nn.Module, loader: DataLoader):
    net.eval()
    return [net(a) for a, _ in loader]
""",
    "gradients enabled by an argument": """
def run(loader, training):
    model.eval()
    with torch.set_grad_enabled(training):
        for a, b in loader:
            print(model(a))
run(held_out, False)
""",
    "in train mode": """
model.train()
for a, b in held_out:
    print(model(a))
""",
    "passed to a library": """
from elsewhere import attribute
model.eval()
for a, b in held_out:
    attribute(model(a), b)
""",
    "no loader": """
model.eval()
for a, b in zip(x.split(8), y.split(8)):
    print(model(a))
""",
}


@pytest.mark.parametrize("name", [*BROKEN, *LINT_BROKEN])
def test_lint_reports_it(lint_reports, name):
    lint_reports(HEAD + {**BROKEN, **LINT_BROKEN}[name].replace("# here", "# <- EVL003"), fixes=True)


@pytest.mark.parametrize("name", [*CORRECT, *LINT_CORRECT])
def test_lint_ignores_correct_programs(lint_is_clean, name):
    lint_is_clean(HEAD + {**CORRECT, **LINT_CORRECT}[name], "EVL003")


def test_fix_wraps_the_evaluation_in_no_grad(lint_reports):
    from trueloop.core.source_text import SourceText, apply_fixes

    text = HEAD + LINT_BROKEN["a function with annotations, a progress bar and a long body"]
    (finding,) = lint_reports(text)
    fixed = apply_fixes(SourceText(text), [finding.autofix])[0].source
    assert "    with torch.no_grad():\n        for inputs, labels in tqdm(loader):  # the validation set\n" in fixed
    assert "            inputs = inputs.to(device)\n\n            outputs = net(inputs)" in fixed
    assert "            total += len(labels)\n    net.train()\n" in fixed


# Kept graphs ------------------------------------------------------------------------------------------------------

KEPT_GRAPHS_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
data = TensorDataset(x, y)
"""

NETWORK = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 1)
        self.seen, self.total = [], 0.0

    def forward(self, x):
        return self.head(self.body(x))
METHOD
model = Net()
"""

EVALUATED = """
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

train_loader = DataLoader(Subset(data, range(64)), batch_size=16)
held_out = DataLoader(Subset(data, range(64, 96)), batch_size=16)
for epoch in range(2):
    model.train()
    for a, b in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    model.eval()
"""
PLAIN = "model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))" + EVALUATED

KEPT_GRAPHS = {
    "outputs are collected": PLAIN
    + """    outputs = []
    for a, b in held_out:
        outputs.append(model(a))  # <- EVL003
""",
    "losses are added up": PLAIN
    + """
    total = 0.0
    for a, b in held_out:
        total += nn.functional.mse_loss(model(a), b)  # <- EVL003
    print(float(total))
""",
    "a method of the model collects outputs": NETWORK.replace(
        "METHOD",
        """
    def predict(self, x):
        hidden = self.body(x)  # <- EVL003
        self.seen.append(hidden)  # <- MEM001
        return self.head(hidden)
""",
    )
    + EVALUATED
    + """
    for a, b in held_out:
        print(model.predict(a).mean().item())
""",
    "a method of the model adds up outputs": NETWORK.replace(
        "METHOD",
        """
    def predict(self, x):
        hidden = self.body(x)  # <- EVL003
        self.total += self.head(hidden).mean()  # <- MEM001
""",
    )
    + EVALUATED
    + """
    for a, b in held_out:
        model.predict(a)
    print(model.total.item())
""",
    "a function adds up outputs in a global variable": PLAIN.replace(
        "optimizer =",
        """
total = 0.0
def count(inputs):
    global total
    total += model(inputs).mean()  # <- EVL003

optimizer =""",
    )
    + """
    for a, b in held_out:
        count(a)
""",
}

KEPT_GRAPHS_FINE = {
    "without gradients": PLAIN
    + """    outputs = []
    with torch.no_grad():
        for a, b in held_out:
            outputs.append(model(a))
""",
    "a method of the model with lists and totals of its own, whose results are stored as arrays": NETWORK.replace(
        "METHOD",
        """
    def importance(self, x):
        weights, parts, total = {}, [], torch.zeros(len(x), 8)
        hidden = self.body(x)
        for step in range(3):
            hidden = hidden * hidden.softmax(1)
            weights[step] = hidden
            parts.append(self.head(hidden))
            total += hidden
        return total + torch.stack(parts).mean(0), weights
""",
    )
    + EVALUATED
    + """
    explained, all_weights = [], []
    for a, b in held_out:
        total, weights = model.importance(a)
        for key, value in weights.items():
            weights[key] = value.detach().numpy()
        explained.append(total.detach().numpy())
        all_weights.append(weights)
""",
    "a list and a total of each batch": PLAIN
    + """
    for a, b in held_out:
        outputs, total = [], 0.0
        output = model(a)
        outputs.append(output)
        outputs.append(output - b)
        for each in outputs:
            total += each.mean()
        print(float(total), torch.stack(outputs).std().item())
""",
    "a function with a total of its own": PLAIN.replace(
        "optimizer =",
        """
def judge(net, inputs, targets):
    error = 0.0
    for column in net(inputs).T:
        error += (column - targets[:, 0]).abs().mean()
    return error.item()

optimizer =""",
    )
    + """
    total = 0.0
    for a, b in held_out:
        total += judge(model, a, b)
""",
}


@pytest.mark.parametrize("name", KEPT_GRAPHS)
def test_lint_reports_kept_graphs(lint_reports, name):
    lint_reports(KEPT_GRAPHS_HEAD + KEPT_GRAPHS[name])


@pytest.mark.parametrize("name", KEPT_GRAPHS_FINE)
def test_lint_accepts_kept_graphs(lint_is_clean, name):
    lint_is_clean(KEPT_GRAPHS_HEAD + KEPT_GRAPHS_FINE[name])
