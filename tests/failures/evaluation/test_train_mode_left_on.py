"""EVL001: held-out data evaluated in train mode."""

import pytest

HEAD = """
import copy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 6)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:96], y[:96]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[96:], y[96:]), batch_size=16)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
normal = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def epoch(net=model, opt=optimizer, loader=train):
    for a, b in loader:
        opt.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        opt.step()
"""

FUNCTIONAL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 1)
    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return self.last(nn.functional.dropout(hidden, RATE, training=self.training))
"""

BROKEN = {
    "functional dropout that follows the mode": FUNCTIONAL.replace("RATE", "0.3")
    + """
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(2):
    epoch(net, opt)
    with torch.no_grad():
        for a, b in held_out:
            print(nn.functional.mse_loss(net(a), b))  # <- EVL001
""",
    "inline": """
for _ in range(2):
    model.train()
    epoch()
    with torch.no_grad():
        print(sum(nn.functional.mse_loss(model(a), b).item() for a, b in held_out))  # <- EVL001
""",
    "only at the end, in a function under inference_mode": """
@torch.inference_mode()
def evaluate(net, loader):
    total = 0.0
    for a, b in loader:
        out = net(a)  # <- EVL001
        total += nn.functional.mse_loss(out, b, reduction="sum").item()
    return total / len(loader.dataset)
epoch()
print(evaluate(model, held_out))
""",
    "a class, batch normalisation only": """
class Trainer:
    def __init__(self, net):
        self.net, self.opt = net, torch.optim.SGD(net.parameters(), lr=0.05)
    def fit(self, epochs):
        for _ in range(epochs):
            epoch(self.net, self.opt)
            self.validate()
    @torch.no_grad()
    def validate(self):
        return [nn.functional.l1_loss(self.net(a), b).item() for a, b in held_out]  # <- EVL001
Trainer(normal).fit(3)
""",
    "eval mode in the first epoch only, a branch, bf16": """
for number in range(3):
    model.train()
    epoch()
    if number == 0:
        model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for a, b in held_out:
            model(a)  # <- EVL001
""",
    "a teacher is evaluated after it": """
teacher = copy.deepcopy(model).requires_grad_(False)
@torch.no_grad()
def measure(net):
    return sum(nn.functional.mse_loss(net(a), b, reduction="sum").item() for a, b in held_out)  # <- EVL001
for _ in range(2):
    epoch()
    for old, new in zip(teacher.state_dict().values(), model.state_dict().values()):
        old.copy_(0.9 * old + 0.1 * new)
    print(measure(model), measure(teacher.eval()))
""",
    "a metric over the loader, a second optimizer": """
other = nn.Linear(6, 1)
its = torch.optim.SGD(other.parameters(), lr=0.01)
def r2(net):
    with torch.no_grad():
        outputs = torch.cat([net(a) for a, _ in held_out])  # <- EVL001
    return 1 - (outputs - y[96:]).var() / y[96:].var()
for _ in range(2):
    epoch()
    epoch(other, its)
    print(float(r2(model)))
""",
}

CORRECT = {
    "functional dropout with rate 0": FUNCTIONAL.replace("RATE", "0.0")
    + """
net = Net()
for _ in range(2):
    epoch(net, torch.optim.SGD(net.parameters(), lr=0.05))
    with torch.no_grad():
        for a, b in held_out:
            net(a)
""",
    "functional dropout in eval mode": FUNCTIONAL.replace("RATE", "0.3")
    + """
net = Net()
for _ in range(2):
    net.train()
    epoch(net, torch.optim.SGD(net.parameters(), lr=0.05))
    net.eval()
    with torch.no_grad():
        for a, b in held_out:
            net(a)
""",
    "eval mode": """
for _ in range(2):
    model.train()
    epoch()
    model.eval()
    with torch.no_grad():
        for a, b in held_out:
            model(a)
""",
    "MC dropout by its layers": """
epoch()
model.eval()
for module in model.modules():
    if isinstance(module, nn.Dropout):
        module.train()
with torch.no_grad():
    print(torch.stack([torch.cat([model(a) for a, _ in held_out]) for _ in range(4)]).std())
""",
    "MC dropout by the model, pass by pass": """
for _ in range(2):
    model.train()
    epoch()
    with torch.no_grad():
        print(torch.stack([torch.cat([model(a) for a, _ in held_out]) for _ in range(5)]).std())
""",
    "MC dropout batch by batch": """
epoch()
with torch.no_grad():
    for a, b in held_out:
        print(torch.stack([model(a) for _ in range(4)]).mean())
""",
    "statistics of a new domain, then eval mode": """
sgd = torch.optim.SGD(normal.parameters(), lr=0.05)
for _ in range(3):
    normal.train()
    epoch(normal, sgd)
    with torch.no_grad():
        for a, _ in held_out:
            normal(a)
    normal.eval()
    with torch.no_grad():
        for a, _ in DataLoader(TensorDataset(x[96:], y[96:]), batch_size=32):
            normal(a)
""",
    "averaged weights and update_bn": """
from torch.optim.swa_utils import AveragedModel, update_bn
averaged = AveragedModel(normal)
sgd = torch.optim.SGD(normal.parameters(), lr=0.05)
for _ in range(2):
    normal.train()
    epoch(normal, sgd)
    averaged.update_parameters(normal)
update_bn(train, averaged)
""",
    "a teacher in train mode": """
teacher = copy.deepcopy(model)
for _ in range(2):
    epoch()
    with torch.no_grad():
        for a, b in held_out:
            teacher(a)
""",
    "the training loss over the training loader": """
for _ in range(2):
    epoch()
    with torch.no_grad():
        for a, b in train:
            model(a)
""",
    "without dropout or batch normalisation": """
plain = nn.Linear(6, 1)
sgd = torch.optim.SGD(plain.parameters(), lr=0.01)
epoch(plain, sgd)
with torch.no_grad():
    for a, b in held_out:
        plain(a)
""",
    "frozen batch normalisation": """
normal[1].eval()
sgd = torch.optim.SGD(normal.parameters(), lr=0.01)
for _ in range(3):
    epoch(normal, sgd)
    with torch.no_grad():
        for a, b in held_out:
            normal(a)
""",
    "a learning rate finder": """
state = copy.deepcopy(model.state_dict())
for rate in (0.001, 0.01):
    for a, b in held_out:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
model.load_state_dict(state)
epoch()
""",
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_run_reports_it(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(run_is_clean, script):
    run_is_clean(HEAD + script)


# The rule --------------------------------------------------------------------------------------------------------

MISSED_BY_LINT = {"eval mode in the first epoch only, a branch, bf16"}
"""If the mode is set at all, the text does not show its value in each evaluation pass."""

LINT_BROKEN = {
    "functions with annotations and a progress bar": """
from tqdm import tqdm

def train_one(net: nn.Module, loader: DataLoader, opt: torch.optim.Optimizer) -> float:
    net.train()
    total = 0.0
    for inputs, targets in tqdm(loader):
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        opt.step()
        total += loss.item()
    return total / len(loader)

def validate(net: nn.Module, loader: DataLoader) -> float:
    total = 0.0
    with torch.no_grad():
        for inputs, targets in tqdm(loader):
            outputs = net(inputs)  # <- EVL001
            total += nn.functional.mse_loss(outputs, targets).item()
    return total / len(loader)

def main() -> None:
    for _ in range(3):
        print(train_one(model, train, optimizer), validate(model, held_out))

if __name__ == "__main__":
    main()
""",
    "a user-defined network, enumerated, with AMP": """
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.drop, self.fc = nn.Conv2d(1, 4, 3), nn.Dropout2d(0.25), nn.Linear(4, 10)

    def forward(self, x):
        return self.fc(self.drop(F.relu(self.conv(x))).mean((2, 3)))

net = Net().to("cuda")
adam = torch.optim.Adam(net.parameters())
scaler = torch.amp.GradScaler("cuda")
for epoch in range(4):
    for i, (images, labels) in enumerate(train):
        adam.zero_grad()
        with torch.autocast("cuda"):
            loss = F.cross_entropy(net(images), labels)
        scaler.scale(loss).backward()
        scaler.step(adam)
        scaler.update()
    correct = 0
    with torch.no_grad():
        for i, (images, labels) in enumerate(held_out):
            with torch.autocast("cuda"):
                predicted = net(images).argmax(1)  # <- EVL001
            correct += (predicted == labels.squeeze(1)).sum().item()
