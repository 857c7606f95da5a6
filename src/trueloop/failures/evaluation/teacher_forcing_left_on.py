"""The decoder gets the correct previous tokens in the evaluation, too.

What you see
    The validation loss and the accuracy of a sequence-to-sequence model are good, and the sequences that it generates
    on its own are bad. The validation metric also changes from one evaluation to the next.

Why it happens
    With teacher forcing the decoder reads the correct token of the previous step instead of its own answer. ``forward``
    of the model has a parameter for it, such as ``teacher_forcing_ratio=0.5``, and a call that leaves the parameter out
    gets the value for training. Eval mode does not change it.

Fix
    Turn it off where the model is evaluated:

        output = model(source, target, teacher_forcing_ratio=0.0)

When this is fine
    - ``forward`` uses the ratio only in train mode: ``if self.training and random() < teacher_forcing_ratio``.
    - The default is 0, or it is 1: the loss of the next token given the correct ones is meant.
    - The model gets no target sequence in the evaluation.

How it is detected
    Only the linter finds it, from the source code: ``forward`` has a parameter with ``teacher_forcing`` or a similar
    word in its name, and a default between 0 and 1. A call of the model under ``no_grad``, or in a function that calls
    ``eval()`` and no ``backward()``, passes as many sequences as the parameters before it, and not this parameter. It
    may also pass such a number for it.

References
    Bengio et al., "Scheduled sampling for sequence prediction with recurrent neural networks", 2015,
    https://arxiv.org/abs/1506.03099
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.queries.class_instances import instances, uses
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_RATIO: Final = re.compile(
    r"teacher_?forc|teacher_?ratio|forcing_?(ratio|prob|rate)|^tf_?(ratio|prob|rate)$", re.IGNORECASE
)
_NO_GRAD: Final = frozenset(("inference_mode", "no_grad"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each call of a model in an evaluation that leaves teacher forcing on."""
    for owner in source.nodes_of(ast.ClassDef):
        forward = next((e for e in owner.body if isinstance(e, ast.FunctionDef) and e.name == "forward"), None)
        found = None if forward is None or _is_off_in_eval_mode(forward) else _ratio(forward)
        if forward is not None and found is not None:
            position, default = found
            name = forward.args.args[position].arg
            for call in _calls(source, owner.name):
                passed = argument_node(call, name, position - 1)
                share = _share(source, call, position - 1, passed, default)
                if share and _is_evaluation(source, call):
                    yield _hit(source, call, forward, passed, share, name)


def _ratio(forward: ast.FunctionDef) -> tuple[int, float] | None:
    """Return position and default of the parameter for teacher forcing; None if there is none, or it has no default."""
    parameters, defaults = forward.args.args, forward.args.defaults
    for position, default in zip(range(len(parameters))[len(parameters) - len(defaults) :], defaults, strict=True):
        if _RATIO.search(parameters[position].arg) and isinstance(default, ast.Constant):
            return position, default.value if isinstance(default.value, float) else 0.0
    return None


def _is_off_in_eval_mode(forward: ast.FunctionDef) -> bool:
    return any(each.attr in ("training", "is_grad_enabled") for each in nodes_in(forward, ast.Attribute))


def _calls(source: SourceFile, owner: str) -> Iterator[ast.Call]:
    """Yield the calls of the instances of a class."""
    seen: set[int] = set()
    for instance in instances(source):
        if last_name(instance.call.func) == owner:
            for each in uses(source, instance.target) or ():
                call = source.parents.get(id(each))
                if isinstance(call, ast.Call) and call.func is each and id(call) not in seen:
                    seen.add(id(call))
                    yield call


