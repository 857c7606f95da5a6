"""Mixed precision uses the deprecated names in ``torch.cuda.amp``.

What you see
    PyTorch prints a FutureWarning at each start, and mixed precision works with CUDA only.

Why it happens
    ``torch.cuda.amp.autocast`` and ``torch.cuda.amp.GradScaler`` are old names of ``torch.amp.autocast`` and
    ``torch.amp.GradScaler`` with the device "cuda". They still work, but are deprecated since PyTorch 2.4.

Fix
    Use ``torch.amp`` and name the device.

        with torch.amp.autocast("cuda"):
            loss = loss_fn(model(inputs), targets)
        scaler = torch.amp.GradScaler("cuda")

When this is fine
    - The code must run with PyTorch older than 2.3, which has no ``torch.amp.GradScaler``.

How it is detected
    Only the linter finds it, from the source code, and only if you select this rule. This is a note, because the
    results are the same.

References
    torch.amp, https://docs.pytorch.org/docs/stable/amp.html
    Automatic Mixed Precision examples, https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.failure import Failure, Rule, Severity, changed

DEPRECATED = {f"torch.cuda.amp.{name}": name for name in ("autocast", "GradScaler")}


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield calls of the deprecated names."""
    for call in source.calls_of(*DEPRECATED):
        name = DEPRECATED[source.qualified_name(call.func)]
        fix = _use_torch_amp(source, call, name)
        yield Hit(message=f"`torch.cuda.amp.{name}` is deprecated since PyTorch 2.4.", node=call, fix=fix)


def _use_torch_amp(source: SourceFile, call: ast.Call, name: str) -> Fix | None:
    """Return the fix that uses torch.amp with the device; for an imported name, in all of its calls."""
    description = 'Use torch.amp with "cuda"'
    if isinstance(call.func, ast.Attribute):
        device = _insert_device(source, call, name)
        is_plain = source.text.segment(call.func) == f"torch.cuda.amp.{name}"
        return (
            Fix((source.text.replace(call.func, f"torch.amp.{name}"), device), False, description)
            if device and is_plain
            else None
        )
    imports = [each for each in source.nodes_of(ast.ImportFrom) if each.module == "torch.cuda.amp"]
    names = {alias.asname or alias.name: alias.name for each in imports for alias in each.names}
    uses = [each for each in source.nodes_of(ast.Name) if each.id in names]
    calls = [each for each in source.all_calls if isinstance(each.func, ast.Name) and each.func.id in names]
    if len(imports) != 1 or len(uses) != len(calls) or not set(names.values()) <= set(DEPRECATED.values()):
        return None
    devices = [_insert_device(source, each, names[getattr(each.func, "id", "")]) for each in calls]
    start = source.text.offset(imports[0].lineno, imports[0].col_offset)
    import_text = source.text.segment(imports[0])
    position = start + len(import_text[: import_text.index("torch.cuda.amp")].encode())
    edits = (Edit(position, position + len("torch.cuda.amp"), "torch.amp"), *(each for each in devices if each))
    return Fix(edits, False, description) if all(devices) and import_text.startswith("from torch.cuda.amp ") else None


def _insert_device(source: SourceFile, call: ast.Call, name: str) -> Edit | None:
    """Return the edit that inserts "cuda" as the first argument; autocast's own first argument was ``enabled``."""
    end = source.text.span(call.func)[1]
    opening = source.text.content.index(b"(", end) + 1
    if not call.args:
        return Edit(opening, opening, '"cuda", ' if call.keywords else '"cuda"')
    start, has_more = source.text.span(call.args[0])[0], len(call.args) > 1 or isinstance(call.args[0], ast.Starred)
    if name == "autocast":
        return None if has_more else Edit(start, start, '"cuda", enabled=')
    return Edit(start, start, '"cuda", ')


RULE = Rule(required_words=("cuda", "amp"), find=find, opt_in=True)

BAD = """
import warnings
import torch
from torch import nn

warnings.filterwarnings("ignore")
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.cuda.amp.GradScaler(enabled=device == "cuda")
for step in range(10):
    x = torch.randn(32, 8, device=device)
    optimizer.zero_grad()
    with torch.cuda.amp.autocast(enabled=device == "cuda"):
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

FAILURE = Failure(
    code="PRC003",
    title="Deprecated torch.cuda.amp is used",
    severity=Severity.NOTE,
    bad=BAD,
    good=changed(
        BAD,
        {
            "import warnings\n": "",
            'warnings.filterwarnings("ignore")\n': "",
            'scaler = torch.cuda.amp.GradScaler(enabled=device == "cuda")': (
                'scaler = torch.amp.GradScaler(device, enabled=device == "cuda")'
            ),
            'with torch.cuda.amp.autocast(enabled=device == "cuda"):': (
                'with torch.amp.autocast(device, enabled=device == "cuda"):'
            ),
        },
    ),
    fix='Use torch.amp.autocast("cuda") and torch.amp.GradScaler("cuda").',
    rule=RULE,
)