""",
    "a class that tests at its end": """
import torchvision

class Experiment:
    def __init__(self, data, test_data, rate=1e-3):
        self.net = torchvision.models.resnet18(weights=None)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=rate)
        self.loader = DataLoader(data, batch_size=64, shuffle=True)
        self.test_loader = DataLoader(test_data, batch_size=64)

    def run(self):
        for images, labels in self.loader:
            self.opt.zero_grad()
            nn.functional.cross_entropy(self.net(images), labels).backward()
            self.opt.step()
        return self.test()

    @torch.no_grad()
    def test(self):
        right = 0
        for images, labels in self.test_loader:
            right += (self.net(images).argmax(1) == labels).sum()  # <- EVL001
        return right / len(self.test_loader.dataset)
""",
}

LINT_CORRECT = {
    "a teacher that begins as the student": """
student, teacher = (nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)) for _ in range(2))
teacher.load_state_dict(student.state_dict())
for a, b in train:
    with torch.no_grad():
        target = teacher(a)
    optimizer.zero_grad()
    nn.functional.mse_loss(student(a), target).backward()
    optimizer.step()
    with torch.no_grad():
        for p, q in zip(teacher.parameters(), student.parameters()):
            p.data.mul_(0.99).add_(0.01 * q.data)
""",
    "eval mode by a function": """
def measure(net):
    net.eval()
    with torch.no_grad():
        out = [net(a) for a, _ in held_out]
    net.train()
    return out
for _ in range(3):
    epoch()
    measure(model)
""",
    "eval mode by a callback": """
class Task:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 1))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def before_validation(self):
        self.net.eval()
    def fit(self):
        for a, b in train:
            self.opt.zero_grad()
            nn.functional.mse_loss(self.net(a), b).backward()
            self.opt.step()
        self.before()
        with torch.no_grad():
            return [self.net(a) for a, _ in held_out]
""",
    "eval mode of an unknown object": """
from elsewhere import registry
registry["net"] = model
for _ in range(3):
    epoch()
    for each in registry.values():
        each.eval()
    with torch.no_grad():
        print([model(a) for a, _ in held_out])
""",
    "statistics of batch normalisation": """
epoch()
with torch.no_grad():
    for a, _ in held_out:
        model(a)
""",
    "the loader that it is trained on, under another name": """
same = train
for _ in range(2):
    epoch()
    with torch.no_grad():
        print(sum(nn.functional.mse_loss(model(a), b).item() for a, b in same))
""",
    "pseudo-labels in between": """
for a, b in train:
    with torch.no_grad():
        guess = model(a)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), guess).backward()
    optimizer.step()
""",
    "rollouts of a policy": """
import gymnasium as gym
env = gym.make("CartPole-v1")
policy = nn.Sequential(nn.Linear(4, 128), nn.Dropout(p=0.6), nn.ReLU(), nn.Linear(128, 2))
sgd = torch.optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(10):
    state, _ = env.reset()
    with torch.no_grad():
        for t in range(1000):
            action = policy(torch.as_tensor(state)).argmax()
            state, *_ = env.step(int(action))
    sgd.zero_grad()
    policy(torch.randn(8, 4)).sum().backward()
    sgd.step()
""",
    "an unknown model": """
def fit(net: nn.Module, loader: DataLoader, val: DataLoader):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for a, b in loader:
        opt.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        opt.step()
    with torch.no_grad():
        return [net(a) for a, _ in val]
""",
    "passed to a library": """
from elsewhere import quiet
for _ in range(2):
    epoch()
    with quiet(model), torch.no_grad():
        print([model(a) for a, _ in held_out])
""",
}


@pytest.mark.parametrize("name", [*(name for name in BROKEN if name not in MISSED_BY_LINT), *LINT_BROKEN])
def test_lint_reports_it(lint_reports, name):
    lint_reports(HEAD + {**BROKEN, **LINT_BROKEN}[name])


@pytest.mark.parametrize("name", [*MISSED_BY_LINT, *CORRECT, *LINT_CORRECT])
def test_lint_ignores_correct_programs(lint_is_clean, name):
    lint_is_clean(HEAD + {**BROKEN, **CORRECT, **LINT_CORRECT}[name])


FUNCTIONS = """
def train_one(net, loader, opt):
    net.train()
    for a, b in loader:
        opt.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        opt.step()

@torch.no_grad()
def evaluate(net, loader):
    for a, b in loader:
        out = net(a){mark}
        print(nn.functional.mse_loss(out, b).item())
"""
CALLED = {
    "two held-out loaders by one function": """
def main():
    test = DataLoader(TensorDataset(x[96:128], y[96:128]), batch_size=16)
    for _ in range(3):
        train_one(model, train, optimizer)
        evaluate(model, held_out)
    evaluate(model, test)
main()
""",
    "eval mode after the last epoch only": """
def predict(net):
    net.eval()
    with torch.no_grad():
        return net(x)

def main():
    for _ in range(3):
        train_one(model, train, optimizer)
        evaluate(model, held_out)
    print(predict(model))
main()
""",
    "eval mode for the test only": """
def main():
    for _ in range(3):
        train_one(model, train, optimizer)
        evaluate(model, held_out)
    model.eval()
    evaluate(model, DataLoader(TensorDataset(x[96:128], y[96:128]), batch_size=16))
main()
""",
    "eval mode in a function that nothing calls": """
def export(net, path):
    net.eval()
    torch.onnx.export(net, (x,), path)

def main():
    for _ in range(3):
        train_one(model, train, optimizer)
        evaluate(model, held_out)
main()
""",
}
CALLED_RIGHTLY = {
    "each evaluation after eval mode, in functions": """
def main():
    for _ in range(3):
        train_one(model, train, optimizer)
        model.eval()
        evaluate(model, held_out)
main()
""",
    "MC dropout, three passes of one function": """
def main():
    train_one(model, train, optimizer)
    for_all = [evaluate(model, held_out), evaluate(model, held_out), evaluate(model, held_out)]
main()
""",
    "MC dropout, set to train mode for it": """
def main():
    for _ in range(2):
        train_one(model, train, optimizer)
        model.eval()
        evaluate(model, held_out)
        model.train()
        evaluate(model, DataLoader(TensorDataset(x[96:128], y[96:128]), batch_size=16))
main()
""",
    "statistics of a new domain in every iteration, then eval mode": """
def main():
    sgd = torch.optim.SGD(normal.parameters(), lr=0.05)
    for _ in range(3):
        train_one(normal, train, sgd)
        evaluate(normal, held_out)
        normal.eval()
        evaluate(normal, DataLoader(TensorDataset(x[96:], y[96:]), batch_size=32))
main()
""",
    "eval mode by a condition": """
def main(mode):
    for _ in range(3):
        train_one(model, train, optimizer)
        if mode == "eval":
            model.eval()
        evaluate(model, held_out)
main("eval")
""",
    "eval mode at the end of each iteration, trained in some": """
def main(epochs):
    for number in range(epochs):
        if number % 2:
            train_one(model, train, optimizer)
        evaluate(model, held_out)
        model.eval()
main(4)
""",
    "eval mode by a function from another file": """
from elsewhere import engine

@engine.before_evaluation
def silence():
    model.eval()

def main():
    for _ in range(3):
        train_one(model, train, optimizer)
        engine.fire()
        evaluate(model, held_out)
main()
""",
}


@pytest.mark.parametrize("script", CALLED.values(), ids=CALLED)
def test_lint_follows_the_order_of_calls(lint_reports, script):
    lint_reports(HEAD + FUNCTIONS.format(mark="  # <- EVL001") + script)


@pytest.mark.parametrize("script", CALLED_RIGHTLY.values(), ids=CALLED_RIGHTLY)
def test_lint_ignores_an_unclear_order_of_calls(lint_is_clean, script):
    lint_is_clean(HEAD + FUNCTIONS.format(mark="") + script, "EVL001")


def test_fix_puts_eval_and_train_around_the_evaluation(lint_reports):
    from trueloop.core.source_text import SourceText, apply_fixes

    text = HEAD + LINT_BROKEN["functions with annotations and a progress bar"]
    (finding,) = lint_reports(text)
    fixed = apply_fixes(SourceText(text), [finding.autofix])[0].source
    assert "        net.eval()\n        for inputs, targets in tqdm(loader):\n            outputs" in fixed
    assert "item()\n        net.train()\n    return total / len(loader)\n\ndef main" in fixed


MEASURED = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
with torch.no_grad():
    for a, b in held_out:
        total = nn.functional.mse_loss(model(a), b)
"""
CLASS = """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.drop = nn.Linear(6, 1), nn.Dropout({rate})
class Net({base}):
    def forward(self, a):
        return {forward}
model = Net()
"""
BLOCK = """
def block(n, m, norm=True):
    {layers}
    return layers
model = nn.Sequential(*{call})
"""
NORMED = "layers = [nn.Linear(n, m)]\n    if norm:\n        layers.append(nn.BatchNorm1d(m))"


