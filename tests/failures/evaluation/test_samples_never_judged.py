"""EVL008: evaluation samples dropped by drop_last, and correct programs that look like it."""

from __future__ import annotations

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset
x = torch.randn(90, 4)
y = x.sum(1, keepdim=True)
train_set, held_out_set = TensorDataset(x[:62], y[:62]), TensorDataset(x[62:], y[62:])
train = DataLoader(train_set, batch_size=8, shuffle=True, drop_last=True)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
EPOCH = """
def train_epoch():
    model.train()
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
"""
MEASURED = """
for epoch in range(2):
    train_epoch()
    model.eval()
    with torch.no_grad():
        errors = torch.cat([model(a) - b for a, b in held_out])
"""

CORRECT = {
    "nothing dropped": "held_out = DataLoader(held_out_set, batch_size=8)\n" + MEASURED,
    "a multiple of the batch size": "held_out = DataLoader(held_out_set, batch_size=7, drop_last=True)\n" + MEASURED,
    "a user-defined batch sampler": "held_out = DataLoader(held_out_set, batch_sampler=[[0, 1], [2, 3]])\n" + MEASURED,
    "a stream": """
class Stream(IterableDataset):
    def __iter__(self):
        return iter([(x[i], y[i]) for i in range(62, 90)])
held_out = DataLoader(Stream(), batch_size=8, drop_last=True)
"""
    + MEASURED,
    "unlabelled samples are trained on": """
unlabelled = DataLoader(held_out_set, batch_size=8, drop_last=True)
for epoch in range(2):
    train_epoch()
    for a, _ in unlabelled:
        optimizer.zero_grad()
        (model(a) - model(a.flip(0)).flip(0)).square().mean().backward()
        optimizer.step()
""",
    "only a few batches for the progress bar": """
held_out = DataLoader(held_out_set, batch_size=8, drop_last=True)
for epoch in range(2):
    train_epoch()
    model.eval()
    with torch.no_grad():
        for a, b in held_out:
            print(nn.functional.mse_loss(model(a), b).item())
            break
""",
}

