"""EVL022: frozen BatchNorm layers whose statistics change, in a model that shares them."""

import pytest

HEAD = """
import copy
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
def trunk():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
x = torch.randn(256, 8)
y = x[:, :3].argmax(1)
far = 3 * torch.randn(256, 8) + 2
z = (far[:, 0] > 2).long()

def fit(call, model, x, y, freeze=None):
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=0.02)
    for epoch in range(6):
        model.train()
        if freeze is not None:
            freeze.eval()
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(call(x[rows]), y[rows]).backward()
            optimizer.step()

def accuracy(call, model, x, y):
    model.eval()
    with torch.no_grad():
        return (call(x).argmax(1) == y).float().mean().item()

class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = trunk()
        self.heads = nn.ModuleDict({"old": nn.Linear(16, 3), "new": nn.Linear(16, 2)})
    def forward(self, x, task):
        return self.heads[task](self.trunk(x))

class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.old, self.new = trunk(), nn.Linear(16, 3), nn.Linear(16, 2)
    def forward(self, x):
        hidden = self.trunk(x)
        return self.old(hidden), self.new(hidden)
"""
FAULTY = {
    "one model with a head for each task": """
model = Heads()
old, new = lambda x: model(x, "old"), lambda x: model(x, "new")
fit(old, model, x, y)
before = accuracy(old, model, x, y)
model.trunk.requires_grad_(False)
fit(new, model, far, z)
print(before, accuracy(old, model, x, y))
""",
    "a model that returns both": """
model = Both()
old, new = lambda x: model(x)[0], lambda x: model(x)[1]
for each in model.new.parameters():
    each.requires_grad = False
fit(old, model, x, y)
before = accuracy(old, model, x, y)
for each in model.parameters():
    each.requires_grad = False
for each in model.new.parameters():
    each.requires_grad = True
fit(new, model, far, z)
print(before, accuracy(old, model, x, y))
""",
    "features of a shared part": """
part = trunk()
model = nn.Sequential(part, nn.Linear(16, 3))
fit(model, model, x, y)
part.eval()
with torch.no_grad():
    before = part(x)
part.requires_grad_(False)
model = nn.Sequential(part, nn.Linear(16, 2))
fit(model, model, far, z)
part.eval()
with torch.no_grad():
    print((part(x) - before).abs().mean())
""",
}
FAULTY |= {
    "eval before the loop": """
model = nn.Sequential(trunk(), nn.Linear(16, 3))
model[0].requires_grad_(False)
model[0].eval()
fit(model, model, x, y)
""",
    "each layer on its own": """
model = nn.Sequential(trunk(), nn.Linear(16, 3))
def freeze(model):
    for each in model.modules():
        if isinstance(each, nn.BatchNorm1d):
            each.eval()
freeze(model)
fit(model, model, x, y)
""",
    "undone after an evaluation": """
model = nn.Sequential(trunk(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model[1].parameters(), lr=0.02)
for each in model[0].parameters():
    each.requires_grad = False
model.train()
model[0].eval()
for epoch in range(3):
    for rows in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    print(accuracy(model, model, x, y))
    model.train()
""",
}
SEPARATE = """
class Pair:
    def __init__(self, body, head):
        self.body, self.head = body, head
    def __call__(self, x):
        return self.head(self.body(x))
    def parameters(self):
        return [*self.body.parameters(), *self.head.parameters()]
    def train(self):
        self.body.train(), self.head.train()
    def eval(self):
        self.body.eval(), self.head.eval()
body = trunk()
old, new = Pair(body, nn.Linear(16, 3)), Pair(body, nn.Linear(16, 2))
fit(old, old, x, y)
"""
FAULTY |= {
    "a body and two heads, called one after the other": SEPARATE
    + """
before = accuracy(old, old, x, y)
body.requires_grad_(False)
fit(new, new, far, z)
print(before, accuracy(new, new, far, z), accuracy(old, old, x, y))
""",
    "features without gradients for the new head": SEPARATE
    + """
optimizer = torch.optim.Adam(new.head.parameters(), lr=0.02)
body.requires_grad_(False)
for epoch in range(6):
    new.train()
    for rows in torch.randperm(len(far)).split(32):
        with torch.no_grad():
            features = body(far[rows])
        optimizer.zero_grad()
        F.cross_entropy(new.head(features), z[rows]).backward()
        optimizer.step()
print(accuracy(old, old, x, y))
""",
}
CORRECT = {
    "unfrozen block by block, where train() keeps frozen blocks in eval mode": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([trunk(), nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))])
        self.head, self.frozen = nn.Linear(16, 3), 0
    def forward(self, x):
        return self.head(self.blocks[1](self.blocks[0](x)))
    def freeze_to(self, n):
        self.frozen = n
        for k, block in enumerate(self.blocks):
            block.requires_grad_(k >= n)
        self.train(self.training)
    def train(self, mode=True):
        super().train(mode)
        for block in self.blocks[:self.frozen]:
            block.eval()
        return self