def _share(source: SourceFile, call: ast.Call, position: int, passed: ast.expr | None, default: float) -> float:
    """Return the share of correct tokens that a call asks for; 0 if it turns teacher forcing off or is not readable."""
    if any(isinstance(e, ast.Starred) for e in call.args) or any(e.arg is None for e in call.keywords):
        return 0.0
    if passed is not None:
        values = assigned_in(source.tree, passed.id) if isinstance(passed, ast.Name) else [passed]
        number = values[0].value if len(values) == 1 and isinstance(values[0], ast.Constant) else 0.0
        return number if isinstance(number, float) and 0 < number < 1 else 0.0
    sequences = [*call.args, *(each.value for each in call.keywords)]
    is_complete = len(sequences) >= max(2, position)
    has_target = not any(isinstance(each, ast.Constant) and each.value is None for each in sequences)
    return default if is_complete and has_target and 0 < default < 1 else 0.0


def _is_evaluation(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a call without gradients, or in a function that sets eval mode and does not train."""
    function = function_of(source, call)
    blocks = [each for each in enclosing_nodes(source, call) if isinstance(each, ast.With)]
    contexts = [item.context_expr for each in blocks for item in each.items]
    if any(map(_is_no_grad, [*contexts, *getattr(function, "decorator_list", ())])):
        return True
    called = {last_name(each.func) for each in nodes_in(function, ast.Call)}
    return not isinstance(function, ast.Module) and "eval" in called and not called & {"backward", "step"}


def _is_no_grad(node: ast.expr) -> bool:
    return last_name(node.func if isinstance(node, ast.Call) else node) in _NO_GRAD


def _hit(
    source: SourceFile, call: ast.Call, forward: ast.FunctionDef, passed: ast.expr | None, share: float, name: str
) -> Hit:
    fix = None
    if passed is not None:
        fix = Fix((source.text.replace(passed, "0.0"),), safe=False, description="Turn it off")
    elif not call.keywords:
        _, end = source.text.span(call.args[-1])
        fix = Fix((Edit(end, end, f", {name}=0.0"),), safe=False, description="Turn it off")
    return Hit(
        message=f"`{source.text.segment(call)}` in an evaluation leaves teacher forcing on: with `{name}` = {share:g} "
        "the decoder reads the correct previous token in this share of the steps.",
        node=call,
        related=((forward, f"`{name}` is a parameter of this method"),),
        fix=fix,
    )


RULE = Rule(required_words=("def forward", "eacher|orcing|tf_|tfr"), find=find)

BAD = """
import random

import torch
from torch import nn

torch.manual_seed(0)


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 16)
        self.encoder = nn.GRU(16, 16, batch_first=True)
        self.decoder = nn.GRU(16, 16, batch_first=True)
        self.out = nn.Linear(16, 12)

    def forward(self, source, target, teacher_forcing_ratio=0.5):
        state = self.encoder(self.embedding(source))[1]
        token, outputs = target[:, :1], []
        for step in range(1, target.size(1)):
            hidden, state = self.decoder(self.embedding(token), state)
            outputs.append(self.out(hidden))
            forced = random.random() < teacher_forcing_ratio
            token = target[:, step : step + 1] if forced else outputs[-1].argmax(2)
        return torch.cat(outputs, 1)


model = Seq2Seq()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
source = torch.randint(2, 12, (160, 6))
target = torch.cat([torch.ones(160, 1, dtype=torch.long), source.flip(1)], 1)
for epoch in range(10):
    for rows in torch.randperm(128).split(32):
        optimizer.zero_grad()
        scores = model(source[rows], target[rows])
        loss = nn.functional.cross_entropy(scores.transpose(1, 2), target[rows, 1:])
        loss.backward()
        optimizer.step()
model.eval()
with torch.no_grad():
    scores = model(source[128:], target[128:])
    print("accuracy", (scores.argmax(2) == target[128:, 1:]).float().mean().item())
"""

FAILURE = Failure(
    code="EVL026",
    title="Teacher forcing is left on in an evaluation",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(source[128:], target[128:])": "(source[128:], target[128:], teacher_forcing_ratio=0.0)"}),
    fix="Pass teacher_forcing_ratio=0 where the model is evaluated.",
    rule=RULE,
)