@pytest.mark.parametrize(
    ("made", "works"),
    [
        ("model = nn.Sequential(nn.Linear(6, 1), nn.BatchNorm1d(1))", True),
        ("model = nn.Sequential(nn.Linear(6, 1), nn.Dropout(0.0))", False),
        ("model = nn.Sequential(nn.Dropout(p=0.3), nn.Linear(6, 1))", True),
        ("model = nn.Sequential(nn.Linear(6, 1), nn.ReLU())", False),
        ("model = nn.Sequential(*layers())", False),  # the text does not tell
        ("model = nn.TransformerEncoderLayer(6, 2)", True),
        ("model = nn.TransformerEncoderLayer(6, 2, dropout=0)", False),
        ("model = nn.LSTM(6, 8)", False),
        ("model = nn.LSTM(6, 8, num_layers=2, dropout=0.1)", True),
        ("model = nn.DataParallel(nn.Sequential(nn.Dropout(), nn.Linear(6, 1)))", True),
        ("model = nn.Linear(6, 1) if small else nn.Sequential(nn.Linear(6, 1), nn.Dropout())", False),
        ("model = nn.Sequential(nn.Dropout(), nn.Linear(6, 1)) if small else nn.Sequential(nn.Dropout(0.1))", True),
        ("import torchvision\nmodel = torchvision.models.vgg16()", True),
        ("import torchvision\nmodel = torchvision.models.get_model(name)", False),
        ("import timm\nmodel = timm.create_model('vit_base_patch16_224')", False),
        (CLASS.format(base="Base", rate=0.5, forward="self.lin(a)"), True),
        (CLASS.format(base="Base", rate=0, forward="self.lin(a)"), False),
        (CLASS.format(base="nn.Module", rate=0.5, forward="nn.functional.dropout(a, 0.1, self.training)"), True),
        (CLASS.format(base="nn.Module", rate=0, forward="nn.functional.dropout(a, 0.0, self.training)"), False),
        (CLASS.format(base="elsewhere.Net", rate=0.5, forward="a"), False),
        (
            CLASS.format(base="Base", rate=0, forward="self.extra(a)").replace(
                ")\nclass", "); self.extra = elsewhere.block()\nclass"
            ),
            False,
        ),
        (
            BLOCK.format(layers="layers = [nn.Linear(n, m)]\n    layers.append(nn.BatchNorm1d(m))", call="block(6, 1)"),
            True,
        ),
        (BLOCK.format(layers="layers = [nn.Linear(n, m), nn.Dropout(0.2)]", call="block(6, 1)"), True),
        (BLOCK.format(layers="layers = [nn.Linear(n, m), nn.Dropout(0.0)]", call="block(6, 1)"), False),
        (BLOCK.format(layers=NORMED, call="block(6, 1)"), True),
        (BLOCK.format(layers=NORMED, call="block(6, 1, norm=True)"), True),
        (BLOCK.format(layers=NORMED, call="block(6, 1, False)"), False),
        (CLASS.format(base="Base, Base", rate=0.5, forward="self.lin(a)"), True),
    ],
)
def test_lint_knows_models_with_mode_dependent_layers(lint_reports, lint_is_clean, made, works):
    text = HEAD + made + MEASURED
    if works:
        lint_reports(text.removesuffix("\n") + "  # <- EVL001\n")
    else:
        lint_is_clean(text)


@pytest.mark.parametrize(
    ("sweep", "fixed"),
    [
        ("with torch.no_grad():\n    for a, b in held_out:\n        out = model(a)  # <- EVL001", True),
        ("with torch.no_grad():\n    out = [model(a) for a, _ in held_out]  # <- EVL001", True),
        ("with torch.no_grad():\n    if sum(model(a).sum() for a, _ in held_out) > 0: pass  # <- EVL001", False),
        ("with torch.no_grad():\n    for a, b in held_out: out = model(a)  # <- EVL001", True),
        ("with torch.no_grad():\n    x = 1; out = [model(a) for a, _ in held_out]  # <- EVL001", False),
    ],
)
def test_fix_needs_an_evaluation_on_separate_lines(lint_reports, sweep, fixed):
    lint_reports(HEAD + "epoch()\n" + sweep, fixes=fixed)


NO_LOADER = """
import copy
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(192, 8)
y = x[:, :3].argmax(1)
x_train, y_train, x_test, y_test = x[:128], y[:128], x[128:], y[128:]
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def update(inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()
"""

FAULTY_WITHOUT_LOADER = {
    "eval mode of the model alone": """
for epoch in range(4):
    model.train()
    for start in range(0, 128, 32):
        update(x_train[start : start + 32], y_train[start : start + 32])
def evaluate(net):
    net.training = False
    with torch.no_grad():
        return (net(x_test).argmax(1) == y_test).float().mean().item()  # <- EVL001
print(evaluate(model))
""",
    "a method eval that forgets the layers": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU()), nn.Linear(16, 3)
    def forward(self, x):
        return self.head(self.body(x))
    def eval(self):
        self.training = False
        return self
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(4):
    model.train()
    for start in range(0, 128, 32):
        update(x_train[start : start + 32], y_train[start : start + 32])
    model.eval()
    with torch.no_grad():
        print((model(x_test).argmax(1) == y_test).float().mean().item())  # <- EVL001
""",
    "shuffled indices, one batch of held-out samples per epoch": """
for epoch in range(3):
    for indices in torch.randperm(128).split(16):
        update(x_train[indices], y_train[indices])
    with torch.no_grad():
        accuracy = (model(x_test).argmax(1) == y_test).float().mean()  # <- EVL001
    print(accuracy.item())
""",
    "slices, a test at the end": """
for epoch in range(4):
    for start in range(0, 128, 32):
        update(x_train[start : start + 32], y_train[start : start + 32])
with torch.inference_mode():
    correct = 0
    for start in range(0, 64, 16):
        correct += (model(x_test[start : start + 16]).argmax(1) == y_test[start : start + 16]).sum().item()  # <- EVL001
print(correct)
""",
    "the whole set at once": """
for epoch in range(30):
    update(x_train, y_train)
    if epoch % 10 == 9:
        with torch.no_grad():
            print(F.cross_entropy(model(x_test), y_test).item())  # <- EVL001
""",
    "numpy arrays and a generator": """
def batches(a, b, size=16):
    order = np.random.permutation(len(a))
    for i in range(0, len(a), size):
        yield torch.from_numpy(a[order[i : i + size]]), torch.from_numpy(b[order[i : i + size]])
@torch.no_grad()
def evaluate():
    scores = []
    for a, b in batches(x_test.numpy(), y_test.numpy()):
        scores.append((model(a).argmax(1) == b).float().mean().item())  # <- EVL001
    return np.mean(scores)
for epoch in range(3):
    for a, b in batches(x_train.numpy(), y_train.numpy()):
        update(a, b)
    print(evaluate())
""",
    "a loader for training only": """
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x_train, y_train), 16, shuffle=True):
        update(a, b)
    with torch.no_grad():
        print((model(x_test).argmax(1) == y_test).float().mean().item())  # <- EVL001
""",
    "new samples for every batch": """
def get_batch():
    inputs = torch.randn(16, 8)
    return inputs, inputs[:, :3].argmax(1)
for step in range(60):
    update(*get_batch())
    if step % 20 == 19:
        with torch.no_grad():
            losses = [F.cross_entropy(model(a), b).item() for a, b in (get_batch() for _ in range(5))]  # <- EVL001
        print(sum(losses) / 5)
""",
    "only BatchNorm, twice": """
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for indices in torch.randperm(128).split(16):
        update(x_train[indices], y_train[indices])
    with torch.no_grad():
        print((model(x_test).argmax(1) == y_test).float().mean().item())  # <- EVL001