net = Net()
fit(net, net, x, y)
for n in (2, 1, 0):
    net.freeze_to(n)
    fit(net, net, far, z)
    accuracy(net, net, far, z)
""",
    "a body and two heads, only the new one used later": SEPARATE
    + """
print(accuracy(old, old, x, y))
body.requires_grad_(False)
fit(new, new, far, z)
print(accuracy(new, new, far, z))
""",
    "a body and two heads, the body in eval mode": SEPARATE
    + """
before = accuracy(old, old, x, y)
body.requires_grad_(False)
fit(new, new, far, z, freeze=body)
print(before, accuracy(old, old, x, y))
""",
    "a body and two heads, the body trained again": SEPARATE
    + """
body.requires_grad_(False)
fit(new, new, far, z)
body.requires_grad_(True)
fit(old, old, x, y)
print(accuracy(old, old, x, y))
""",
    "a body and two heads, the same data": SEPARATE
    + """
print(accuracy(old, old, x, y))
body.requires_grad_(False)
fit(new, new, x, y.clamp(max=1))
print(accuracy(old, old, x, y))
""",
    "a part that is evaluated on its own": """
model = nn.Sequential(trunk(), nn.Linear(16, 3))
for epoch in range(3):
    model[0].eval()
    with torch.no_grad():
        print(model[0](x).mean())
    model.train()
    fit(model, model, x, y)
""",
    "a part that is evaluated by a layer": """
model = nn.Sequential(trunk(), nn.Linear(16, 3))
model[0].eval()
with torch.no_grad():
    print(model[0][1](model[0][0](x)).mean())
fit(model, model, x, y)
""",
    "a second stage that trains all": """
