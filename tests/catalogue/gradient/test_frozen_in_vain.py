"""GRD012: attributes that nothing reads."""

import pytest

HEAD = """
import torch
from torch import nn

backbone = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
head = nn.Linear(8, 1)
"""

QUIET = {
    "as torch does": """
for p in backbone.parameters():
    p.requires_grad = False
head.requires_grad_(True)
backbone[0].weight.requires_grad = True
for name, p in head.named_parameters():
    p.requires_grad = name == "bias"
""",
    "a setting of one's own that is read": """
class Net(nn.Module):
    def __init__(self, requires_grad=False):
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
    "asked for by name": """
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
    "leaves": """
x = torch.randn(4, 6)
x.requires_grad = True
backbone(x).sum().backward()
""",
}

GUILTY = {
    "one letter": """
for p in backbone.parameters():
    p.require_grad = False  # <- GRD012
""",
    "of a module": """
backbone.requires_grad = False  # <- GRD012
head.requires_grad = True  # <- GRD012
""",
    "in a class, of a layer": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 1)
        self.freeze()
    def freeze(self):
        self.body.requires_grad = False  # <- GRD012
        for name, p in self.body.named_parameters():
            p.requires_grads = False  # <- GRD012
    def forward(self, x):
        return self.head(self.body(x))
net = Net()
""",
    "a function, of a pretrained one": """
from torchvision import models
def build():
    vgg = models.vgg16(weights="DEFAULT")
    for param in vgg.features.parameters():
        param.requires_gradient = False  # <- GRD012
    return vgg
model = build()
""",
    "the method overwritten, in a helper": """
def freeze(module: nn.Module):
    for p in module.parameters():
        p.requires_grad_ = False  # <- GRD012
freeze(backbone)
""",
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_the_rule_finds_it(told, script):
    told(HEAD + script, fixes=True)


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes_are_left_alone(untold, script):
    untold(HEAD + script)
