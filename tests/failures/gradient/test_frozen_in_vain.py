"""GRD012: freezing through attributes that nothing reads."""

import sys
from pathlib import Path

import pytest

HEAD = """
import torch
from torch import nn

backbone = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
head = nn.Linear(8, 1)
"""

TRAINED = """
x = torch.randn(32, 6)
y = x.sum(1, keepdim=True)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 1)
        self.token = nn.Parameter(torch.zeros(8))
    def forward(self, x):
        return self.fc(self.body(x) + self.token)
model = Net()
"""
LOOP = """
x = torch.randn(32, 6)
y = x.sum(1, keepdim=True)
for _ in range(2):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()  # R
    optimizer.step()
"""
ALL = "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
REQUESTED = "optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)\n"
CHAINED = "model = nn.Sequential(backbone, head)\n" + ALL + LOOP

CORRECT = {
    "PyTorch's way": """
for p in backbone.parameters():
    p.requires_grad = False
head.requires_grad_(True)
backbone[0].weight.requires_grad = True
for name, p in head.named_parameters():
    p.requires_grad = name == "bias"
""",
    "a custom setting that is read": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)
        self.requires_grad = False
        self.require_grad = False
    def forward(self, x):
        with torch.set_grad_enabled(self.requires_grad or self.require_grad):
            return self.layer(x)
net = Net()
net.requires_grad = True
net.require_grad = True
""",
    "another library's tensors": """
from micrograd.engine import Value
class Tensor:
    def __init__(self):
        self.require_grad = False
v = Value(1.0)
v.require_grad = True
t = Tensor()
t.require_grad = True
""",
    "read with getattr": """
for part in (backbone, head):
    print(getattr(part, "requires_grad", True))
head.requires_grad = False
""",
    "parameters of a layer": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 1)
        self.fc.bias.requires_grad = False
        self.scale = nn.Parameter(torch.ones(1))
        self.scale.requires_grad = False
from torchvision import models
net = models.resnet18()
net.conv1.weight.requires_grad = False
net.cls_token.requires_grad = False
""",
    "read under another name": """
backbone.requires_grad = False
for part in nn.Sequential(backbone, head).children():
    if not getattr(part, "frozen", part.requires_grad):
        for p in part.parameters():
            p.requires_grad_(False)
""",
    "read in a helper": """
def apply_settings(net):
    if not net.requires_grad:
        net.requires_grad_(False)
    for p in filter(lambda p: p.requires_grad, net.parameters()):
        print(p.shape)
backbone.requires_grad = False
apply_settings(backbone)
""",
    "misspelled, but read": """
for p in backbone.parameters():
    p.require_grad = False
for name, p in backbone.named_parameters():
    p.requires_grad = p.require_grad
""",
    "leaves": """
x = torch.randn(4, 6)
x.requires_grad = True
backbone(x).sum().backward()
""",
}

