"""A schedule is computed from a counter of steps that stays 0, because no statement advances it.

What you see
    A rate of exploration stays at its first value, the weight of a KL term stays 0, a target network is copied in every
    step or a warm-up never ends. The schedule looks right wherever it is read.

Why it happens
    ``step = 0`` stands before the loop, and ``step += 1`` was forgotten, was lost in an edit, or stands in a function:
    a function that gets an integer counts its own copy, and the caller's variable keeps its value.

Fix
    Advance the counter in the loop, or return it from the function that counts:

        beta = min(1.0, step / 1000)
        loss = reconstruction + beta * divergence
        ...
        step += 1

When this is fine
    - The counter is only printed or logged.
    - It is an offset that is 0 on purpose: ``start_step = 0``, ``warmup_steps = 0``.

How it is detected
    Only the linter finds it: a variable, attribute or item of a dictionary that is called like a counter of steps, gets
    0 and nothing else in the whole program, and is read in an arithmetic expression or condition of a loop that
    trains, or passed to a function of the program that does so. Names of settings, conditions of ``while``, and what
    is only printed or logged are left out.

References
    Python, "Calls", https://docs.python.org/3/reference/expressions.html#calls
    Bowman et al., "Generating Sentences from a Continuous Space", 2015, https://arxiv.org/abs/1511.06349
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.queries.class_instances import called_function, definitions
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_COUNTER: Final = re.compile(
    r"_?((global|total|cur(rent)?|train(ing)?|learn|env|update|opt(imizer)?|i|n|num)_?)?(steps?|iter(ation)?s?|updates?)"
    r"(_?(count(er)?|num(ber)?|done|idx|index|taken|so_far|seen|no))?|n_?calls|counter|(frame|tick)_?(count|idx)"
)
_SHOWN: Final = re.compile(
    r"print|log|write|info|debug|format|add_(scalar|image|text|histogram)|set_(postfix|description)|save|append|str|dict",
    re.IGNORECASE,
)
_TRAINS: Final = re.compile(r"^(backward|step|update|fit)$|train|learn|optimi")
_ACTS: Final = frozenset((
    "backward", "step", "zero_grad", "load_state_dict", "copy_", "learn", "optimize", "update", "sync",
    "hard_update", "soft_update", "update_target", "optimize_model", "train_step",
))  # fmt: skip
_ARITHMETIC: Final = (ast.Div, ast.Mult, ast.Mod, ast.FloorDiv, ast.Pow)


class _Counter(NamedTuple):
    """What gets 0 and is called like a counter."""

    target: Any
    """The variable or attribute, or the key of a dictionary."""
    name: str


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each counter of steps that is read in a loop and never advanced."""
    for counter in _counters(source):
        reads = _reads(source, counter)
        hit = next((h for each in reads or () if (h := _judge(source, counter, each)) is not None), None)
        if hit is not None:
            yield hit


def _counters(source: SourceFile) -> Iterator[_Counter]:
    for statement in source.nodes_of(ast.Assign):
        for target, value in assigned_pairs(statement):
            if isinstance(target, ast.Name | ast.Attribute) and _is_zero(value):
                name = last_name(target)
                own = isinstance(target, ast.Name) or last_name(target.value) == "self"
                if own and _COUNTER.fullmatch(name):
                    yield _Counter(target, name)
            for key, item in zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ():
                text = getattr(key, "value", None)
                is_counter = isinstance(text, str) and _COUNTER.fullmatch(text) is not None
                if isinstance(target, ast.Name) and is_counter and _is_zero(item):
                    yield _Counter(key, str(text))


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0 and type(node.value) in (int, float)


def _targets_of_zero(source: SourceFile) -> set[int]:
    """Return the ids of the nodes to which the program assigns 0."""
    pairs = (pair for each in source.nodes_of(ast.Assign) for pair in assigned_pairs(each))
    return {id(target) for target, value in pairs if _is_zero(value)}