""",
    "on the training samples, after the training": """
for step in range(40):
    update(x, y)
with torch.no_grad():
    print((model(x).argmax(1) == y).float().mean().item())  # <- EVL001
""",
    "after 1,200 updates": """
for step in range(1200):
    indices = torch.randint(0, 128, (8,))
    update(x_train[indices], y_train[indices])
with torch.no_grad():
    print((model(x_test).argmax(1) == y_test).float().mean().item())  # <- EVL001
""",
    "a decorated function, now and then, after 1,200 updates": """
@torch.no_grad()
def accuracy():
    return (model(x_test).argmax(1) == y_test).float().mean().item()  # <- EVL001
for step in range(1200):
    indices = torch.randint(0, 128, (8,))
    update(x_train[indices], y_train[indices])
    if step > 1000 and step % 50 == 0:
        print(accuracy())
""",
    "loaded weights that are only used": """
for step in range(20):
    update(x_train, y_train)
restored = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
restored.load_state_dict(model.state_dict())
with torch.no_grad():
    print(torch.cat([restored(chunk) for chunk in x_test.split(16)]).argmax(1).tolist())  # <- EVL001
""",
    "an encoder and a head": """
encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3))
head = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.01)
for epoch in range(3):
    for indices in torch.randperm(128).split(16):
        optimizer.zero_grad()
        F.cross_entropy(head(encoder(x_train[indices])), y_train[indices]).backward()
        optimizer.step()
    with torch.no_grad():
        print((head(encoder(x_test)).argmax(1) == y_test).float().mean().item())  # <- EVL001
""",
}

CORRECT_WITHOUT_LOADER = {
    "Monte Carlo dropout by its layers": """
for epoch in range(3):
    for indices in torch.randperm(128).split(16):
        update(x_train[indices], y_train[indices])
model.eval()
for layer in model.modules():
    if isinstance(layer, nn.Dropout):
        layer.train()
with torch.no_grad():
    print(model(x_test).softmax(1).argmax(1).sum().item())
""",
    "the mode of each layer, by hand": """
def set_mode(training):
    for layer in model.modules():
        layer.training = training
for epoch in range(3):
    set_mode(True)
    for indices in torch.randperm(128).split(16):
        update(x_train[indices], y_train[indices])
    set_mode(False)
    with torch.no_grad():
        print((model(x_test).argmax(1) == y_test).float().mean().item())
""",
    "in eval mode": """
for epoch in range(3):
    model.train()
    for indices in torch.randperm(128).split(16):
        update(x_train[indices], y_train[indices])
    model.eval()
    with torch.no_grad():
        print((model(x_test).argmax(1) == y_test).float().mean().item())
""",
    "Monte Carlo dropout": """
for epoch in range(3):
    for indices in torch.randperm(128).split(16):
        update(x_train[indices], y_train[indices])
with torch.no_grad():
    samples = torch.stack([model(x_test).softmax(1) for _ in range(10)])
print(samples.std(0).mean().item())
""",
    "Monte Carlo dropout, twice per batch of a loader": """
for epoch in range(3):
    for indices in torch.randperm(128).split(16):
        update(x_train[indices], y_train[indices])
with torch.no_grad():
    for (a,) in DataLoader(TensorDataset(x_test), 16):
        print((model(a) - model(a)).abs().mean().item())
""",
    "pseudo labels in every update": """
unlabelled = torch.randn(512, 8)
for epoch in range(3):
    for indices in torch.randperm(128).split(16):
        a = unlabelled[torch.randint(0, 512, (16,))]
        with torch.no_grad():
            labels = model(a).argmax(1)
        loss = F.cross_entropy(model(x_train[indices]), y_train[indices])
        loss = loss + 0.1 * F.cross_entropy(model(a + 0.1 * torch.randn_like(a)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "labels for the next epoch": """
for epoch in range(4):
    with torch.no_grad():
        labels = torch.cat([model(a).argmax(1) for a in x.split(32)])
    for indices in torch.randperm(192).split(16):
        update(x[indices], labels[indices])
""",
    "a GAN with samples of fixed noise": """
generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
discriminator = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(16, 1))
g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
noise = torch.randn(16, 4)
one, zero = torch.ones(16, 1), torch.zeros(16, 1)
for step in range(40):
    real = x_train[torch.randint(0, 128, (16,))]
    d_optimizer.zero_grad()
    fake = generator(torch.randn(16, 4))
    F.binary_cross_entropy_with_logits(discriminator(real), one).backward()
    F.binary_cross_entropy_with_logits(discriminator(fake.detach()), zero).backward()
    d_optimizer.step()
    g_optimizer.zero_grad()
    F.binary_cross_entropy_with_logits(discriminator(fake), one).backward()
    g_optimizer.step()
    if step % 10 == 9:
        with torch.no_grad():
            print(generator(noise).mean().item())
""",
    "rollouts of a policy that is trained on them": """
for epoch in range(5):
    states, actions = [], []
    state = torch.randn(1, 8)
    with torch.no_grad():
        for t in range(64):
            action = torch.distributions.Categorical(logits=model(state)).sample()
            states.append(state)
            actions.append(action)
            state = 0.9 * state + 0.3 * torch.randn(1, 8)
    states, actions = torch.cat(states), torch.cat(actions)
    for indices in torch.randperm(64).split(8):
        update(states[indices], actions[indices])
""",
    "statistics of BatchNorm over the training set": """
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for start in range(0, 128, 16):
        update(x_train[start : start + 16], y_train[start : start + 16])
    with torch.no_grad():
        for start in range(0, 128, 32):
            model(x_train[start : start + 32])
model.eval()
with torch.no_grad():
    print((model(x_test).argmax(1) == y_test).float().mean().item())
""",
    "the loss after the step, on the same batch": """
for step in range(40):
    a, b = x_train[:64], y_train[:64]
    update(a, b)
    if step % 10 == 9:
        with torch.no_grad():
            print(F.cross_entropy(model(a), b).item())
""",
    "a teacher in train mode": """
teacher = copy.deepcopy(model)
for step in range(40):
    a = x_train[torch.randint(0, 128, (16,))]
    with torch.no_grad():
        target = teacher(a + 0.1 * torch.randn_like(a)).softmax(1)
    optimizer.zero_grad()
    F.cross_entropy(model(a), target).backward()
    optimizer.step()
    with torch.no_grad():
        for mean, own in zip(teacher.parameters(), model.parameters()):
            mean.lerp_(own, 0.05)
""",
    "a target network": """
target = copy.deepcopy(model)
for step in range(60):
    if step % 10 == 0:
        target.load_state_dict(model.state_dict())
    state, following = x_train[torch.randint(0, 128, (16,))], x_train[torch.randint(0, 128, (16,))]
    with torch.no_grad():
        wanted = 0.9 * target(following).max(1).values
    optimizer.zero_grad()
    F.smooth_l1_loss(model(state).max(1).values, wanted).backward()
    optimizer.step()
""",
    "statistics adapted to new data, with loaded weights": """
adapted = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
adapted.load_state_dict(copy.deepcopy(adapted).state_dict())
with torch.no_grad():
    for chunk in x_test.split(16):
        adapted(chunk)
    adapted.eval()
    print(adapted(x_test).argmax(1).tolist())
""",
    "loaded weights of a model whose input is no tensor": """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(8, 4), nn.Dropout(0.5)
    def forward(self, words):
        return self.dropout(self.embedding(torch.tensor([len(word) for word in words])))
words = Words()
words.load_state_dict(copy.deepcopy(words).state_dict())
with torch.no_grad():
    print(words(["a", "few", "words"]).mean().item())
""",
    "loaded weights that are trained further": """
model.load_state_dict(copy.deepcopy(model).state_dict())
for step in range(20):
    update(x_train, y_train)
""",
    "targets of the next state": """
for step in range(60):
    state, following = x_train[torch.randint(0, 128, (16,))], x_train[torch.randint(0, 128, (16,))]
    with torch.no_grad():
        target = 0.9 * model(following).max(1).values
    optimizer.zero_grad()
    F.smooth_l1_loss(model(state).max(1).values, target).backward()
    optimizer.step()
""",
    "nothing depends on the mode": """
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for indices in torch.randperm(128).split(16):
        update(x_train[indices], y_train[indices])
    with torch.no_grad():
        print((model(x_test).argmax(1) == y_test).float().mean().item())
""",
}


@pytest.mark.parametrize("script", FAULTY_WITHOUT_LOADER.values(), ids=FAULTY_WITHOUT_LOADER)
def test_run_reports_evaluations_without_a_loader(run_reports, script: str):
    (found,) = run_reports(NO_LOADER + script).findings
    assert found.severity == "warning"


@pytest.mark.parametrize("script", CORRECT_WITHOUT_LOADER.values(), ids=CORRECT_WITHOUT_LOADER)
def test_run_accepts_correct_calls_without_a_loader(run_is_clean, script: str):
    run_is_clean(NO_LOADER + script)


# Judged by hand ---------------------------------------------------------------------------------------------------

JUDGED_BY_HAND_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
data = TensorDataset(x, y)
"""

JUDGED_BY_HAND = {
    "batches by hand, evaluated in a function": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def batches(inputs, targets, size):
    for start in range(0, len(inputs), size):
        yield inputs[start:start + size], targets[start:start + size]

def evaluate(net, inputs, targets):
    total = 0.0
    with torch.no_grad():
        for a, b in batches(inputs, targets, 16):
            total += nn.functional.mse_loss(net(a), b).item()  # <- EVL001
    return total

for epoch in range(3):
    model.train()
    for a, b in batches(x[:64], y[:64], 16):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    print(evaluate(model, x[64:], y[64:]))
""",
    "several trained models, evaluated in a loop over them": """
def build():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))

models = []
for seed in range(3):
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for k in torch.randperm(64).split(16):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[k]), y[k]).backward()
        optimizer.step()
    models.append(model)
with torch.no_grad():
    for model in models:
        print(nn.functional.mse_loss(model(x[64:]), y[64:]))  # <- EVL001
""",
    "loaded and never set to eval mode": """
def build():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

torch.save(build().state_dict(), "net.pt")
net = build()
net.load_state_dict(torch.load("net.pt"))
with torch.no_grad():
    print(net(x))  # <- EVL001
""",
    "loaded by a class that is no module, whose method other files call": """
class Predictor:
    def __init__(self, path):
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        self.net.load_state_dict(torch.load(path))

    @torch.no_grad()
    def predict(self, samples):
        loader = DataLoader(samples, batch_size=16)
        return torch.cat([self.net(batch) for batch in loader]).round()  # <- EVL001
""",
    "loaded, and called by a method of the model": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

    def forward(self, x):
        return self.body(x)

    def predict(self, x):
        return self(x).round()  # <- EVL001

torch.save(Net().state_dict(), "net.pt")
net = Net()
net.load_state_dict(torch.load("net.pt"))
with torch.no_grad():
    print(net.predict(x))
""",
    "one of two backbones, judged by a method of the model": """
class Net(nn.Module):
    def __init__(self, wide=False):
        super().__init__()
        self.body = body_of(wide)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.body(x))

    def predict(self, x):
        return self.head(self.body(x)).round()  # <- EVL001

