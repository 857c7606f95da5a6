"""The discriminator gets the same label for real and for generated samples.

What you see
    The discriminator's loss falls to 0 at once and stays there, and so does the generator's. The samples stay noise.

Why it happens
    The discriminator's loss has a term for real and one for generated samples, which are copies of each other. If the
    second one keeps the label of the first, or a label tensor is not filled again, the loss is valid, and
    "real" for every input is its best answer.

Fix
    Use the other label for generated samples:

        d_loss = criterion(D(real), ones) + criterion(D(fake.detach()), zeros)

When this is fine
    - The label is filled between both losses: ``label.fill_(fake_label)``.
    - One-sided label smoothing: 0.9 for real samples, and 0 for generated ones.
    - The generator's own loss: its samples get the label of real ones.
    - The loss of generated samples is subtracted: it is maximised.
    - A relativistic loss compares ``D(real) - D(fake)`` with a label.

How it is detected
    In the text: one update has two losses with a label, one for the score of a network for samples that another
    network has made, the other for the score of the same network for other samples, and both labels are at least 0.5,
    or both are less. The generated samples are detached, or the next step is that of the scoring network's optimizer.
    In a run: all labels of all binary cross-entropies are one value, in 32 or more updates of the network whose scores
    they judge, with two losses each, while another optimizer steps too.

References
    Goodfellow et al., "Generative Adversarial Networks", 2014, arXiv:1406.2661
    DCGAN tutorial, https://docs.pytorch.org/tutorials/beginner/dcgan_faces_tutorial.html
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import enclosing_nodes, possible_values
from trueloop.analysis.queries.signed_terms import Term, jointly_minimised_terms, minimised_terms
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.loss.players_pull_alike import contents, is_network, network_names
from trueloop.tracing.events import WatchEnded

if TYPE_CHECKING:
    from trueloop.tracing.trackers.label_values import LabelValues

MIN_STEPS: Final = 32
_LOSS: Final = re.compile(r"bce|cross_entropy|crit|loss|mse|objective", re.IGNORECASE)
_VIEWS: Final = frozenset(("view", "reshape", "squeeze", "flatten", "unsqueeze", "float", "mean", "sigmoid", "clamp"))
_CONVERSIONS: Final = frozenset((
    "to", "cuda", "float", "type", "type_as", "detach", "clone", "expand", "expand_as", "view", "reshape", "unsqueeze",
    "requires_grad_", "cpu", "double", "long", "squeeze", "repeat", "size",
))  # fmt: skip
_WRAPPERS: Final = frozenset(("Variable", "tensor", "Tensor", "FloatTensor", "as_tensor", "float"))
_GENERATED: Final = re.compile(r"fake|(^|_)gen(_|$|erat)", re.IGNORECASE)
_OPERATORS: Final[dict[type[ast.operator], Any]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
}
_MAX_DEPTH: Final = 6


class Detector(BaseDetector):
    """Judges the labels of all binary cross-entropies at the end of the run."""

    labels: LabelValues

    def on_watch_ended(self, event: WatchEnded) -> Evidence | None:
        """Return evidence if all labels are equal although each update has two losses."""
        labels = self.labels.binary
        is_judged = labels.paired_steps >= MIN_STEPS and len(self.labels.optimizers) > 1 and labels.is_of_layers
        value = labels.value() if is_judged and self.labels.last_layers_are_trained else None
        if value is None:
            return None
        return Evidence(
            message=f"All {labels.numbers} labels of the binary cross-entropies are {value:g}, also in "
            f"{labels.paired_steps} updates with two of them: real and generated samples get the same label.",
            location=next(iter(labels.places))[0],
            first_update=0,
        )

    def inconclusive(self) -> str:
        """Return the reason if no update had two losses."""
        labels = self.labels.binary
        return "" if labels.varies or labels.paired_steps else "no update had two binary cross-entropies"


class Judged(NamedTuple):
    """A loss that compares the score of a network with a label."""

    loss: ast.Call
    score: ast.Call
    network: frozenset[str]
    label: float
    makers: frozenset[str]
    """Networks that made the samples; "" if only their name, or that they are detached, says so."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loss of a discriminator that has the label of real samples for generated ones."""
    reported: set[int] = set()
    for terms in (*jointly_minimised_terms(source), *minimised_terms(source)):
        judged = list(judged_scores(source, terms))
        for fake in judged:
            others = [each for each in judged if each.network == fake.network and each is not fake]
            reals = [each for each in others if not each.makers]
            if not fake.makers or not reals or id(fake.loss) in reported:
                continue
            if any((each.label >= 0.5) != (fake.label >= 0.5) for each in others) or not _trains(source, fake):
                continue
            reported.add(id(fake.loss))
            yield Hit(
                message=f"`{ast.unparse(fake.loss)}` gives generated samples the label {fake.label:g}, and real ones "
                f"have {reals[0].label:g}: the discriminator learns to give one answer for all.",
                node=fake.loss,
                related=((reals[0].loss, "the loss of real samples"),),
            )


