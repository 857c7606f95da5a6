"""OPT019: a parameter is listed several times for the optimizer."""

import pytest

HEAD = """
import torch
from torch import nn, optim
"""
FAULTY = {
    "a generator over parts": """
def get_1x_lr_params(model):
    parts = [model.conv1, model.layer1]
    for i in range(len(parts)):
        for j in parts[i].modules():
            jj = 0
            for k in j.parameters():  # <- OPT019
                jj += 1
                if k.requires_grad:
                    yield k
""",
    "a list": """
def groups(model):
    weights = []
    for name, module in model.named_modules():
        for parameter_name, parameter in module.named_parameters():  # <- OPT019
            if parameter_name.endswith("weight"):
                weights.append(parameter)
    return optim.SGD(weights, lr=0.1)
""",
    "extended": """
def build(self):
    params = []
    for m in self.net.modules():
        params += list(m.parameters())  # <- OPT019
    return optim.Adam(params)
""",
    "a comprehension": """
def build(model):
    return optim.Adam([p for m in model.modules() for p in m.parameters()])  # <- OPT019
""",
    "parameter groups": """
def build(model):
    groups = []
    for m in model.modules():
        groups.append({"params": m.parameters(), "lr": 0.1})  # <- OPT019
    return groups
""",
}
CORRECT = {
    "only convolutions": """
def get_params(model):
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            for p in m.parameters():
                yield p
""",
    "a pair": """
def get_params(model):
    for m in model.named_modules():
        if isinstance(m[1], nn.Conv2d):
            for p in m[1].parameters():
                yield p
""",
    "own parameters": """
def get_params(model):
    for m in model.modules():
        for p in m.parameters(recurse=False):
            yield p
""",
    "children": """
def get_params(model):
    for m in model.children():
        for p in m.parameters():
            yield p
""",
    "frozen and counted": """
def freeze(model):
    total = 0
    for m in model.modules():
        for p in m.parameters():
            p.requires_grad = False
            total += p.numel()
    return total
""",
    "listed once": """
def get_params(model):
    seen, found = set(), []
    for m in model.modules():
        for p in m.parameters():
            if id(p) not in seen:
                seen.add(id(p))
                found.append(p)
    return found
""",
    "leaves": """
def get_params(model):
    return [p for m in model.modules() if not list(m.children()) for p in m.parameters()]
""",
    "norms": """
def norms(model):
    found = []
    for m in model.modules():
        found.append(sum(p.norm() for p in m.parameters()))
    return found
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_loop(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "OPT019")