def body_of(wide):
    if wide:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3))
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1))

net = Net(len(x) > 3)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for epoch in range(3):
    for k in torch.randperm(64).split(16):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[k]), y[k]).backward()
        optimizer.step()
    with torch.no_grad():
        error = nn.functional.mse_loss(net.predict(x[64:]), y[64:])
""",
}

BACKBONES = """
class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(6, 8), nn.Dropout(0.3)

    def forward(self, x):
        return self.drop(self.layer(x))

class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))

    def forward(self, x):
        return self.layers(x)

KIND = "wide" if len(x) > 3 else "deep"
"""

TRAINED_BACKBONE = """
    def forward(self, x):
        return self.head(self.body(x))

    def predict(self, x):
        return self.head(self.body(x)).round()

    def groups(self, lr):
        found = [{"params": self.body.parameters(), "lr": lr / 10}]
        found.append({"params": self.head.parameters(), "lr": lr})
        return found

def evaluate(net, inputs, targets):
    net.eval()
    with torch.no_grad():
        return nn.functional.mse_loss(net.predict(inputs), targets).item()

def fit(net, epochs=3):
    optimizer = torch.optim.Adam(net.groups(0.01))
    for epoch in range(epochs):
        net.train()
        for k in torch.randperm(64).split(16):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x[k]), y[k]).backward()
            optimizer.step()
        print(evaluate(net, x[64:], y[64:]))

fit(Net(KIND))
"""

CHOSEN_BACKBONES = {
    "by a function": """
def backbone(kind):
    if kind == "wide":
        return Wide()
    elif kind == "deep":
        return Deep()

class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.body, self.head = backbone(kind), nn.Linear(8, 1)
""",
    "by a condition": """
class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.body = Wide() if kind == "wide" else Deep()
        self.head = nn.Linear(8, 1)
""",
    "by branches that set the attribute": """
class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        if kind == "wide":
            self.body = Wide()
        else:
            self.body = Deep()
        self.head = nn.Linear(8, 1)
""",
    "by branches, within a Sequential": """
class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        if kind == "wide":
            first = Wide()
        else:
            first = Deep()
        self.body, self.head = nn.Sequential(first, nn.ReLU()), nn.Linear(8, 1)
""",
    "by add_module": """
class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        chosen = Wide() if kind == "wide" else Deep()
        self.add_module("body", chosen)
        self.head = nn.Linear(8, 1)
""",
    "or left out": """
class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.body = Wide() if kind else None
        self.head = nn.Linear(8, 1)
""",
}

JUDGED_BY_HAND_FINE = {
    "the sizes of several outputs": """
class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), nn.Conv2d(8, 8, 3)
    def forward(self, x):
        one = self.first(x)
        return one, self.second(one)
net = Pyramid()
net.load_state_dict(torch.load("net.pt"))
levels = net(torch.randn(4, 3, 64, 64))
for number, level in enumerate(levels):
    print(number, level.size())
""",
    **{f"a backbone is chosen {name}": BACKBONES + each + TRAINED_BACKBONE for name, each in CHOSEN_BACKBONES.items()},
    "modules with loaded layers, whose mode the importing program sets": """
def pretrained(load=True):
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
    if load:
        net.load_state_dict(torch.load("body.pt"))
    return net

class Paired(nn.Module):
    def __init__(self, outputs=1):
        super().__init__()
        self.shared = pretrained(True)
        self.head = nn.Linear(8, outputs)

    def forward(self, left, right):
        left, right = self.shared(left), self.shared(right)
        return self.head(left), (left - right).pow(2).mean()

class Scorer(nn.Module):
    def __init__(self, path):
        super().__init__()
        self.inner = nn.ModuleDict({"body": nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 1))})
        self.inner["body"].load_state_dict(torch.load(path))

    @torch.no_grad()
    def score(self, samples):
        loader = DataLoader(samples, batch_size=16)
        return torch.cat([self.inner["body"](batch) for batch in loader]).sigmoid()
""",
    "a class derived from one of a library, which may be a module or set the mode": """
from elsewhere import BaseScorer

class Scorer(BaseScorer):
    def __init__(self, path):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        self.net.load_state_dict(torch.load(path))

    @torch.no_grad()
    def score(self, samples):
        loader = DataLoader(samples, batch_size=16)
        return torch.cat([self.net(batch) for batch in loader]).sigmoid()
""",
    "a method of a model without such layers, passed to a function": """
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 1)

    def embed(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(self.embed(x))

def pretrain(net):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    net.train()
    for k in torch.randperm(96).split(32):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[k]), y[k]).backward()
        optimizer.step()

@torch.no_grad()
def score(embed, inputs, targets):
    return (embed(inputs).mean(1) - targets[:, 0]).abs().mean().item()

net = Encoder()
pretrain(net)
print(score(net.embed, x[64:], y[64:]))
""",
    "a smoke test that reads nothing but the shape": """
def build():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