def judged_scores(source: SourceFile, terms: Sequence[Term]) -> Iterator[Judged]:
    """Yield the losses in a sum that compare the score of a network with a label of one number."""
    known: set[int] = set()
    for term in terms:
        call = term.node
        if term.sign < 0 or not isinstance(call, ast.Call) or id(call) in known or len(call.args) < 2:
            continue
        known.add(id(call))
        score = _score(source, call.args[0]) if _LOSS.search(ast.unparse(call.func)) else None
        label = _value(source, call.args[1], _MAX_DEPTH) if score is not None else None
        if score is not None and label is not None:
            network = network_names(score)
            yield Judged(call, score, network, label, _makers(source, score, network))


def _score(source: SourceFile, node: ast.expr) -> ast.Call | None:
    """Return the call of a network that computes a score; None if it is unknown."""
    for _ in range(_MAX_DEPTH):
        match node:
            case ast.Name():
                values = possible_values(source, node)
                if len(values) != 1:
                    return None
                node = values[0]
            case ast.Call(func=ast.Attribute(attr=attr, value=inner)) if attr in _VIEWS:
                is_torch = last_name(inner) in ("torch", "F", "functional")
                node = node.args[0] if is_torch and node.args else inner
            case ast.Call(args=[_, *_]):
                return node if is_network(source, node) else None
            case _:
                return None
    return None


def _makers(source: SourceFile, score: ast.Call, network: frozenset[str]) -> frozenset[str]:
    found: set[str] = set()
    for node in contents(source, score.args):
        if isinstance(node, ast.Call) and is_network(source, node) and not network_names(node) & network:
            found |= network_names(node)
        if isinstance(node, ast.Name | ast.Attribute) and _GENERATED.search(last_name(node)):
            found.add("")
        if isinstance(node, ast.Call) and last_name(node.func) == "detach":
            found.add("")  # real samples have no graph
    return frozenset(found)


def _trains(source: SourceFile, fake: Judged) -> bool:
    """Return True if the update that a loss belongs to certainly trains the network that gives the score."""
    values = [each for arg in fake.score.args for each in [arg, *possible_values(source, arg)]]
    if any(".detach()" in ast.unparse(each) or ".data" in ast.unparse(each) for each in values):
        return True
    function = function_of(source, fake.loss)
    steps = [
        each.func.value
        for each in nodes_in(function, ast.Call)
        if isinstance(each.func, ast.Attribute) and each.func.attr == "step" and each.lineno > fake.loss.lineno
    ]
    optimizer = min(steps, key=lambda each: each.lineno, default=None)
    created = possible_values(source, optimizer) if optimizer is not None else []
    texts = [ast.unparse(each) for each in created]
    return bool(texts) and all(any(f"{name}.parameters(" in text for name in fake.network) for text in texts)