def _reads(source: SourceFile, counter: _Counter) -> list[ast.expr] | None:
    """Return the expressions that read a counter; None if it may get another value."""
    if isinstance(counter.target, ast.Name):
        return _reads_of_variable(source, counter)
    if isinstance(counter.target, ast.Attribute):
        return _reads_of_attribute(source, counter)
    items = [each for each in source.nodes_of(ast.Subscript) if getattr(each.slice, "value", None) == counter.name]
    is_open = any(last_name(each.func) in ("update", "setdefault") or _is_exported(each) for each in source.all_calls)
    zeros = _targets_of_zero(source)
    set_again = [each for each in items if isinstance(each.ctx, ast.Store) and id(each) not in zeros]
    return None if set_again or is_open else [each for each in items if isinstance(each.ctx, ast.Load)]


def _reads_of_variable(source: SourceFile, counter: _Counter) -> list[ast.expr] | None:
    scope = function_of(source, counter.target)
    shared = {name for each in nodes_in(scope, ast.Global, ast.Nonlocal) for name in each.names}
    others = [each for each in nodes_in(scope, ast.Name) if each.id == counter.name and each is not counter.target]
    bound = [arg for function in source.nodes_of(ast.FunctionDef) for arg in nodes_in(function.args, ast.arg)]
    functions = {id(function_of(source, each)) for each in bound if each.arg == counter.name}
    functions |= {id(function_of(source, each)) for each in others if isinstance(each.ctx, ast.Store)} - {id(scope)}
    others = [each for each in others if id(function_of(source, each)) not in functions]
    zeros = _targets_of_zero(source)
    stored = [each for each in others if not isinstance(each.ctx, ast.Load) and id(each) not in zeros]
    if stored or counter.name in shared or any(map(_is_exported, source.all_calls)):
        return None
    return [each for each in others if isinstance(each.ctx, ast.Load)]


def _reads_of_attribute(source: SourceFile, counter: _Counter) -> list[ast.expr] | None:
    uses = definitions(source).attributes.get(counter.name, [])
    owner = enclosing_definition(source, counter.target, ast.ClassDef)
    own = definitions(source).classes
    if owner is source.tree or any(
        last_name(e) not in own and last_name(e) not in ("Module", "object") for e in owner.bases
    ):
        return None
    if any(map(_is_exported, source.all_calls)) or any(base for base in own.values() if _derives(base, owner.name)):
        return None
    zeros = _targets_of_zero(source)
    if any(not isinstance(each.ctx, ast.Load) and id(each) not in zeros for each in uses):
        return None
    if source.is_in_other_file(f".{counter.name} +=") or source.is_in_other_file(f".{counter.name} ="):
        return None
    return [each for each in uses if isinstance(each.ctx, ast.Load)]


def _derives(definition: ast.ClassDef, name: str) -> bool:
    return any(last_name(each) == name for each in definition.bases)


def _is_exported(call: ast.Call) -> bool:
    """Return True for a call that may set variables or attributes by their names."""
    return last_name(call.func) in ("exec", "globals", "locals", "setattr", "vars") or (
        last_name(call.func) == "update" and "__dict__" in ast.unparse(call.func)
    )


def _judge(source: SourceFile, counter: _Counter, read: ast.expr) -> Hit | None:
    """Return a hit if something is computed or decided from a read of a counter."""
    parent: Any = source.parents.get(id(read))
    call = source.parents.get(id(parent)) if isinstance(parent, ast.keyword) else parent
    if isinstance(call, ast.Call) and call.func is not read:
        return _judge_passed(source, counter, call, read)
    used = _use_of(source, read) if _is_repeated(source, counter, read) else None
    if used is None:
        return None
    return Hit(
        message=f"`{counter.name}` is 0 whenever `{source.text.segment(used)}` is computed: nothing in the program "
        "advances it.",
        node=read,
        related=((counter.target, "the only value that it gets"),),
    )


def _is_repeated(source: SourceFile, counter: _Counter, read: ast.expr) -> bool:
    """Return True for code of a loop that trains, or of a function other than the one that sets the counter."""
    if _is_in_training_loop(source, read):
        return True
    function = function_of(source, read)
    is_other = function is not function_of(source, counter.target) and not isinstance(function, ast.Module)
    return is_other and getattr(function, "name", "") not in ("__init__", "__repr__", "__str__", "__len__", "reset")


