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
    Only the linter finds it: a call of ``add_argument`` with ``type=bool``. It is a note, and a warning if the program
    itself passes a text such as "False" for the flag.

References
    Python, "argparse", on type, https://docs.python.org/3/library/argparse.html#type
"""

import ast
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix
from trueloop.failures.failure import Failure, Rule, Severity, changed

_NO: Final = frozenset(("false", "0", "no", "off", "f", "n"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each argument that is converted by ``bool``."""
    for call in source.all_calls:
        if last_name(call.func) != "add_argument" or not call.args:
            continue
        for each in call.keywords:
            if each.arg == "type" and isinstance(each.value, ast.Name) and each.value.id == "bool":
                passes_false = _passes_false(source, call)
                yield Hit(
                    message=f"`type=bool` makes {ast.unparse(call.args[-1])} True for every text, also for "
                    '"False": bool("False") is True.',
                    node=call,
                    fix=None if passes_false or not _is_plain(call) else _flag(source, each),
                    severity=None if passes_false else Severity.NOTE,
                )


def _passes_false(source: SourceFile, call: ast.Call) -> bool:
    """Return True if a list or text of arguments in the program has a text for "no" after one of the flags."""
    flags = {each.value for each in call.args if isinstance(each, ast.Constant)}
    values = [each.elts for each in source.nodes_of(ast.List, ast.Tuple)]
    texts = [[item.value for item in each if isinstance(item, ast.Constant)] for each in values]
    texts += [each.value.split() for each in source.nodes_of(ast.Constant) if isinstance(each.value, str)]
    pairs = [pair for each in texts for pair in pairwise(each)]
    pairs += [tuple(word.split("=", 1)) for each in texts for word in each if isinstance(word, str) and "=" in word]
    return any(flag in flags and str(value).lower() in _NO for flag, value in pairs)


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
args = parser.parse_args(["--freeze", "False"])
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
    good=changed(BAD, {"type=bool": "action=argparse.BooleanOptionalAction", '"--freeze", "False"': '"--no-freeze"'}),
    fix="Use action=argparse.BooleanOptionalAction instead of type=bool.",
    rule=RULE,
)
