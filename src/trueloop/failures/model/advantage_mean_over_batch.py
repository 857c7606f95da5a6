"""A dueling network subtracts the mean advantage of the whole batch instead of each state's.

What you see
    The Q-values of a state change with the other states of the batch, and are others again when the policy acts on a
    single state. The network learns more slowly than one without the two heads, or not at all.

Why it happens
    A dueling network adds a value and the advantages of the actions, minus the mean advantage of that state.
    ``advantage.mean()`` without ``dim`` is one number for all states and actions, and ``mean(0)`` one number per action
    over all states. Both have a shape that fits.

Fix
    Take the mean over the actions, and keep the dimension:

        return value + advantage - advantage.mean(dim=1, keepdim=True)

When this is fine
    - The network gets one state of shape [features], without a batch dimension, in training too.
    - Advantages of PPO are normalised over the batch, outside the network.

How it is detected
    Only the linter finds it, from the source code: a sum of a value, of advantages and of minus their mean or maximum
    over all dimensions or over the first one. The value is that of a layer with one output, or is called so. Or the
    mean is taken of the only output of a layer.

References
    Wang et al., "Dueling Network Architectures for Deep Reinforcement Learning", 2016, arXiv:1511.06581, equation 9
    torch.mean, https://docs.pytorch.org/docs/stable/generated/torch.mean.html
"""

import ast
import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import enclosing_nodes, origins, possible_values
from trueloop.analysis.queries.reductions import reduction
from trueloop.analysis.queries.signed_terms import Term, signed_terms
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, encloses, integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_NAMES: Final = frozenset(("mean", "max", "amax"))
_VALUE: Final = re.compile(r"(^|_)(v|vs|val|vals|values?)(_|$|\d)|^value", re.IGNORECASE)
_ADVANTAGE: Final = re.compile(r"adv|(^|_)(a|as)(_|$|\d)", re.IGNORECASE)
_BATCHES: Final = re.compile(r"gather|batch|DataLoader|randint|randperm|\bstack\(|sample\(|minibatch|\.split\(")
_LAYER: Final = re.compile(r"Linear$|Conv(Transpose)?\dd$")
_MAX_TERMS: Final = 60


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each sum of a value and advantages from which another mean than that over the actions is subtracted."""
    yield from _means_of_one(source)
    if "backward(" in source.text.source and not _BATCHES.search(source.text.source):
        return
    calls = [each for each in source.all_calls if (found := reduction(each, _NAMES)) and found.is_over_batch]
    functions = {id(each): each for each in (function_of(source, call) for call in calls)}
    reported: set[int] = set()
    for function in functions.values():
        for root in _results(function):
            for mean, value in _centred(source, root):
                is_one = encloses(root, mean) and encloses(root, value)  # in one expression
                is_network = is_one or _is_in_network(source, function) or _has_one_output(source, value)
                if id(mean) not in reported and is_network:
                    reported.add(id(mean))
                    yield _hit(source, mean, value)


def _means_of_one(source: SourceFile) -> Iterator[Hit]:
    """Yield each mean that is subtracted from the only output of a layer itself: value and advantages are exchanged."""
    for node in source.nodes_of(ast.BinOp):
        found = reduction(node.right, _NAMES) if isinstance(node.op, ast.Sub) else None
        added = node.left if found is not None and not found.is_over_batch else None
        if found is None or not isinstance(added, ast.BinOp) or not isinstance(added.op, ast.Add):
            continue
        operand, terms = ast.unparse(found.operand), [added.left, added.right]
        others = [each for each in terms if ast.unparse(each) != operand]
        if len(others) == 1 and _widths(source, found.operand) == {1} and 1 not in _widths(source, others[0]):
            yield Hit(
                message=f"`{operand}` is the only output of its layer, so `{operand} - {ast.unparse(node.right)}` is "
                "0. The mean of the advantages is subtracted from them, not that of the value.",
                node=node.right,
            )


def _widths(source: SourceFile, output: ast.expr) -> set[int | None]:
    """Return the number of outputs of the layers, or channels of convolutions, whose result an expression is."""
    found = set[int | None]()
    for call in origins(source, output, 3):
        for layer in origins(source, call.func, 2) if isinstance(call, ast.Call) else ():
            created = [layer, *nodes_in(layer, ast.Call)] if isinstance(layer, ast.Call) else []
            last = max(
                (each for each in created if _LAYER.search(last_name(each.func)) and len(each.args) > 1),
                key=lambda each: (each.lineno, each.col_offset),
                default=None,
            )
            found |= {integer(last.args[1])} if last is not None else set()
    return found


def _is_in_network(source: SourceFile, function: ast.AST) -> bool:
    """Return True for a method of a class with a ``forward``; elsewhere, they may be those of a policy gradient."""
    parent = source.parents.get(id(function))
    methods = [getattr(each, "name", "") for each in parent.body] if isinstance(parent, ast.ClassDef) else []
    return "forward" in methods


def _hit(source: SourceFile, mean: ast.Call, value: ast.expr) -> Hit:
    found = reduction(mean, _NAMES)
    assert found is not None
    name = last_name(mean.func)
    what = "all states of the batch" if found.dim is None else "the states of the batch, dimension 0"
    text = f"{source.text.segment(found.operand)}.{'mean' if name == 'mean' else 'amax'}(dim=1, keepdim=True)"
    return Hit(
        message=f"`{ast.unparse(mean)}` is taken over {what}, so the Q-values of a state depend on the other states. "
        "A dueling network subtracts it for each state, over the actions.",
        node=mean,
        related=((value, "added to this value"),),
        fix=Fix((source.text.replace(mean, text),), safe=False, description="Take it over the actions of each state"),
    )


def _results(function: ast.AST) -> Iterator[ast.expr]:
    """Yield what a function returns, then what it assigns."""
    for each in nodes_in(function, ast.Return):
        yield from each.value.elts if isinstance(each.value, ast.Tuple) else [each.value] if each.value else []
    yield from (each.value for each in nodes_in(function, ast.Assign) if isinstance(each.value, ast.BinOp | ast.Call))


def _centred(source: SourceFile, root: ast.expr) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield each mean over a batch that is subtracted from what it averages, with the value that is added to that."""
    terms = _first_terms(source, root)
    added = {ast.unparse(each.node): each.node for each in terms if each.sign > 0}
    for term in terms:
        found = reduction(term.node, _NAMES)
        if found is None or term.sign > 0 or not found.is_over_batch or not isinstance(term.node, ast.Call):
            continue
        operand = ast.unparse(found.operand)
        averaged = {ast.unparse(each.node) for each in _first_terms(source, found.operand)}
        value = next((each for text, each in added.items() if text not in averaged and _is_value(source, each)), None)
        if value is None or operand not in added or _is_value(source, added[operand]):
            continue
        is_advantage = _ADVANTAGE.search(_name(found.operand)) or _has_one_output(source, value)
        if is_advantage and not _is_standardised(source, term.node):
            yield term.node, value


