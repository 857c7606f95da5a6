"""A program that resumes its training splits the data at random without a seed, so each start has another split.

What you see
    After a restart the validation score jumps up, and it stays better than the test score.

Why it happens
    ``random_split`` and ``train_test_split`` draw the parts from the global random state, which differs in every run. A
    run that goes on from a checkpoint puts other samples aside than the run before: most of them have been trained on.
    The checkpoint contains the weights, not the split.

Fix
    Fix the split by a seed of its own, or store the indices.

        generator = torch.Generator().manual_seed(0)
        train_set, val_set = random_split(dataset, [0.8, 0.2], generator=generator)

When this is fine
    - A seed is set before the split.
    - The checkpoint contains the indices of the split, or the random state.
    - Only weights of another model are loaded, for fine-tuning.

How it is detected
    Only the linter finds it: a program trains, saves a checkpoint and loads one, under a condition such as
    ``if path.exists()`` or ``if args.resume``, and splits its data at random, but sets no seed anywhere.

References
    torch.utils.data.random_split, https://docs.pytorch.org/docs/stable/data.html
    Reproducibility, https://docs.pytorch.org/docs/stable/notes/randomness.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.possible_values import enclosing_nodes, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_FIXED_BY: Final = {"random_split": "generator", "train_test_split": "random_state"}
"""Function that splits -> the argument that fixes the split."""
_RESUMES: Final = re.compile(r"exists|isfile|is_file|resum|restart|continue|restore", re.IGNORECASE)
_SEEDED: Final = re.compile(r"seed|set_rng_state|indices|shuffle=False", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each random split without a seed in a program that resumes."""
    if _SEEDED.search(source.text.source) or not source.ops(OpKind.STEP) or not source.ops(OpKind.SAVE):
        return
    load = next((each for each in source.all_calls if _resumes(source, each)), None)
    for call in source.all_calls if load is not None else ():
        option = _FIXED_BY.get(last_name(call.func))
        if option is not None and not any(each.arg in (option, None) for each in call.keywords):
            yield Hit(
                message=f"`{ast.unparse(call.func)}` draws another split in each run, also in one that goes on from a "
                "checkpoint: it is then evaluated on samples that it was trained on.",
                node=call,
                related=((load, "training goes on here"),),
                fix=_fix(source, call, option),
            )


def _resumes(source: SourceFile, call: ast.Call) -> bool:
    """Return True for ``load_state_dict`` with the content of a file, under a condition."""
    if last_name(call.func) != "load_state_dict" or not call.args:
        return False
    value = call.args[0]
    content = value.value if isinstance(value, ast.Subscript) else value
    loads = [part for each in origins(source, content, 3) for part in nodes_in(each, ast.Call)]
    tests = [ast.unparse(each.test) for each in enclosing_nodes(source, call) if isinstance(each, ast.If)]
    return any(ast.unparse(each.func) == "torch.load" for each in loads) and any(map(_RESUMES.search, tests))


def _fix(source: SourceFile, call: ast.Call, option: str) -> Fix:
    """Return the fix that gives the split a seed."""
    value = "0" if option == "random_state" else "torch.Generator().manual_seed(0)"
    end = source.text.span(call.keywords[-1].value if call.keywords else call.args[-1])[1]
    return Fix((Edit(end, end, f", {option}={value}"),), safe=False, description="Give the split a seed")


RULE: Final = Rule(
    required_words=(
        "random_split|train_test_split",
        "torch.load(",
        "torch.save(",
        "exists|isfile|is_file|resum|restore",
    ),
    find=find,
)

BAD = """
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

x = torch.randn(200, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
train_set, val_set = random_split(data, [160, 40])
loader = DataLoader(train_set, batch_size=32, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
start, path = 0, Path("last.pt")
if path.exists():
    checkpoint = torch.load(path, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    start = checkpoint["epoch"]
for epoch in range(start, 4):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
    torch.save(state, path)
    with torch.no_grad():
        print(epoch, sum(nn.functional.mse_loss(model(a), b).item() for a, b in DataLoader(val_set, batch_size=40)))
"""

FAILURE = Failure(
    code="DAT050",
    title="A resumed run has another random split",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"[160, 40])": "[160, 40], generator=torch.Generator().manual_seed(0))"}),
    fix="Give the split a seed of its own, or store its indices in the checkpoint.",
    rule=RULE,
)
