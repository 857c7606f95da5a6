"""MDL028: functions for ``apply`` that match no layer."""

import pytest

HEAD = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
"""
FAULTY = {
    "is": """
def init(m):
    if m is nn.Linear:  # <- MDL028
        nn.init.normal_(m.weight)
model.apply(init)
""",
    "one of several": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 1)
        self.apply(self._init_weights)
    def _init_weights(self, module):
        if module in (nn.Linear, nn.Conv2d):  # <- MDL028
            nn.init.normal_(module.weight)
    def forward(self, x):
        return self.fc(x)
""",
    "a text": """
def init(m):
    if type(m) == "Linear":  # <- MDL028
        nn.init.normal_(m.weight)
model.apply(init)
""",
    "a loop": """
for name, layer in model.named_modules():
    if layer == nn.Linear or layer == nn.Conv2d:  # <- MDL028  # <- MDL028
        nn.init.normal_(layer.weight)
""",
}
FAULTY["a loop"] = FAULTY["a loop"].replace(" or layer == nn.Conv2d:  # <- MDL028", ":")
CORRECT = {
    "isinstance": """
def init(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight)
model.apply(init)
""",
    "the type": """
def init(m):
    if type(m) == nn.Linear or type(m) in (nn.Conv2d, nn.Conv1d):
        nn.init.normal_(m.weight)
model.apply(init)
""",
    "the name of the type": """
def init(m):
    if m.__class__.__name__ == "Linear" or type(m).__name__.find("Conv") != -1:
        nn.init.normal_(m.weight)
model.apply(init)
""",
    "another layer": """
for layer in model.children():
    if layer is model[0]:
        nn.init.normal_(layer.weight)
""",
    "a class among classes": """
def build(kind):
    if kind == nn.Linear:
        return nn.Linear(8, 1)
    return kind(8, 8, 3)
build(nn.Linear)
""",
    "apply of a table": """
def convert(value):
    return value == "Linear"
table.apply(convert)
""",
}
FAULTY |= {
    "parameters that are asked whether they are layers": """
class Gan:
    def __init__(self):
        self.start(model)
    def start(self, net):
        for each in net.parameters():
            if isinstance(each, (nn.Conv2d, nn.Linear)):  # <- MDL028
                nn.init.normal_(each.weight, 0, 0.02)
""",
    "named parameters, by type": """
for name, part in model.named_parameters():
    if type(part) == nn.BatchNorm2d:  # <- MDL028
        part.requires_grad = False
""",
    "parameters, by the name of the class": """
for p in list(model.parameters()):
    if p.__class__.__name__.find("Linear") != -1:  # <- MDL028
        p.data.normal_(0, 0.02)
""",
    "pairs of named_modules": """
frozen = [m for m in model.named_modules() if isinstance(m, nn.BatchNorm1d)]  # <- MDL028
""",
    "names of layers": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 1)
        for m in self._modules:
            if isinstance(m, nn.Linear):  # <- MDL028
                nn.init.normal_(m.weight)
    def forward(self, x):
        return self.fc(x)
""",
    "an initialiser of one layer gets a model of the file": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
    def forward(self, x):
        return self.body(x)
def start(layer):
    kind = layer.__class__.__name__
    if kind.find("Conv") != -1:
        layer.weight.data.normal_(0.0, 0.02)
    elif "BatchNorm" in kind:
        layer.weight.data.fill_(1)
net = Net().to("cpu")
start(net)  # <- MDL028
""",
    "an initialiser of one layer gets a container": """
def init_weights(m):
    if isinstance(m, nn.Linear):
        nn.init.xavier_uniform_(m.weight)
        if m.bias is not None:
            nn.init.zeros_(m.bias)
init_weights(model)  # <- MDL028
""",
    "an initialiser of one layer gets the models of a trainer": """
def reset(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)
class Trainer:
    def __init__(self, models):
        self.generator, self.netD = models["gen"], models["dis"]
        reset(self.generator)  # <- MDL028
        reset(self.netD)  # <- MDL028
""",
}
CORRECT |= {
    "parameters that are parameters": """
for p in model.parameters():
    if isinstance(p, nn.Parameter) and isinstance(p, (nn.Parameter, torch.Tensor)):
        p.requires_grad = True
""",
    "the layer of a parameter": """
for name, p in model.named_parameters():
    layer = model.get_submodule(name.rpartition(".")[0])
    if isinstance(layer, nn.Linear) and p.dim() > 1:
        nn.init.normal_(p)
""",
    "the second of a pair": """
for each in model.named_modules():
    name, layer = each
    if isinstance(layer, nn.Linear) and isinstance(each[1], nn.Linear):
        nn.init.normal_(layer.weight)
for number, (name, layer) in enumerate(model.named_modules()):
    if isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight)
""",
    "layers by their names": """
for m in model._modules:
    m = model._modules[m]
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight)
for m in model._modules.values():
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight)
""",
    "an initialiser gets single layers": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 16), nn.Linear(16, 1)
        init_weights(self.encoder)
        init_weights(self.decoder)
        for net in (self.encoder, self.decoder):
            init_weights(net)
    def forward(self, x):
        return self.decoder(self.encoder(x))
def init_weights(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight)
""",
    "an initialiser that visits the layers": """
def init_weights(net):
    for m in net.modules():
        if isinstance(m, nn.Linear):
            nn.init.normal_(m.weight)
def init_nested(net):
    if isinstance(net, nn.Linear):
        nn.init.normal_(net.weight)
    for child in net.children():
        init_nested(child)
init_weights(model)
init_nested(model)
""",
    "an initialiser with a case for everything else": """
def start(net):
    if isinstance(net, nn.Linear):
        nn.init.normal_(net.weight)
    else:
        net.load_state_dict(torch.load("start.pt"))
start(model)
""",
    "an initialiser that is applied": """
def init_weights(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight)
model.apply(init_weights)
""",
    "a model that is one layer": """
def init_weights(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight)
net = nn.Linear(8, 1)
init_weights(net)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_comparison(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL028")