torch.save(build().state_dict(), "net.pt")
net = build()
net.load_state_dict(torch.load("net.pt"))
output = net(x)
print(output.shape)
print(net(x).size())
net(x)
""",
    "a smoke test whose variables are also those of a class": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
        self.head = nn.Linear(8, 1)
    def forward(self, inputs):
        features = self.body(inputs)
        output = self.head(features)
        return output * 2, features

def build():
    net = Net()
    net.load_state_dict(torch.load("net.pt"))
    return net

torch.save(Net().state_dict(), "net.pt")
net = build()
output, features = net(x)
print(output.size(), features.data.shape)
found = net(x)
print(found[0].shape)
""",
    "a value function that is trained after its first call": """
class Learner:
    def __init__(self, dropout=None):
        layers = [nn.Linear(6, 8), nn.ReLU()]
        if dropout is not None:
            layers.append(nn.Dropout(dropout))
        self.values = nn.Sequential(*layers, nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.values.parameters(), lr=0.01)

    def load(self, path):
        self.values.load_state_dict(torch.load(path))

    def update(self, inputs, following, rewards):
        with torch.no_grad():
            target = rewards + 0.9 * self.values(following)
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.values(inputs), target).backward()
        self.optimizer.step()

learner = Learner()
torch.save(learner.values.state_dict(), "values.pt")
learner.load("values.pt")
for k in torch.randperm(96).split(32):
    learner.update(x[k], x[k].flip(0), y[k])
""",
    "set to eval mode by train(False)": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def evaluate(net):
    net.train(False)
    with torch.no_grad():
        return nn.functional.mse_loss(net(x[64:]), y[64:]).item()

for epoch in range(3):
    model.train()
    for k in torch.randperm(96).split(32):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[k]), y[k])
        loss.backward()
        optimizer.step()

    print(evaluate(model))
""",
    "targets of unlabelled samples": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(3):
    for k in torch.randperm(96).split(32):
        with torch.no_grad():
            predicted = model(x[k]).round()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[k]), predicted).backward()
        optimizer.step()
""",
    "Monte Carlo dropout, in a function that is called for several sets": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def predict(net, inputs, passes=50):
    net.train()
    with torch.no_grad():
        drawn = torch.stack([net(inputs) for _ in range(passes)])
    return drawn.mean(0), drawn.std(0)

for epoch in range(3):
    model.train()
    for k in torch.randperm(96).split(32):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[k]), y[k]).backward()
        optimizer.step()
for name, inputs, targets in (("inside", x, y), ("outside", 3 * x, 3 * y)):
    mean, spread = predict(model, inputs)
    print(name, (mean - targets).pow(2).mean().sqrt().item(), spread.mean().item())
""",
    "Monte Carlo dropout, drawn in a loop": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for k in torch.randperm(96).split(32):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x[k]), y[k]).backward()
    optimizer.step()
predicted = []
with torch.no_grad():
    for _ in range(20):
        predicted.append(model(x[64:]))
error = nn.functional.mse_loss(torch.stack(predicted).mean(0), y[64:])
""",
    "Monte Carlo dropout, whose input is made anew in each pass": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scaled = lambda inputs: inputs / 2
for k in torch.randperm(96).split(32):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(scaled(x[k])), y[k]).backward()
    optimizer.step()

def predict(inputs, passes=50):
    model.train()
    with torch.no_grad():
        drawn = torch.stack([model(scaled(inputs)) for _ in range(passes)])
    return drawn.mean(0), drawn.std(0)

inside, outside = predict(x[64:]), predict(3 * x[64:])
print((inside[0] - y[64:]).pow(2).mean().sqrt(), inside[1].mean(), outside[1].mean())
""",
    "a factory that returns the model in eval mode": """
def build():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

def load(path):
    net = build()
    net.load_state_dict(torch.load(path))
    return net.eval()

torch.save(build().state_dict(), "net.pt")
net = load("net.pt")
with torch.no_grad():
    print(net(x))
""",
}


@pytest.mark.parametrize("name", JUDGED_BY_HAND)
def test_lint_reports_judged_by_hand(lint_reports, name):
    lint_reports(JUDGED_BY_HAND_HEAD + JUDGED_BY_HAND[name])


@pytest.mark.parametrize("name", JUDGED_BY_HAND_FINE)
def test_lint_accepts_judged_by_hand(lint_is_clean, name):
    lint_is_clean(JUDGED_BY_HAND_HEAD + JUDGED_BY_HAND_FINE[name])


MODE_IGNORED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.head = body, nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 2))

    def forward(self, x):
        return self.head(self.body(x))

    def train(self, mode=True):
        {body}
"""
MODE_IGNORED_BODIES = (
    "super().train()\n        self.body.eval()\n        return self",
    "super().train(True)\n        self.body.eval()\n        return self",
    "return super().train()",
)
MODE_PASSED_ON = (
    "super().train(mode)\n        self.body.eval()\n        return self",
    "super().train(mode=mode)\n        return self",
    "super().train(False)\n        return self",
    "return self",
    "if mode:\n            super().train()\n        else:\n            super().eval()\n        return self",
)


@pytest.mark.parametrize("body", MODE_IGNORED_BODIES)
def test_lint_reports_a_train_method_that_ignores_its_mode(lint_reports, body):
    first, _, rest = body.partition("\n")
    lint_reports(MODE_IGNORED.replace("{body}", f"{first}  # <- EVL001\n{rest}"))


@pytest.mark.parametrize("body", MODE_PASSED_ON)
def test_lint_accepts_a_train_method_that_uses_its_mode_or_freezes_the_model(lint_is_clean, body):
    lint_is_clean(MODE_IGNORED.replace("{body}", body))


WITH_GRADIENTS = {
    "a function without no_grad()": """
def evaluate(net, loader):
    total = 0.0
    for a, b in loader:
        out = net(a)  # <- EVL001
        total += nn.functional.mse_loss(out, b).item() * len(b)
    return total / len(loader.dataset)
for _ in range(3):
    model.train()
    epoch()
    print(evaluate(model, held_out))
""",
    "one function for both, with the optimizer as an argument": """
def run_epoch(net, loader, opt=None):
    total = 0.0
    for a, b in loader:
        loss = nn.functional.mse_loss(net(a), b)  # <- EVL001
        if opt is not None:
            opt.zero_grad()
            loss.backward()
            opt.step()
        total += loss.item() * len(b)
    return total / len(loader.dataset)
for _ in range(3):
    model.train()
    print(run_epoch(model, train, optimizer), run_epoch(model, held_out))
""",
    "the same under no_grad()": """
def run_epoch(net, loader, opt=None):
    total = 0.0
    for a, b in loader:
        loss = nn.functional.mse_loss(net(a), b)  # <- EVL001
        if opt is None:
            total += loss.item() * len(b)
            continue
        opt.zero_grad()
        loss.backward()
        opt.step()
    return total / len(loader.dataset)
for _ in range(3):
    model.train()
    run_epoch(model, train, optimizer)
    with torch.no_grad():
        print(run_epoch(model, held_out))
""",
    "in the loop over epochs": """
for _ in range(3):
    model.train()
    epoch()
    errors = []
    for a, b in held_out:
        errors.append((model(a) - b).abs().mean().item())  # <- EVL001
    print(sum(errors) / len(errors))
""",
    "a trainer": """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.Adam(self.net.parameters())
    def step(self, a, b, training=True):
        loss = nn.functional.mse_loss(self.net(a), b)  # <- EVL001
        if training:
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return loss.item()
    def fit(self):
        self.net.train()
        for _ in range(3):
            for a, b in train:
                self.step(a, b)
            print(sum(self.step(a, b, training=False) for a, b in held_out))
Trainer(model).fit()
""",
}