model = nn.Sequential(trunk(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
model[0].eval()
for stage in range(2):
    for rows in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    model.train()
""",
    "a wrapped model": """
class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
    def forward(self, x):
        return self.module(x)
inner = nn.Sequential(trunk(), nn.Linear(16, 3))
model = Wrapper(inner)
inner.eval()
fit(model, model, x, y)
""",
    "eval after train": """
model = nn.Sequential(trunk(), nn.Linear(16, 3))
model[0].requires_grad_(False)
model[0].eval()
fit(model, model, x, y, freeze=model[0])
""",
    "the part is put into eval mode": """
model = Heads()
old, new = lambda x: model(x, "old"), lambda x: model(x, "new")
fit(old, model, x, y)
before = accuracy(old, model, x, y)
model.trunk.requires_grad_(False)
fit(new, model, far, z, freeze=model.trunk)
print(before, accuracy(old, model, x, y))
""",
    "only the new head is used": """
model = Heads()
old, new = lambda x: model(x, "old"), lambda x: model(x, "new")
fit(old, model, x, y)
print(accuracy(old, model, x, y), accuracy(new, model, far, z))
model.trunk.requires_grad_(False)
fit(new, model, far, z)
print(accuracy(new, model, far, z))
""",
    "a new last layer": """
model = nn.Sequential(trunk(), nn.Linear(16, 3))
fit(model, model, x, y)
print(accuracy(model, model, x, y))
model[0].requires_grad_(False)
model[1] = nn.Linear(16, 2)
print(accuracy(model, model, far, z))
fit(model, model, far, z)
print(accuracy(model, model, far, z))
""",
    "data of the same distribution": """
model = Heads()
old, new = lambda x: model(x, "old"), lambda x: model(x, "new")
fit(old, model, x, y)
print(accuracy(old, model, x, y))
model.trunk.requires_grad_(False)
fit(new, model, x, (y > 0).long())
print(accuracy(old, model, x, y), accuracy(new, model, x, (y > 0).long()))
""",
    "a copy": """
model = nn.Sequential(trunk(), nn.Linear(16, 3))
fit(model, model, x, y)
print(accuracy(model, model, x, y))
other = nn.Sequential(copy.deepcopy(model[0]).requires_grad_(False), nn.Linear(16, 2))
fit(other, other, far, z)
print(accuracy(model, model, x, y), accuracy(other, other, far, z))
""",
    "statistics that are adapted": """
model = nn.Sequential(trunk(), nn.Linear(16, 3))
fit(model, model, x, y)
print(accuracy(model, model, x, y))
model.requires_grad_(False)
model.train()
with torch.no_grad():
    for rows in torch.randperm(256).split(32):
        model(far[rows])
print(accuracy(model, model, far, far[:, :3].argmax(1)))
""",
    "an adversary that is frozen for a while": """
make = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
judge = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
first, second = torch.optim.Adam(make.parameters()), torch.optim.Adam(judge.parameters())
def loss(out, value):
    return F.binary_cross_entropy_with_logits(out, torch.full_like(out, value))
for step in range(40):
    make.train(), judge.train()
    judge.requires_grad_(True)
    second.zero_grad()
    fake = make(torch.randn(32, 4))
    (loss(judge(x[:32]), 1.0) + loss(judge(fake.detach()), 0.0)).backward()
    second.step()
    judge.requires_grad_(False)
    first.zero_grad()
    loss(judge(fake), 1.0).backward()
    first.step()
    if step % 10 == 0:
        make.eval(), judge.eval()
        with torch.no_grad():
            print(judge(make(torch.randn(32, 4))).mean())
""",
    "trained again": """
model = Heads()
old, new = lambda x: model(x, "old"), lambda x: model(x, "new")
fit(old, model, x, y)
print(accuracy(old, model, x, y))
model.trunk.requires_grad_(False)
fit(new, model, far, z)
model.trunk.requires_grad_(True)
fit(old, model, x, y)
print(accuracy(old, model, x, y))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_statistics_that_change_are_reported(run, script):
    assert "EVL022" in {each.code for each in run(HEAD + script).findings}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_other_frozen_parts_are_accepted(run, script):
    assert "EVL022" not in {each.code for each in run(HEAD + script).findings}


LINT_HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
x, far = torch.randn(256, 8), 3 * torch.randn(256, 8) + 2
y, z = x[:, :3].argmax(1), (far[:, 0] > 2).long()

class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16{norm}), nn.ReLU())
    def forward(self, x):
        return self.body(x)

class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.old, self.new = Trunk(), nn.Linear(16, 3), nn.Linear(16, 2)
    def forward(self, x, task):
        hidden = self.trunk(x)
        return self.old(hidden) if task == "old" else self.new(hidden)

@torch.no_grad()
def accuracy(model, x, y, task):
    model.eval()
    return (model(x, task).argmax(1) == y).float().mean().item()
"""
FIT = """
def fit(model, x, y, task, params, epochs=6):
    optimizer = torch.optim.Adam(params, lr=0.02)
    for epoch in range(epochs):
        model.train(){mark}{after}
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows], task), y[rows]).backward()
            optimizer.step()
"""
MARK = "  # <- EVL022"
PROGRAM = LINT_HEAD + FIT
STAGES = """
model = Heads()
fit(model, x, y, "old", model.parameters())
print(accuracy(model, x, y, "old"))
{freeze}
fit(model, far, z, "new", model.new.parameters())
print(accuracy(model, far, z, "new"))
{end}
"""
END = 'print(accuracy(model, x, y, "old"))'
FREEZE = "model.trunk.requires_grad_(False)"
LINT_FAULTY = {
    "a part": PROGRAM.format(norm="", mark=MARK, after="") + STAGES.format(freeze=FREEZE, end=END),
    "a list of parameters": PROGRAM.format(norm="", mark=MARK, after="")
    + STAGES.format(
        freeze="fixed = list(model.trunk.parameters()) + list(model.old.parameters())\n"
        "for p in fixed:\n    p.requires_grad = False",
        end=END,
    ),
    "a function": "def freeze(part):\n    for p in part.parameters():\n        p.requires_grad_(False)\n"
    + PROGRAM.format(norm="", mark=MARK, after="")
    + "def main():"
    + STAGES.format(freeze="freeze(model.trunk)", end=END).replace("\n", "\n    "),
    "a class": PROGRAM.format(norm="", mark="", after="")
    + """