CORRECT_TRAINED = {
    "the method": "model.body.requires_grad_(False)\n" + REQUESTED + LOOP,
    "its parameters": "for p in model.body.parameters():\n    p.requires_grad = False\n" + REQUESTED + LOOP,
    "by name": "for name, p in model.named_parameters():\n    if 'body' in name:\n        p.requires_grad = False\n"
    + REQUESTED
    + LOOP,
    "a weight of a layer": "model.fc.bias.requires_grad = False\nmodel.token.requires_grad = False\n"
    + REQUESTED
    + LOOP,
    "a setting of its own": """
class Frozen(nn.Module):
    def __init__(self, requires_grad=False):
        super().__init__()
        self.requires_grad = requires_grad
        self.fixed, self.last = nn.Linear(6, 6), nn.Linear(6, 1)
        for p in self.fixed.parameters():
            p.requires_grad = requires_grad
    def forward(self, x):
        return self.last(self.fixed(x))
model = Frozen()
"""
    + REQUESTED
    + LOOP,
    "a tensor": "mask = torch.ones(32, 1, requires_grad=True)\nmask.requires_grad = False\n" + ALL + LOOP,
    "a setting of its own, read later": """
class Staged(nn.Module):
    def __init__(self, requires_grad):
        super().__init__()
        self.requires_grad, self.calls = requires_grad, 0
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 1)
    def forward(self, x):
        self.calls += 1
        if self.calls > 1 and not self.requires_grad:
            self.first.requires_grad_(False)
        return self.last(self.first(x))
model = Staged(False)
"""
    + ALL
    + LOOP,
    "settings by any name": """
class Set(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        for name, value in settings.items():
            setattr(self, name, value)
        self.last = nn.Linear(6, 1)
    def forward(self, x):
        return self.last(x)
model = Set(require_grad=False, width=6)
"""
    + ALL
    + LOOP,
    "declared": """
class Declared(nn.Module):
    requires_grad: bool = True
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 1)
    def forward(self, x):
        return self.last(x)
model = Declared()
vars(model)["requires_grad"] = False
"""
    + ALL
    + LOOP,
    "a part that is in no optimizer": "setattr(model.body, 'requires_grad', False)\n"
    "optimizer = torch.optim.SGD([*model.fc.parameters(), model.token], lr=0.01)\n" + LOOP,
    "a rate of zero": "setattr(model.body, 'requires_grad', False)\n"
    "optimizer = torch.optim.SGD([{'params': [model.token, *model.fc.parameters()]},\n"
    "    {'params': model.body.parameters(), 'lr': 0.0}], lr=0.01)\n" + LOOP,
    "also frozen correctly": "setattr(model.body, 'requires_grad', False)\nmodel.body.requires_grad_(False)\n"
    + REQUESTED
    + LOOP,
    "frozen in part": "setattr(model.body, 'requires_grad', False)\nmodel.body[0].bias.requires_grad = False\n"
    + REQUESTED
    + LOOP,
    "two optimizers that alternate": """
critic = nn.Linear(1, 1)
makers = torch.optim.SGD(model.parameters(), lr=0.01), torch.optim.SGD(critic.parameters(), lr=0.01)
for _ in range(2):
    for iteration, optimizer in enumerate(makers):
        setattr(critic, "requires_grad", iteration == 1)
        optimizer.zero_grad()
        critic(model(x) if iteration == 0 else model(x).detach()).square().mean().backward()
        optimizer.step()
""",
}

SET = "setattr(model.body, 'requires_grad', False)\n"
READ = {
    "by the script": "if step > 1 and not model.body.requires_grad:\n        model.body.requires_grad_(False)",
    "by name": "model.body.requires_grad_(getattr(model.body, 'requires_grad') or step < 2)",
    "by a path": "__import__('operator').attrgetter('body.requires_grad')(model)",
    "in a loop over parts": "print([part.requires_grad for part in (model.body,) if hasattr(part, 'to')])",
    "by a function of the same file": "late(model)",
    "by a method of its parent module": "model.apply_settings()",
    "by another file": "helper.late(model)",
}
DEFINED = {
    "by a function of the same file": "def late(net):\n    return net.body.requires_grad\n",
    "by a method of its parent module": """
class Base(nn.Module):
    def apply_settings(self):
        return self.body.requires_grad
class Own(Net, Base):
    pass
model = Own()
""",
    "by another file": "import helper\n",
}
READS_OF_PARAMETERS = """
def count(net):
    # all whose requires_grad is set
    return sum(p.numel() for p in net.parameters() if p.requires_grad)
for i, (name, p) in enumerate(list(model.named_parameters())):
    print(i, name, p.requires_grad, count(model))
print(len(list(filter(lambda p: p.requires_grad, model.parameters()))))
model.fc.requires_grad_(model.fc.training)
"""

