"""``argparse`` gets ``type=bool``, so every text that is given for the flag means True, also "False".

What you see
    ``--freeze False`` freezes the encoder all the same, or an option that is on by default cannot be switched off. The
    two runs that should differ give the same result.

Why it happens
    ``argparse`` calls ``bool("False")``, and a string that is not empty is true. Only ``--freeze ""`` gives False.

Fix
    Use a flag that can be switched off by ``--no-freeze``:

        parser.add_argument("--freeze", action=argparse.BooleanOptionalAction, default=True)

When this is fine
    - The type is a function of your own that reads the text, such as ``str2bool``.
    - Other libraries, such as ``click`` and ``typer``, read "False" as False.

How it is detected
    Only the linter finds it: a call of ``add_argument`` with ``type=bool``.

References
    Python, "argparse", on type, https://docs.python.org/3/library/argparse.html#type
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix
from trueloop.failures.failure import Failure, Rule, Severity, changed


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each argument that is converted by ``bool``."""
    for call in source.all_calls:
        if last_name(call.func) != "add_argument" or not call.args:
            continue
        for each in call.keywords:
            if each.arg == "type" and isinstance(each.value, ast.Name) and each.value.id == "bool":
                yield Hit(
                    message=f"`type=bool` makes {ast.unparse(call.args[-1])} True for every text, also for "
                    '"False": bool("False") is True.',
                    node=call,
                    fix=_flag(source, each) if _is_plain(call) else None,
                )


def _is_plain(call: ast.Call) -> bool:
    return {each.arg for each in call.keywords} <= {"type", "default", "help", "dest", "required"}


def _flag(source: SourceFile, keyword: ast.keyword) -> Fix | None:
    """Return the fix that makes an option with ``--no-`` of it; None if the file does not import argparse by name."""
    names = [alias.name for each in source.nodes_of(ast.Import) for alias in each.names if alias.asname is None]
    if "argparse" not in names:
        return None
    edit = source.text.replace(keyword, "action=argparse.BooleanOptionalAction")
    return Fix((edit,), safe=False, description="Make it a flag")


RULE = Rule(required_words=("add_argument(", "bool"), find=find)

BAD = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--freeze", type=bool, default=True)
args = parser.parse_args([])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
if args.freeze:
    model[0].requires_grad_(False)
optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="ENV007",
    title="A command-line flag is always True",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"type=bool": "action=argparse.BooleanOptionalAction"}),
    fix="Use action=argparse.BooleanOptionalAction instead of type=bool.",
    rule=RULE,
)