def _is_standardised(source: SourceFile, mean: ast.expr) -> bool:
    """Return True for the mean in ``(advantages - advantages.mean()) / advantages.std()``."""
    around = [each for each in enclosing_nodes(source, mean) if isinstance(each, ast.BinOp)]
    return any(isinstance(each.op, ast.Div) and encloses(each.left, mean) for each in around)


def _first_terms(source: SourceFile, root: ast.expr) -> list[Term]:
    return list(islice(signed_terms(source, root), _MAX_TERMS))


def _is_value(source: SourceFile, node: ast.expr) -> bool:
    """Return True for the output of a layer with one output, and for what is called a value."""
    name = _name(node)
    return bool(_VALUE.search(name) and "loss" not in name) or _has_one_output(source, node)


def _name(node: ast.expr) -> str:
    return last_name(node.func if isinstance(node, ast.Call) else node)


def _has_one_output(source: SourceFile, node: ast.expr) -> bool:
    """Return True for the result of a call of ``nn.Linear(n, 1)``, or of a sequence of layers that ends in one."""
    for call in origins(source, node, 3):
        for layer in origins(source, call.func, 2) if isinstance(call, ast.Call) else ():
            inner = layer
            while isinstance(inner, ast.Call) and last_name(inner.func) == "Sequential" and inner.args:
                inner = next(iter(possible_values(source, inner.args[-1])), inner.args[-1])
            match inner:
                case ast.Call(args=[_, width, *_]) if last_name(inner.func).endswith("Linear") and integer(width) == 1:
                    return True
                case _:
                    pass
    return False


RULE = Rule(
    required_words=("mean(|max(", "adv|Linear|Conv", " - | -= |-adv|sub", "forward|torch"),
    find=find,
    depends_on_users=True,
)

BAD = """
import torch
from torch import nn


class Dueling(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.ReLU())
        self.value, self.advantage = nn.Linear(32, 1), nn.Linear(32, 3)

    def forward(self, states):
        features = self.body(states)
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean()


torch.manual_seed(0)
states, actions = torch.randn(512, 4), torch.randint(3, (512, 1))
returns = states[:, :1] * (actions - 1)
model = Dueling()
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
for rows in torch.randperm(512).split(32):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(states[rows]).gather(1, actions[rows]), returns[rows])
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="MDL036",
    title="The mean advantage is taken over the batch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"advantage.mean()": "advantage.mean(dim=1, keepdim=True)"}),
    fix="Subtract the mean over the actions: `advantage.mean(dim=1, keepdim=True)`.",
    rule=RULE,
)