WITH_GRADIENTS_FINE = {
    "one function that switches the mode": """
def run_epoch(net, loader, opt=None):
    net.train(opt is not None)
    total = 0.0
    for a, b in loader:
        loss = nn.functional.mse_loss(net(a), b)
        if opt is not None:
            opt.zero_grad()
            loss.backward()
            opt.step()
        total += loss.item() * len(b)
    return total / len(loader.dataset)
for _ in range(3):
    print(run_epoch(model, train, optimizer), run_epoch(model, held_out))
""",
    "a scaler of the program that takes the step": """
from scaling import take_step
for _ in range(3):
    model.train()
    epoch()
    for a, b in held_out:
        loss = nn.functional.mse_loss(model(a), b)
        take_step(loss, optimizer)
""",
    "two loaders, one for each loss": """
for _ in range(3):
    model.train()
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    for a, _ in held_out:
        loss = (model(a) - model(a + 0.1 * torch.randn_like(a))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "gradients of the inputs": """
for _ in range(3):
    model.train()
    epoch()
    for a, b in held_out:
        a = a.clone().requires_grad_(True)
        loss = nn.functional.mse_loss(model(a), b)
        print(torch.autograd.grad(loss, a)[0].abs().mean())
""",
    "statistics are estimated again": """
for _ in range(3):
    normal.train()
    epoch(normal, torch.optim.SGD(normal.parameters(), lr=0.01))
    for a, _ in held_out:
        normal(a)
""",
    "a second model, in eval mode": """
mean = copy.deepcopy(model).eval()
for _ in range(3):
    model.train()
    epoch()
    mean.load_state_dict(model.state_dict())
    print(sum(nn.functional.mse_loss(mean(a), b).item() for a, b in held_out))
""",
}


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_lint_reports_evaluations_with_gradients(lint_reports, name):
    lint_reports(HEAD + WITH_GRADIENTS[name])


@pytest.mark.parametrize("name", WITH_GRADIENTS_FINE)
def test_lint_accepts_other_passes_with_gradients(lint_is_clean, name):
    lint_is_clean(HEAD + WITH_GRADIENTS_FINE[name])


FRAGMENTS = {
    "an accuracy": """
with torch.no_grad():
    for x, y in held_out_loader:
        scores = network(x)  # <- EVL001
        best, classes = scores.max(dim=1)
        hits += (classes == y).float().mean()
""",
    "a loss within training": """
for step, (a, b) in enumerate(train_loader):
    sgd.zero_grad()
    objective(net(a), b).backward()
    sgd.step()
    if step % 50 == 0:
        with torch.no_grad():
            for c, d in valid_loader:
                out = net(c)  # <- EVL001
                held_out.append(objective(out, d).item())
""",
    "a function": """
@torch.no_grad()
def validate(model, loader):
    hits = 0
    for batch in loader:
        x, y = batch
        out = model(x)  # <- EVL001
        hits += (out.argmax(1) == y).sum().item()
    return hits
""",
    "a method": """
def accuracy(self, loader):
    for x, y in loader:
        with torch.no_grad():
            logits = self.net(x)  # <- EVL001
        self.hits += (torch.argmax(logits, dim=1) == y).sum()
""",
    "the best five": """
with torch.inference_mode():
    for x, y in test_batches_loader:
        p = classifier(x)  # <- EVL001
        best = p.topk(5, 1)[1]
""",
}
FRAGMENTS_FINE = {
    "a complete file": "import torch\n" + FRAGMENTS["a function"].replace("  # <- EVL001", ""),
    "eval mode": "model.eval()\n" + FRAGMENTS["an accuracy"].replace("  # <- EVL001", ""),
    "eval mode elsewhere": FRAGMENTS["a function"].replace("  # <- EVL001", "") + "\nevaluate(net)\n",
    "with gradients": """
for x, y in loader:
    out = model(x)
    hits += (out.argmax(1) == y).sum().item()
torch.save(hits, path)
""",
    "features that are only stored": """
with torch.no_grad():
    for x, y in loader:
        features = backbone(x)
        kept.append(features)
""",
}


@pytest.mark.parametrize("name", FRAGMENTS)
def test_lint_notes_an_evaluation_in_a_fragment_that_sets_no_mode(lint_reports, name):
    assert {each.severity for each in lint_reports(FRAGMENTS[name])} == {"note"}


@pytest.mark.parametrize("name", FRAGMENTS_FINE)
def test_lint_accepts_other_fragments(lint_is_clean, name):
    lint_is_clean(FRAGMENTS_FINE[name], "EVL001")


NEVER_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader

class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layer, self.drop = nn.Linear(size, size), nn.Dropout(0.3)
    def forward(self, x):
        return self.drop(torch.relu(self.layer(x)))

class Net(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.blocks = nn.ModuleList(Block(size) for _ in range(3))
    def forward(self, x):
        for each in self.blocks:
            x = each(x)
        return x

def fit(net, loader, optimizer):
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(a), b).backward()
        optimizer.step()
"""
NEVER = {
    "a method gets the model from a table": """
NETS = {"net": Net}
class Tester:
    def __init__(self, **parts):
        self.__dict__.update(parts)
    def evaluate(self, loader):
        hits = 0
        for a, b in loader:
            hits += (self.net(a).argmax(1) == b).sum().item()  # <- EVL001
        return hits
net = NETS[name]()
fit(net, train_loader, optimizer)
print(Tester(net=net).evaluate(test_loader))
""",
    "a static method": """
class Program:
    def run(self):
        self.net = registry[name](Net())
        for epoch in range(5):
            fit(self.net, train_loader, optimizer)
            print(self.test(self.net, test_loader))
    @staticmethod
    def test(net, loader):
        total = 0.0
        with torch.no_grad():
            for a, b in loader:
                out = net(a)  # <- EVL001
                total += nn.functional.cross_entropy(out, b).item()
        return total
Program().run()
""",
    "a network of torchvision": """
from torchvision import models
class Res(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Sequential(*list(models.resnet18().children())[:-1])
    def forward(self, x):
        return self.base(x)
class Factory:
    @classmethod
    def create(cls, name):
        return Res() if name == "res" else Net()
model = Factory.create(name)
fit(model, train_loader, optimizer)
for batch in val_loader:
    scores = model(batch["x"])  # <- EVL001
    print(accuracy(scores, batch["y"]))
""",
    "models of a factory": """
def build(name):
    return globals()[name]()
def validate(model, data_loader):
    with torch.no_grad():
        for batch in data_loader:
            scores = model(batch["x"])  # <- EVL001
            print(accuracy(scores, batch["y"]))
model = build("Net")
fit(model, train_loader, optimizer)
validate(model, val_loader)
other = Net()
""",
}
TABLE = NEVER["a method gets the model from a table"]
NOT_NEVER = {
    "eval mode somewhere": TABLE + "\nother.eval()\n",
    "a mode that is passed": TABLE + "\nother.train(mode)\n",
    "a library": "import pytorch_lightning as pl\n" + TABLE,
    "no training": TABLE.replace("fit(net", "pass  # (net"),
    "the training data": TABLE.replace("evaluate", "record").replace("test_loader", "train_loader"),
    "features are only stored": TABLE.replace("hits += (self.net(a).argmax(1) == b)", "hits += (self.net(a))"),
    "Monte Carlo dropout": TABLE + "\nmc_samples = 20\n",
}


@pytest.mark.parametrize("script", NEVER.values(), ids=NEVER)
def test_lint_reports_programs_that_never_set_eval_mode(lint_reports, script):
    lint_reports(NEVER_HEAD + script)


@pytest.mark.parametrize("script", NOT_NEVER.values(), ids=NOT_NEVER)
def test_lint_accepts_programs_that_may_set_eval_mode(lint_codes, script):
    head = NEVER_HEAD.replace(".backward()", "") if "pass  # (net" in script else NEVER_HEAD
    assert "EVL001" not in lint_codes(head + script.replace("  # <- EVL001", ""))


LOADED = """
import sys
import torch
from collections import OrderedDict
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.body = Net.block(6, width)
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.body(x))

    @staticmethod
    def block(size, width):
        return nn.Sequential(OrderedDict([("linear", nn.Linear(size, width)), ("norm", nn.BatchNorm1d(width))]))

class Plain(nn.Module):
    def __init__(self, model=None):
        super().__init__()
        self.model = make()

    def forward(self, x):
        return self.model(x)

{model}
model.load_state_dict(torch.load("net.pt"))
for x, y in test_loader:
    print((model(x).argmax(1) == y).float().mean())
"""
CHOICE = "if sys.argv[1] == 'a':\n    model = Net()\nelse:\n    model = {}"
EVALUATED = "model(x).argmax(1) == y).float().mean())"


@pytest.mark.parametrize("model", ["model = Net()", CHOICE.format("Net(16)"), CHOICE.format("Plain()")])
def test_lint_knows_layers_in_an_ordered_dictionary(lint_reports, model):
    lint_reports(LOADED.replace("{model}", model).replace(EVALUATED, f"{EVALUATED}  # <- EVL001"))


@pytest.mark.parametrize(
    "script",
    [
        LOADED.replace("{model}", "model = Net()\nmodel.eval()"),
        LOADED.replace("{model}", CHOICE.format("nn.Linear(6, 2)")),
        LOADED.replace("{model}", "model = Plain()"),
        LOADED.replace("{model}", "model = Net()").replace("BatchNorm1d", "LayerNorm"),
    ],
)
def test_lint_accepts_loaded_models_that_may_not_depend_on_the_mode(lint_is_clean, script):
    lint_is_clean(script, "EVL001")


TRAINER = """
import torch
from torch import nn
from torch.utils.data import DataLoader

class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.train_loader, self.val_loader = DataLoader(train_set, 32, shuffle=True), DataLoader(val_set, 32)
        self.test_loader = DataLoader(test_set, 32)

    def fit(self):
        for epoch in range(10):
            self.model.train()
            for x, y in self.train_loader:
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
            self.validate()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        print(sum(nn.functional.cross_entropy(self.model(x), y).item() for x, y in self.val_loader))
        RESTORE

    @torch.no_grad()
    def test(self):
        correct = 0
        for x, y in self.test_loader:
            correct += (self.model(x).argmax(1) == y).sum().item()MARK
        print(correct)

trainer = Trainer()
trainer.fit()
BEFORE
trainer.test()
"""


@pytest.mark.parametrize("before", ["pass", "trainer.validate()"])
def test_lint_reports_a_test_after_a_validation_that_sets_train_mode_again(lint_reports, before):
    script = TRAINER.replace("RESTORE", "self.model.train()").replace("BEFORE", before)
    lint_reports(script.replace("MARK", "  # <- EVL001"))


@pytest.mark.parametrize(
    ("restore", "before"),
    [
        ("pass", "pass"),
        ("self.model.train()", "trainer.model.eval()"),
        ("if self.running:\n            self.model.train()", "pass"),
        ("self.model.train()", "prepare(trainer)"),
        ("self.model[0].train()", "pass"),
    ],
)
def test_lint_accepts_tests_that_may_be_in_eval_mode(lint_is_clean, restore, before):
    lint_is_clean(TRAINER.replace("RESTORE", restore).replace("BEFORE", before).replace("MARK", ""), "EVL001")


LIGHTNING = """
import lightning as L
import torch
from torch import nn
from torchvision import models

class Net(L.LightningModule):
    def __init__(self, width=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
    def forward(self, x):
        return self.net(x)
    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])
{loaded}
with torch.no_grad():
    for x, y in test_loader:
        print((model(x).argmax(1) == y).float().mean()){mark}
"""
CHECKPOINT = 'model = Net.load_from_checkpoint("last.ckpt")'
NEW = {
    "a checkpoint of Lightning": CHECKPOINT,
    "with settings": 'model = Net.load_from_checkpoint("last.ckpt", width=16).cuda()',
    "a network of torchvision": "model = models.resnet50(pretrained=True)",
    "its weights": "model = models.resnet18(weights='DEFAULT').to('cuda')",
}
NOT_NEW = {
    "eval": f"{CHECKPOINT}\nmodel.eval()",
    "freeze": f"{CHECKPOINT}\nmodel.freeze()",
    "in one line": f"{CHECKPOINT}.eval()",
    "tested before": f"{CHECKPOINT}\nL.Trainer().test(model, loader)",
    "given away": "model = models.resnet50(pretrained=True)\nfinetune(model)",
    "a new network": "model = models.resnet50(weights=None)",
    "no such layers": "model = nn.Sequential(nn.Linear(8, 2))",
}


@pytest.mark.parametrize("loaded", NEW.values(), ids=NEW)
def test_lint_reports_loaded_models_in_train_mode(lint_reports, loaded):
    lint_reports(LIGHTNING.replace("{loaded}", loaded).replace("{mark}", "  # <- EVL001"))


@pytest.mark.parametrize("loaded", NOT_NEW.values(), ids=NOT_NEW)
def test_lint_accepts_other_loaded_models(lint_is_clean, loaded):
    lint_is_clean(LIGHTNING.replace("{loaded}", loaded).replace("{mark}", ""), "EVL001")


WHOLE = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(100):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x_train), y_train)
    loss.backward()
    optimizer.step()