def _value(source: SourceFile, node: ast.expr, depth: int) -> float | None:
    """Return the number that all entries of a label are; None if it is unknown."""
    match node if depth else None:
        case ast.Constant(value=bool() | int() | float() as number):
            return float(number)
        case ast.Name() | ast.Attribute():
            return _stored(source, node, depth)
        case ast.BinOp(op=op, left=left, right=right):
            sides = _value(source, left, depth - 1), _value(source, right, depth - 1)
            known = type(op) in _OPERATORS and sides[0] is not None and sides[1] is not None
            return _OPERATORS[type(op)](*sides) if known else None
        case ast.List(elts=[inner]) | ast.Tuple(elts=[inner]):
            return _value(source, inner, depth - 1)
        case ast.Call() as call:
            return _created(source, call, depth)
        case _:
            return None


def _created(source: SourceFile, call: ast.Call, depth: int) -> float | None:
    """Return the number of which a call creates a tensor."""
    name, options = last_name(call.func), {each.arg: each.value for each in call.keywords}
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    value: ast.expr | None = None
    if name in ("ones", "ones_like", "new_ones", "zeros", "zeros_like", "new_zeros"):
        return float("ones" in name)
    if name in ("full", "full_like", "new_full"):
        value = options.get("fill_value", call.args[1] if len(call.args) > 1 else None)
    elif name in (*_WRAPPERS, "fill_") and call.args:
        value = call.args[0]
    elif name in _CONVERSIONS:
        value = owner
    if value is None:
        values = possible_values(source, call)
        value = values[0] if len(values) == 1 else None
    return None if value is None else _value(source, value, depth - 1)


def _stored(source: SourceFile, node: Any, depth: int) -> float | None:
    """Return the number that a variable has where it is read; None if it is changed in an unknown way."""
    function, text = function_of(source, node), ast.unparse(node)
    values = possible_values(source, node)
    numbers = {_value(source, each, depth - 1) for each in values}
    number = numbers.pop() if len(numbers) == 1 else None
    assigned = max((each.lineno for each in values if each.lineno <= node.lineno), default=0)
    loops = [each for each in enclosing_nodes(source, node) if isinstance(each, ast.For | ast.While)]
    for each in _changes(function, text):
        is_repeated = any(
            loop.lineno <= each.lineno <= (loop.end_lineno or 0) and assigned < loop.lineno for loop in loops
        )
        if assigned <= each.lineno < node.lineno:
            is_filled = isinstance(each, ast.Call) and last_name(each.func) == "fill_" and each.args
            number = _value(source, each.args[0], depth - 1) if is_filled else None
            assigned = each.lineno
        elif is_repeated and each.lineno >= node.lineno:
            return None
    return number


def _changes(function: Any, name: str) -> list[Any]:
    """Return the calls and assignments that change a tensor in place, in order."""
    found: list[Any] = []
    for each in nodes_in(function, ast.Call, ast.Assign, ast.AugAssign):
        match each:
            case ast.Call(func=ast.Attribute(attr=attr, value=owner)) if attr.endswith("_") and attr[:1] != "_":
                changed_in_place = attr != "requires_grad_" and ast.unparse(owner).removesuffix(".data") == name
            case ast.Assign(targets=[ast.Subscript(value=owner)]) | ast.AugAssign(target=owner):
                changed_in_place = ast.unparse(owner) == name
            case _:
                changed_in_place = False
        if changed_in_place:
            found.append(each)
    return sorted(found, key=lambda each: each.lineno)


RULE: Final = Rule(
    required_words=(
        "backward|training_step",
        "detach|no_grad|D(|disc|Disc|netD|fake|gen",
        "ones|zeros|full|fill_|True",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
g_optimizer = torch.optim.Adam(G.parameters(), lr=2e-4)
d_optimizer = torch.optim.Adam(D.parameters(), lr=2e-4)
criterion = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
for step in range(50):
    real = torch.randn(64, 2) + 3
    fake = G(torch.randn(64, 8))
    d_loss = criterion(D(real), ones) + criterion(D(fake.detach()), ones)
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()
    g_loss = criterion(D(fake), ones)
    g_optimizer.zero_grad()
    g_loss.backward()
    g_optimizer.step()
"""

FAILURE = Failure(
    code="LOS058",
    title="Real and generated samples get the same label",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"D(fake.detach()), ones)": "D(fake.detach()), zeros)"}),
    fix="Use the other label for generated samples in the discriminator's loss.",
    rule=RULE,
    detector=Detector,
)