class Trainer:
    def __init__(self, model):
        self.model = model
    def run(self, x, y, task, params):
        optimizer = torch.optim.SGD(params, lr=0.1)
        self.model.train(True)  # <- EVL022
        for rows in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(self.model(x[rows], task), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
model = Heads()
trainer = Trainer(model)
trainer.run(x, y, "old", model.parameters())
for p in model.trunk.parameters():
    p.requires_grad = False
trainer.run(far, z, "new", model.new.parameters())
print(accuracy(model, x, y, "old"))
""",
    "two models": LINT_HEAD.format(norm="")
    + """
trunk = Trunk()
first, second = nn.Sequential(trunk, nn.Linear(16, 3)), nn.Sequential(trunk, nn.Linear(16, 2))
def train(net, a, b, optimizer):
    net.train()  # <- EVL022
    for rows in torch.randperm(len(a)).split(32):
        optimizer.zero_grad()
        F.cross_entropy(net(a[rows]), b[rows]).backward()
        optimizer.step()
train(first, x, y, torch.optim.Adam(first.parameters()))
trunk.requires_grad_(False)
train(second, far, z, torch.optim.Adam(second[1].parameters()))
first.eval()
with torch.no_grad():
    print((first(x).argmax(1) == y).float().mean())
""",
}
OVERRIDE = """
class Kept(Heads):
    def train(self, mode=True):
        super().train(mode)
        self.trunk.eval()
        return self
"""
LINT_CORRECT = {
    "eval after train": PROGRAM.format(norm="", mark="", after="\n        model.trunk.eval()")
    + STAGES.format(freeze=FREEZE, end=END),
    "eval of all BatchNorm layers": PROGRAM.format(
        norm="", mark="", after="\n        for m in model.trunk.modules():\n            m.eval()"
    )
    + STAGES.format(freeze=FREEZE, end=END),
    "an override of train": PROGRAM.format(norm="", mark="", after="")
    + OVERRIDE
    + STAGES.format(freeze=FREEZE, end=END).replace("Heads()", "Kept()"),
    "unfrozen later": PROGRAM.format(norm="", mark="", after="")
    + STAGES.format(freeze=FREEZE, end=f"model.trunk.requires_grad_(True)\n{END}"),
    "no BatchNorm": PROGRAM.format(norm="", mark="", after="").replace("BatchNorm1d", "LayerNorm")
    + STAGES.format(freeze=FREEZE, end=END),
    "momentum 0": PROGRAM.format(norm=", momentum=0.0", mark="", after="") + STAGES.format(freeze=FREEZE, end=END),
    "only the new task is evaluated": PROGRAM.format(norm="", mark="", after="") + STAGES.format(freeze=FREEZE, end=""),
    "the same task with a new head": PROGRAM.format(norm="", mark="", after="")
    + STAGES.format(freeze=FREEZE, end="").replace('"old"', '"new"'),
    "a frozen head": PROGRAM.format(norm="", mark="", after="")
    + STAGES.format(freeze="model.old.requires_grad_(False)", end=END),
    "a teacher": PROGRAM.format(norm="", mark="", after="")
    + """
teacher, student = Heads(), Heads()
fit(teacher, x, y, "old", teacher.parameters())
teacher.requires_grad_(False)
fit(student, x, y, "old", student.parameters())
print(accuracy(student, x, y, "old"), accuracy(teacher, x, y, "old"))
""",
}


@pytest.mark.parametrize("script", LINT_FAULTY.values(), ids=LINT_FAULTY)
def test_lint_reports_train_mode_of_a_frozen_part(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", LINT_CORRECT.values(), ids=LINT_CORRECT)
def test_lint_accepts_correct_trainings(lint_is_clean, script):
    lint_is_clean(script, "EVL022")


FREEZING = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, fix=False):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 2)
        BUILT

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).mean((2, 3)))

    def freeze_bn(self):
        for m in self.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.eval()

def fix_bn(m):
    if "BatchNorm" in m.__class__.__name__:
        m.eval()

def main(loader):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    BEFORE
    for epoch in range(5):
        model.train()MARK
        AFTER
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
"""


def _frozen(before="pass", after="pass", built="pass", mark="", **changed):
    script = FREEZING.replace("BEFORE", before).replace("AFTER", after).replace("BUILT", built).replace("MARK", mark)
    return script.replace(changed.get("old", "\0"), changed.get("new", ""))


UNDONE = {
    "a method": {"before": "model.freeze_bn()"},
    "on a condition": {"before": "if fine_tune:\n        model.freeze_bn()"},
    "applied": {"before": "model.apply(fix_bn)"},
    "in the constructor": {"built": "if fix:\n            self.freeze_bn()"},
}
NOT_UNDONE = {
    "after train()": {"after": "model.freeze_bn()"},
    "before the loop and in it": {"before": "model.freeze_bn()", "after": "model.freeze_bn()"},
    "no train()": {"before": "model.freeze_bn()", "old": "        model.train()", "new": "        pass"},
    "an own train": {
        "before": "model.freeze_bn()",
        "old": "    def freeze_bn",
        "new": "    def train(self, mode=True):\n        super().train(mode)\n        self.freeze_bn()\n\n"
        "    def freeze_bn",
    },
    "another model": {"before": "other = Net()\n    other.freeze_bn()"},
    "all layers": {"before": "model.freeze_bn()", "old": "if isinstance(m, nn.BatchNorm2d)", "new": "if True"},
}


@pytest.mark.parametrize("case", UNDONE.values(), ids=UNDONE)
def test_lint_reports_frozen_statistics_that_train_undoes(lint_reports, case):
    lint_reports(_frozen(**case, mark="  # <- EVL022"))


@pytest.mark.parametrize("case", NOT_UNDONE.values(), ids=NOT_UNDONE)
def test_lint_accepts_statistics_that_stay_frozen(lint_is_clean, case):
    lint_is_clean(_frozen(**case), "EVL022")


PART = """
import torch
from torch import nn
from torchvision import models

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = models.resnet18(pretrained=True)
        for p in self.backbone.parameters():
            p.requires_grad = False
        BUILT
        self.head = nn.Linear(1000, 4)
    def forward(self, x):
        return self.head(self.backbone(x))

model = Net()
optimizer = torch.optim.Adam(model.head.parameters())
BEFORE
for epoch in range(5):
    model.train()MARK
    pass
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(sum((model(x).argmax(1) == y).sum() for x, y in held_out))
"""


def _part(built="pass", before="pass", mark="", old="\0", new=""):
    return PART.replace("BUILT", built).replace("BEFORE", before).replace("MARK", mark).replace(old, new)


IN_EVAL = "self.backbone.eval()"
THAWED = "for p in model.backbone.parameters():\n    p.requires_grad = True"
PART_UNDONE = {
    "in the constructor": {"built": IN_EVAL},
    "before the loop": {"before": "model.backbone.eval()"},
    "a Sequential with BatchNorm": {
        "built": IN_EVAL,
        "old": "models.resnet18(pretrained=True)",
        "new": "nn.Sequential(nn.Linear(8, 1000), nn.BatchNorm1d(1000))",
    },
}
PART_KEPT = {
    "never in eval mode": {},
    "eval mode after train()": {"built": IN_EVAL, "old": "    pass", "new": "    model.backbone.eval()"},
    "only the head": {"built": IN_EVAL, "old": "model.train()", "new": "model.head.train()"},
    "no train()": {"built": IN_EVAL, "old": "    model.train()", "new": "    pass"},
    "an own train": {
        "built": IN_EVAL,
        "old": "    def forward",
        "new": "    def train(self, mode=True):\n        super().train(mode)\n        self.backbone.eval()\n"
        "        return self\n    def forward",
    },
    "trained again": {"built": IN_EVAL, "before": THAWED},
    "not frozen": {"built": IN_EVAL, "old": "p.requires_grad = False", "new": "print(p.shape)"},
    "no BatchNorm": {"built": IN_EVAL, "old": "models.resnet18(pretrained=True)", "new": "nn.Linear(8, 1000)"},
}


@pytest.mark.parametrize("case", PART_UNDONE.values(), ids=PART_UNDONE)
def test_lint_reports_a_frozen_part_that_train_puts_back(lint_reports, case):
    lint_reports(_part(**case, mark="  # <- EVL022"))


@pytest.mark.parametrize("case", PART_KEPT.values(), ids=PART_KEPT)
def test_lint_accepts_frozen_parts_that_stay_in_their_mode(lint_is_clean, case):
    lint_is_clean(_part(**case), "EVL022")
