"""OPT001: a group of parameters is built, but passed to no optimizer."""

import pytest

HEAD = """
import torch
from torch import nn, optim
"""

FAULTY = {
    "a group in a variable": """
def make_optimizer(net, lr):
    trunk = {"params": net.trunk.parameters(), "lr": lr * 0.1}
    neck = {"params": net.neck.parameters(), "lr": lr}  # <- OPT001
    head = {"params": net.head.parameters(), "lr": lr}
    return optim.SGD([trunk, head], momentum=0.9, lr=lr)
""",
    "a list that a loop fills, in a class": """
class Trainer:
    def __init__(self, model, args):
        decay, no_decay = [], []  # <- OPT001
        for name, p in model.named_parameters():
            if not p.requires_grad:
                continue
            if p.ndim < 2:
                no_decay.append(p)
            else:
                decay.append(p)
        print(len(decay), len(no_decay))
        self.optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": args.wd}], lr=args.lr)
""",
    "lists by name": """
def optimizers(model):
    backbone = [p for n, p in model.named_parameters() if "backbone" in n]
    classifier = [p for n, p in model.named_parameters() if "classifier" in n]
    temperature = [p for n, p in model.named_parameters() if "temp" in n]  # <- OPT001
    groups = []
    groups.append(dict(params=backbone, lr=1e-5))
    groups.append(dict(params=classifier, lr=1e-3))
    return torch.optim.Adam(groups)
""",
    "a function that returns groups": """
def param_groups(model, cfg):
    groups = []
    embed = {"params": list(model.embed.parameters()), "weight_decay": 0.0}
    groups.append(embed)
    body = {"params": [p for p in model.body.parameters() if p.requires_grad], "weight_decay": cfg.wd}
    groups.append(body)
    out = {"params": list(model.out.parameters()), "weight_decay": 0.0}  # <- OPT001
    return groups
""",
    "lists of a script, with clipping": """
enc, dec, bridge = Encoder(), Decoder(), nn.Linear(4, 4)
enc_params = list(enc.parameters())
dec_params = list(dec.parameters())
bridge_params = list(bridge.parameters())  # <- OPT001
opt = optim.Adam(enc_params + dec_params, lr=1e-3)
for x, y in loader:
    loss = (dec(bridge(enc(x))) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(bridge_params, 1.0)
    opt.step()
""",
    "a variable that is used again": """
def build(model, lr):
    groups = [{"params": model.a.parameters()}]
    g = {}
    g["params"] = filter(lambda p: p.requires_grad, model.b.parameters())
    g["lr"] = lr * 10
    groups += [g]
    g = {}  # <- OPT001
    g["params"] = filter(lambda p: p.requires_grad, model.c.parameters())
    g["lr"] = lr * 100
    return optim.AdamW(groups, lr=lr)
""",
}

CORRECT = {
    "names of parameters": """
def make(model, lr):
    decay, no_decay, names = [], [], []
    for name, p in model.named_parameters():
        if p.ndim < 2:
            no_decay.append(p)
            names.append(name)
        else:
            decay.append(p)
    return optim.SGD([{"params": decay}, {"params": no_decay, "weight_decay": 0.0}], lr=lr)
""",
    "a group under a condition": """
def make(model, lr, freeze):
    enc = {"params": model.enc.parameters(), "lr": lr * 0.1}
    dec = {"params": model.dec.parameters(), "lr": lr}
    groups = [dec]
    if not freeze:
        groups.append(enc)
    return optim.SGD(groups, lr=lr)
""",
    "a frozen encoder": """
def make(model, lr):
    for p in model.enc.parameters():
        p.requires_grad = False
    enc = list(model.enc.parameters())
    dec = list(model.dec.parameters())
    return optim.SGD([{"params": dec}], lr=lr)
""",
    "two branches": """
def make(model, lr, big):
    if big:
        params = {"params": model.enc.parameters(), "lr": lr}
    else:
        params = {"params": model.enc.parameters(), "lr": lr / 10}
    head = {"params": model.head.parameters()}
    return optim.SGD([params, head], lr=lr)
""",
    "frozen parameters, counted": """
def make(model, lr):
    trainable, frozen = [], []
    for n, p in model.named_parameters():
        if p.requires_grad:
            trainable.append(p)
        else:
            frozen.append(p)
    print(len(frozen))
    return optim.SGD(trainable, lr=lr)
""",
    "all parameters instead": """
def make(model, lr):
    params = list(model.parameters())
    head = list(model.head.parameters())
    return optim.SGD(params, lr=lr)
""",
    "an unused list of all parameters": """
def make(model, lr):
    params = list(model.parameters())
    return optim.SGD(model.parameters(), lr=lr)
""",
    "a group per module": """
def make(model, lr):
    groups = []
    for module in model.modules():
        g = {"params": list(module.parameters(recurse=False)), "lr": lr}
        groups.append(g)
    return optim.SGD(groups, lr=lr)
""",
    "two optimizers": """
def make(gen, disc, lr):
    g = list(gen.parameters())
    d = list(disc.parameters())
    return optim.Adam(g, lr), optim.Adam(d, lr)
""",
    "the rest by identity": """
def make(model, lr):
    head_ids = list(map(id, model.fc.parameters()))
    base = filter(lambda p: id(p) not in head_ids, model.parameters())
    return optim.SGD([{"params": base}, {"params": model.fc.parameters(), "lr": lr}], lr=lr)
""",
    "a dictionary of groups": """
def make(model, lr):
    groups = {"a": {"params": model.a.parameters()}, "b": {"params": model.b.parameters()}}
    return optim.SGD(list(groups.values()), lr=lr)
""",
    "a choice between two groups": """
def make(model, lr):
    a, b = {"params": []}, {"params": []}
    for n, p in model.named_parameters():
        (a if p.ndim > 1 else b)["params"].append(p)
    return optim.SGD([a, b], lr=lr)
""",
    "a group that is added": """
def make(model, lr):
    opt = optim.SGD(model.body.parameters(), lr=lr)
    extra = {"params": model.head.parameters(), "lr": lr}
    opt.add_param_group(extra)
    return opt
""",
    "a list that is returned": """
def make(model, lr, d_params):
    g_params = [p for p in model.g.parameters()]
    d_params = [p for p in model.d.parameters()]
    opt = optim.SGD(g_params, lr=lr)
    return opt, d_params
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_groups_that_no_optimizer_gets(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "OPT001")