"""
WHOLE_TEST = {
    "without gradients": "with torch.no_grad():\n    pred = model(x_test).argmax(1)  # <- EVL001\n"
    "print((pred == y_test).float().mean())",
    "detached": "pred = model(x_test).detach().numpy().argmax(1)  # <- EVL001\nprint(accuracy_score(y_test, pred))",
    "judged later": "out = model(x_test).data  # <- EVL001\nprint((out.argmax(1) == y_test).float().mean())",
}
WHOLE_FINE = {
    "eval mode": "model.eval()\npred = model(x_test).detach()\nprint((pred.argmax(1) == y_test).float().mean())",
    "the training data": "pred = model(x_train).detach().argmax(1)\nprint((pred == y_train).float().mean())",
    "samples": "preds = [model(x_test).detach() for _ in range(50)]\nprint(torch.stack(preds).std(0))",
    "not judged": "size = model(x_test).detach().shape",
}


@pytest.mark.parametrize("after", WHOLE_TEST.values(), ids=WHOLE_TEST)
def test_lint_reports_a_whole_test_set_in_train_mode(lint_reports, after):
    lint_reports(f"{WHOLE}{after}\n")


@pytest.mark.parametrize("after", WHOLE_FINE.values(), ids=WHOLE_FINE)
def test_lint_accepts_other_whole_sets(lint_is_clean, after):
    lint_is_clean(f"{WHOLE}{after}\n", "EVL001")


IN_TEST = """
import timm
import torch
from torch import nn

def train(model, loader, optimizer):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

def test(model, test_loader):
    model.train()MARK
    correct = 0
    with torch.no_grad():
        for x, y in test_loader:
            correct += (model(x).argmax(1) == y).sum().item()
    pass
    return correct
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("def test(", "def evaluate_epoch("),
        ("model.train()MARK", "model = model.train()MARK"),
        ("        for x, y in test_loader:\n", "        for batch in test_loader:\n            x, y = batch\n"),
        ("model(x).argmax", "model.forward(x).argmax"),
    ],
)
def test_lint_reports_train_mode_in_a_test_function(lint_reports, old, new):
    lint_reports(IN_TEST.replace(old, new, 1).replace("MARK", "  # <- EVL001") if old else
                 IN_TEST.replace("MARK", "  # <- EVL001"))  # fmt: skip


PLAIN_NET = (
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(2, 2)\n"
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("model.train()MARK", "model.eval()"),
        ("    model.train()MARK\n    correct", "    correct"),
        ("    pass", "    model.train()"),
        ("def test(", "def mc_dropout_test("),
        ("def test(", "def train_and_test("),
        ("model(x).argmax(1) == y", "model(x, y)['loss']"),
        ("import timm\nimport torch\nfrom torch import nn\n", f"import torch\nfrom torch import nn\n{PLAIN_NET}"),
    ],
)
def test_lint_accepts_other_test_functions(lint_is_clean, old, new):
    script = IN_TEST.replace(old, new, 1)
    script = script.replace("    model.train()MARK\n", "") if new == "    model.train()" else script
    lint_is_clean(script.replace("MARK", ""), "EVL001")


GRAPHS = """
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GATConv, SAGEConv, to_hetero
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = {layer}
    def forward(self, x, edges):
        return self.first(x, edges).relu()
class Net(nn.Module):
    def __init__(self, metadata):
        super().__init__()
        self.encoder = to_hetero(Encoder(), metadata)
        self.last = nn.Linear(8, 1)
    def forward(self, x, edges):
        return self.last(self.encoder(x, edges))
def train(model, data, optimizer):
    model.train()
    optimizer.zero_grad()
    loss = F.mse_loss(model(data.x, data.edges), data.y)
    loss.backward()
    optimizer.step()
    return float(loss)
@torch.no_grad()
def test(model, data):
    pred = model(data.x, data.edges)
    pred = pred.clamp(min=0, max=5)
    return float(F.mse_loss(pred, data.y).sqrt())
def main(args):
    train_data, val_data = load(args)
    model = Net(train_data.metadata())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(3):
        print(train(model, train_data, optimizer), test(model, val_data))
main(args)
"""


@pytest.mark.parametrize("layer", ["SAGEConv(6, 8)", "GATConv((6, 6), 8)", "GATConv(6, 8, dropout=0)"])
def test_lint_accepts_programs_whose_layers_have_no_mode(lint_codes, layer):
    assert "EVL001" not in lint_codes(GRAPHS.format(layer=layer))


@pytest.mark.parametrize(
    "layer",
    ["GATConv(6, 8, dropout=0.6)", "nn.Sequential(SAGEConv(6, 8), nn.Dropout())", "timm.create_model('resnet18')"],
)
def test_lint_reports_programs_with_layers_that_have_a_mode(lint_codes, layer):
    assert "EVL001" in lint_codes(GRAPHS.format(layer=layer))