FAULTY = {
    "misspelled": """
for p in backbone.parameters():
    p.require_grad = False  # T
"""
    + CHAINED,
    "of a module": """
backbone.requires_grad = False  # T
head.requires_grad = True  # T
"""
    + CHAINED,
    "a weight of an unknown model, misspelled": """
model = load_model("gan.pt")
model.embedding.weight.require_grad = False  # T
""",
    "of a module, misspelled": """
head.require_grad = False  # T
"""
    + CHAINED,
    "in a class, of a layer": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 1)
        self.freeze()
    def freeze(self):
        self.body.requires_grad = False  # T
        for name, p in self.body.named_parameters():
            p.requires_grads = False  # T
    def forward(self, x):
        return self.head(self.body(x))
model = Net()
"""
    + ALL
    + LOOP,
    "a function, of a pretrained one": """
from torchvision import models
def build():
    vgg = models.vgg16(weights="DEFAULT")
    for param in vgg.features.parameters():
        param.requires_gradient = False  # T
    return vgg
model = build()
""",
    "the method overwritten, in a helper": """
def freeze(module: nn.Module):
    for p in module.parameters():
        p.requires_grad_ = False  # T
freeze(backbone)
"""
    + CHAINED,
}

FAULTY_TRAINED = {
    "one layer": "model.fc.requires_grad = False  # T\n" + ALL + LOOP,
    "every child but the last, in a function": """
def freeze(net: nn.Module):
    for child in list(net.children())[:-1]:
        child.requires_grad = False  # T
freeze(model)
"""
    + ALL
    + LOOP,
    "within a class, under accumulation": """
class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = Net(), nn.Linear(1, 1)
        self.backbone.requires_grad = False  # T
    def forward(self, x):
        return self.head(self.backbone(x))
model = Task()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)  # R
    (nn.functional.mse_loss(out.float(), y) / 2).backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "two optimizers": """
for module in model.body.modules():
    module.requires_grad = False  # T
optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (model.body, model.fc)]
for _ in range(2):
    nn.functional.mse_loss(model(x), y).backward()  # R
    for each in optimizers:
        each.step()
        each.zero_grad()
""",
    "called before it is frozen": "model(x)\nmodel.fc.requires_grad = False  # T\n" + ALL + LOOP,
    "in a second stage, with an optimizer of its own": ALL
    + LOOP.replace("  # R", "")
    + "model.body.requires_grad = False  # T\n"
    + ALL
    + LOOP,
    "unfreezing without effect": """
model.requires_grad_(False)
model.token.requires_grad = True
model.fc.requires_grad = True  # T
"""
    + ALL
    + LOOP,
    "a custom class that freezes others": """
class Own(Net):
    def freeze(self):
        for p in self.body.parameters():
            p.requires_grad = False
model = Own()
model.requires_grad = False  # T
"""
    + ALL
    + LOOP,
}


@pytest.fixture(autouse=True)
def _exclude_tests_from_the_program(monkeypatch):
    here = str(Path(__file__).parents[2])
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(here):
            monkeypatch.delitem(sys.modules, name)
    yield
    sys.modules.pop("helper", None)


def _mark(script, tag):
    return script.replace(f"# {tag}", "# <- GRD012")


AMBIGUOUS = {"unfreezing without effect", "a custom class that freezes others"}
"""Scripts with several lines that may have set the attribute: a run names the backward pass instead."""


@pytest.mark.parametrize("name", [*FAULTY, *FAULTY_TRAINED])
def test_run_and_lint_report_faulty_scripts(run_reports, lint_reports, name):
    script = HEAD + (FAULTY[name] if name in FAULTY else TRAINED + FAULTY_TRAINED[name])
    if "# T" in script:
        lint_reports(_mark(script, "T"), fixes=True)
    if "# R" in script:
        script = script.replace("head.requires_grad = True  # T", "head.requires_grad = True")  # freezes nothing
        names_assignment = (script.count("# T") == 1 and name not in AMBIGUOUS) or name == "in a class, of a layer"
        found = run_reports(_mark(script, "T" if names_assignment else "R")).findings[0]
        assert "that nothing reads" in found.message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)