BROKEN = {
    "a function": """
held_out = DataLoader(held_out_set, batch_size=8, drop_last=True)  # <- EVL008
@torch.no_grad()
def measure(loader):
    model.eval()
    return sum(nn.functional.mse_loss(model(a), b, reduction="sum").item() for a, b in loader)
for epoch in range(2):
    train_epoch()
    measure(held_out)
""",
    "a class, one set of options for both loaders": """
class Data:
    def __init__(self, **options):
        self.options = options
    def held_out(self):
        return DataLoader(held_out_set, shuffle=False, **self.options)  # <- EVL008
held_out = Data(batch_size=8, drop_last=True).held_out()
"""
    + MEASURED,
    "shuffled, in bfloat16, accumulated": """
held_out = DataLoader(Subset(held_out_set, range(20)), batch_size=8, shuffle=True, drop_last=True)  # <- EVL008
for epoch in range(2):
    model.train()
    for number, (a, b) in enumerate(train):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(a)
        (nn.functional.mse_loss(out.float(), b) / 2).backward()
        if number % 2 or number + 1 == len(train):
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        errors = torch.cat([model(a) - b for a, b in held_out])
""",
    "two optimizers, at the end only": """
first, last = (torch.optim.SGD(part.parameters(), lr=0.01) for part in (model[:2], model[2:]))
for epoch in range(2):
    model.train()
    for a, b in train:
        nn.functional.mse_loss(model(a), b).backward()
        for each in (first, last):
            each.step()
            each.zero_grad()
model.eval()
test = DataLoader(held_out_set, 8, drop_last=True)  # <- EVL008
with torch.no_grad():
    print(sum(nn.functional.mse_loss(model(a), b).item() for a, b in test) / len(test))
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(run_is_clean, script):
    run_is_clean(HEAD + EPOCH + script)


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_run_reports_the_loader(run_reports, script):
    found = run_reports(HEAD + EPOCH + script).findings[0]
    assert "`drop_last=True` leaves out" in found.message
    assert ("16 of 20" if "Subset(held" in script else "24 of 28") in found.message


@pytest.mark.parametrize("name", ["a function", "shuffled, in bfloat16, accumulated"])
def test_lint_reports_a_note_with_a_fix(lint_reports, name):
    lint_reports(HEAD + EPOCH + BROKEN[name], fixes=True)


@pytest.mark.parametrize(("samples", "batch", "adjusted"), [(88, 8, 8), (80, 8, 6), (40, 64, 7), (100, 20, 19)])
def test_injection_adjusts_settings_so_that_samples_are_dropped(samples, batch, adjusted):
    from trueloop.failures.load import catalogue
    from trueloop.lab.teaching.inject import write_script
    from trueloop.lab.teaching.simulation import Simulation

    inject = catalogue()["EVL008"].failure.inject
    assert write_script(Simulation(samples=samples, batch=batch), [inject]).simulation.batch == adjusted
    assert -(-samples // 5) % adjusted


@pytest.mark.parametrize(
    "name", ["nothing dropped", "unlabelled samples are trained on", "a user-defined batch sampler"]
)
def test_lint_ignores_correct_programs(lint_is_clean, name):
    lint_is_clean(HEAD + EPOCH + CORRECT[name], "EVL008")


MAKE = """
from torch.utils.data import DataLoader
def make_loader(data, batch_size{parameter}):
    return DataLoader(data, batch_size, shuffle=True, drop_last={value})
train_loader = make_loader(train_set, 32)
val_loader = make_loader(val_set, 32{given})
"""


@pytest.mark.parametrize(("parameter", "value", "given", "expected"), [
    ("", "True", "", ["EVL008"]),
    (", drop_last=True", "drop_last", "", ["EVL008"]),
    (", drop=True", "drop", ", drop=True", ["EVL008"]),
    (", drop_last=True", "drop_last", ", drop_last=False", []),
    ("", "False", "", []),
    (", training=True", "training", ", training=False", []),
    ("", "True", "one at a time", []),
    (", training=True", "training and batch_size > 1", "", []),
])  # fmt: skip
def test_lint_warns_of_held_out_loaders_made_as_those_of_training(lint_codes, parameter, value, given, expected):
    script = MAKE.format(parameter=parameter, value=value, given=given)
    assert lint_codes(script.replace("32one at a time", "1")) == expected


CHOSEN = """
from torch.utils.data import DataLoader
def data_provider(args, flag):
    if flag == {first}:
        {options}
    else:
        {others}
    data = Windows(args, flag)
    return data, DataLoader(data, batch_size=bs, shuffle=shuffle, drop_last=drop_last)
"""
PLAIN = "shuffle, drop_last, bs = False, False, args.batch_size"
DROPS = "shuffle, drop_last, bs = False, True, args.batch_size"


@pytest.mark.parametrize(("first", "options", "others", "expected"), [
    ("'test'", DROPS, DROPS, ["EVL008"]),
    ("'test'", "shuffle = False; drop_last = True; bs = args.batch_size", PLAIN, ["EVL008"]),
    ("'train'", DROPS, DROPS, ["EVL008"]),
    ("'test'", PLAIN, DROPS, []),
    ("'train'", DROPS, PLAIN, []),
    ("'test'", "shuffle, drop_last, bs = False, True, 1", DROPS, []),
    ("'pretrain'", DROPS, DROPS, []),
])  # fmt: skip
def test_lint_warns_of_options_chosen_for_the_held_out_part(lint_codes, first, options, others, expected):
    assert lint_codes(CHOSEN.format(first=first, options=options, others=others)) == expected


def test_lint_warns_of_the_last_arm_after_those_of_training_and_validation(lint_codes):
    script = CHOSEN.format(first="'train'", options=DROPS, others=DROPS)
    assert lint_codes(script.replace("    else:", f"    elif flag == 'val':\n        {PLAIN}\n    else:")) == ["EVL008"]