def _is_in_training_loop(source: SourceFile, node: ast.AST) -> bool:
    loops = [each for each in enclosing_nodes(source, node) if isinstance(each, ast.For | ast.While)]
    return any(_TRAINS.search(last_name(call.func)) for each in loops for call in nodes_in(each, ast.Call))


def _use_of(source: SourceFile, read: ast.expr) -> ast.expr | None:
    """Return the arithmetic expression or comparison that uses a counter for more than output; None if none does."""
    used: Any = None
    node: Any = read
    while not isinstance(node, ast.stmt):
        parent: Any = source.parents.get(id(node))
        if isinstance(parent, ast.FormattedValue | ast.JoinedStr | ast.Dict):
            return None
        if isinstance(parent, ast.Call) and parent.func is not node and _SHOWN.search(last_name(parent.func)):
            return None
        if used is None and isinstance(parent, ast.BinOp) and isinstance(parent.op, _ARITHMETIC):
            used = parent
        if used is None and isinstance(parent, ast.Compare):
            used = parent
        node = parent
    if used is None or isinstance(node, ast.While | ast.Assert | ast.Raise):
        return None
    if isinstance(node, ast.If):
        names = {last_name(each.func) for part in node.body for each in nodes_in(part, ast.Call)}
        return used if names & _ACTS else None
    return used


def _judge_passed(source: SourceFile, counter: _Counter, call: ast.Call, read: ast.expr) -> Hit | None:
    """Return a hit if a function of the program computes something from a counter that it gets as an argument."""
    function = called_function(source, call)
    name = _parameter(source, call, function, read) if function is not None else ""
    if function is None or not name:
        return None
    own = [each for each in nodes_in(function, ast.Name) if each.id == name]
    counts = [each for each in nodes_in(function, ast.AugAssign) if getattr(each.target, "id", "") == name]
    is_repeated = _is_repeated(source, counter, call)
    if any(isinstance(each.ctx, ast.Store) for each in own) and not (counts and is_repeated):
        return None
    reads = [e for e in own if isinstance(e.ctx, ast.Load) and (is_repeated or _is_in_training_loop(source, e))]
    used = next((found for each in reads if (found := _use_of(source, each)) is not None), None)
    if used is None:
        return None
    what = f"`{function.name}` counts its own copy" if counts else "nothing in the program advances it"
    return Hit(
        message=f"`{counter.name}` is 0 in every call of `{function.name}`, which computes "
        f"`{source.text.segment(used)}` from it: {what}.",
        node=call,
        related=((counts[0] if counts else used, "counted here" if counts else "used here"),),
    )


def _parameter(source: SourceFile, call: ast.Call, function: ast.FunctionDef, read: ast.expr) -> str:
    """Return the parameter that gets an argument; "" if it is not plain."""
    for keyword in call.keywords:
        if keyword.value is read:
            return keyword.arg or ""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    is_method = isinstance(source.parents.get(id(function)), ast.ClassDef)
    names = names[1:] if is_method and names[:1] in (["self"], ["cls"]) else names
    if any(isinstance(each, ast.Starred) for each in call.args):
        return ""
    return next((name for name, each in zip(names, call.args, strict=False) if each is read), "")


RULE: Final = Rule(required_words=("= 0|: 0", re.compile(r"step|iter|update|count|calls"), "backward|step("), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(8, 8), nn.Linear(4, 8)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.01)
step = 0
for epoch in range(5):
    for x in torch.randn(10, 32, 8):
        mean, logvar = encoder(x).chunk(2, dim=1)
        code = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)
        divergence = 0.5 * (mean**2 + logvar.exp() - 1 - logvar).sum(1).mean()
        beta = min(1.0, step / 20)
        loss = ((decoder(code) - x) ** 2).sum(1).mean() + beta * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="SCH018",
    title="A counter of steps is never advanced",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"        optimizer.step()\n": "        optimizer.step()\n        step += 1\n"}),
    fix="Advance the counter in the loop that trains.",
    rule=RULE,
)