@pytest.mark.parametrize("script", CORRECT_TRAINED.values(), ids=CORRECT_TRAINED)
def test_run_and_lint_accept_correct_training(run_is_clean, lint_is_clean, script):
    run_is_clean(HEAD + TRAINED + script)
    lint_is_clean(HEAD + TRAINED + script, "GRD012")


def test_message_counts_the_parameters(run_reports):
    thawed = run_reports(_mark(HEAD + TRAINED + FAULTY_TRAINED["unfreezing without effect"], "R")).findings[0]
    assert thawed.message.startswith("fc of Net has an attribute `requires_grad = True`")
    assert "2 of 2 parameters that should be unfrozen get no gradient" in thawed.message
    assert thawed.fix == "Call `requires_grad_(True)` on each module."


def _with_step(reading):
    return LOOP.replace("_ in range(2)", "step in range(3)").replace(
        "    optimizer.step", f"    {reading}\n    optimizer.step"
    )


@pytest.mark.parametrize("name", READ)
def test_setting_read_outside_its_class_is_not_reported(run_is_clean, tmp_path, monkeypatch, name):
    tmp_path.joinpath("helper.py").write_text("def late(net):\n    return net.body.requires_grad\n")
    monkeypatch.syspath_prepend(tmp_path)
    script = HEAD + TRAINED + DEFINED.get(name, "") + SET + ALL + _with_step(READ[name])
    run_is_clean(script)


def test_reads_of_parameters_do_not_hide_the_mistake(run_reports, lint_reports):
    run_reports(_mark(HEAD + TRAINED + READS_OF_PARAMETERS + SET + ALL + LOOP, "R"))
    lint_reports(
        _mark(HEAD + TRAINED + READS_OF_PARAMETERS + "model.body.requires_grad = False  # T\n" + ALL + LOOP, "T")
    )


def test_misspelled_setting_that_is_read_is_not_reported(run_is_clean):
    marked = "for p in model.body.parameters():\n    p.require_grad = False\n"
    reading = "if step:\n        [p.requires_grad_(p.require_grad) for p in model.body.parameters()]"
    run_is_clean(HEAD + TRAINED + marked + ALL + _with_step(reading))


def test_names_of_code_without_source_are_checked(run_reports, run_is_clean):
    head = HEAD + TRAINED + SET + ALL
    run_reports(head + f"exec({LOOP.replace('  # R', '')!r})  # <- GRD012\n")
    run_is_clean(head + f"exec({_with_step(READ['by the script']).replace('  # R', '')!r})\n")


STATES = {
    "items": """
for name, param in model.state_dict().items():
    if "fc" not in name:
        param.requires_grad = False  # <- GRD012
""",
    "values, by the method": """
state = model.state_dict()
for p in state.values():
    p.requires_grad_(False)  # <- GRD012
""",
    "by name": """
model.state_dict()["fc.weight"].requires_grad = False  # <- GRD012
""",
    "of a variable": """
weights = model.state_dict()
for key in weights:
    weights[key].requires_grad = False  # <- GRD012
""",
}
STATES_FINE = {
    "parameters": "for n, p in model.named_parameters():\n    p.requires_grad = False\n",
    "the parameters themselves": "for p in model.state_dict(keep_vars=True).values():\n    p.requires_grad = False\n",
    "a dictionary of parameters": "named = dict(model.named_parameters())\nnamed['fc.weight'].requires_grad = False\n",
    "a saved file": "for p in torch.load('net.pt').values():\n    p.requires_grad = False\n",
    "another tensor": "for k, p in model.state_dict().items():\n    x.requires_grad = False\n",
}


@pytest.mark.parametrize("script", STATES.values(), ids=STATES)
def test_lint_reports_settings_of_a_state(lint_reports, script):
    lint_reports(HEAD + TRAINED + script)


@pytest.mark.parametrize("script", STATES_FINE.values(), ids=STATES_FINE)
def test_lint_accepts_settings_of_parameters(lint_is_clean, script):
    lint_is_clean(HEAD + TRAINED + script, "GRD012")
