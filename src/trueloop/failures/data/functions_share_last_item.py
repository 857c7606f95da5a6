"""Functions that a loop makes read its variables when they are called: all of them use the last item.

What you see
    Of several tasks only the last one is trained, or all hooks write under the name of the last layer.

Why it happens
    A function looks up the variables of the loop when it is called. After the loop they have their last values.

Fix
    Bind the value when the function is made, by a default argument or ``functools.partial``:

        losses[task] = lambda out, target: weight * criterion[task](out, target)  # wrong
        losses[task] = lambda out, target, task=task, weight=weight: weight * criterion[task](out, target)  # right

When this is fine
    - The function is called, replaced or removed within the same iteration, such as a key for ``sorted``.
    - Another function makes it, and gets the item as an argument.
    - It only reads variables that are the same in all iterations.

How it is detected
    Only the linter finds it, from the source code: a lambda or inner function reads a variable of the loop around it,
    and is put into a list or dictionary from before the loop, into one by a comprehension, or registered as a hook.

References
    Python FAQ, "Why do lambdas defined in a loop with different values all return the same result?",
    https://docs.python.org/3/faq/programming.html#why-do-lambdas-defined-in-a-loop-with-different-values-all-return-the-same-result
    torch.nn.Module.register_forward_hook, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.loop_variables import stored_names
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_KEEPING: Final = frozenset(("append", "add", "insert", "setdefault"))
_HOOK: Final = re.compile(r"^register\w*hook$|^add_done_callback$")
_COLLECTIONS: Final = ast.ListComp | ast.DictComp | ast.SetComp
_WITHIN: Final = frozenset(("backward", "step", "remove"))
"""Methods whose call in a loop shows that the functions are used, or removed, in the same iteration."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each function made in a loop that reads a variable of the loop and is kept after the iteration."""
    for made in source.nodes_of(ast.Lambda, ast.FunctionDef):
        loop = next((each for each in enclosing_nodes(source, made) if isinstance(each, ast.For | _COLLECTIONS)), None)
        if loop is None or (isinstance(loop, ast.For) and isinstance(loop.body[-1], ast.Break | ast.Return)):
            continue
        kept = _kept_in(source, made, loop)
        items = {name for each in getattr(loop, "generators", [loop]) for name in stored_names(each.target)}
        late = sorted(_read_late(made) & items) if kept is not None else []
        if late and kept is not None:
            names = " and ".join(f"`{each}`" for each in late)
            bound = ", ".join(f"{each}={each}" for each in late)
            what = "hooks" if _HOOK.match(last_name(getattr(kept, "func", kept))) else "functions"
            yield Hit(
                message=f"All {what} that this loop makes read {names} when they are called, after the loop: each uses "
                f"the last value. The default argument `{bound}` keeps the value of its own iteration.",
                node=made if isinstance(made, ast.Lambda) else kept,
                related=((loop, "the loop"),) if isinstance(loop, ast.For) else (),
            )


def _kept_in(source: SourceFile, made: Any, loop: Any) -> ast.expr | None:
    """Return what keeps a function after an iteration, a collection from before the loop or a hook; None if nothing."""
    if not isinstance(loop, ast.For):
        is_item = made in (getattr(loop, "elt", None), getattr(loop, "value", None))
        return loop if is_item else None
    called = {last_name(each.func) for each in nodes_in(loop, ast.Call) if not encloses(made, each)}
    if called & _WITHIN:
        return None
    uses = [made] if isinstance(made, ast.Lambda) else [e for e in nodes_in(loop, ast.Name) if e.id == made.name]
    fresh = {dotted_name(target) for each in nodes_in(loop, ast.Assign) for target in each.targets} | {""}
    for use in uses:
        parent = source.parents.get(id(use))
        match parent:
            case ast.Assign(targets=[ast.Subscript(value=owner, slice=key)], value=value) if value is use:
                if not nodes_in(key, ast.Name):
                    continue  # the next iteration replaces it
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if use in parent.args:
                if _HOOK.match(name):
                    return parent
                if name not in _KEEPING:
                    continue
            case _:
                continue
        if dotted_name(owner) not in fresh:
            return owner
    return None


def _read_late(made: Any) -> set[str]:
    """Return the variables that a function reads when it is called, without its own."""
    arguments = made.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    own = {each.arg for each in parameters if each is not None}
    body = made.body if isinstance(made.body, list) else [made.body]
    names = [each for part in body for each in walk(part) if isinstance(each, ast.Name)]
    own |= {each.id for each in names if isinstance(each.ctx, ast.Store)}
    own |= {each.arg for part in body for inner in nodes_in(part, ast.Lambda) for each in inner.args.args}
    return {each.id for each in names} - own


_MAKING: Final = re.compile(r"\blambda\b|^ {8,}def |^(?:async )?for [^\n]*:\n(?: +\S[^\n]*\n|\n)*? +def ", re.MULTILINE)
"""A lambda, or a function within a function, a method or a loop."""
RULE: Final = Rule(required_words=("torch", "for ", _MAKING, "hook(|append(|] = |lambda"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 6)
targets = {"sum": x.sum(1), "first": x[:, 0]}
body, heads = nn.Linear(6, 16), nn.ModuleDict({name: nn.Linear(16, 1) for name in targets})
model = nn.ModuleList([body, heads])
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = {}
for name in targets:
    losses[name] = lambda h, rows: nn.functional.mse_loss(heads[name](h).squeeze(1), targets[name][rows])
for epoch in range(3):
    for rows in torch.randperm(256).split(32):
        hidden = torch.relu(body(x[rows]))
        loss = sum(each(hidden, rows) for each in losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="DAT061",
    title="Functions made in a loop all use its last item",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"lambda h, rows:": "lambda h, rows, name=name:"}),
    fix="Bind the item by a default argument, as in lambda x, task=task: ..., or by functools.partial.",
    rule=RULE,
)
