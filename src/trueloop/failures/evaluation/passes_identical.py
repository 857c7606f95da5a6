"""The spread of repeated predictions is computed (MC dropout), but dropout is off and all predictions are the same.

What you see
    The standard deviation of the predictions, or the uncertainty, is 0 for every sample, however far it is from the
    training data.

Why it happens
    ``model.eval()`` turns dropout off, and the code that turns it on again is missing, runs before ``eval()``, or looks
    for another class: ``isinstance(layer, nn.Dropout)`` is False for ``nn.Dropout1d``, ``nn.Dropout2d``,
    ``nn.AlphaDropout`` and for ``F.dropout``. Each pass then computes the same numbers.

Fix
    After ``model.eval()``, put the dropout layers back into train mode. ``_DropoutNd`` is the base of all of them:

        model.eval()
        for layer in model.modules():
            if isinstance(layer, nn.modules.dropout._DropoutNd):
                layer.train()
        predictions = torch.stack([model(x) for _ in range(50)])

When this is fine
    - The passes measure time, and what they return is not used.
    - A test checks that repeated predictions are equal.
    - The model has no dropout: an ensemble, noise that is added to the inputs, or a Bayesian layer.

How it is detected
    In a run, the sanitizer reports a model with dropout that returned the same output five times in a row at one line,
    without an update in between, if the program collects the outputs and computes a standard deviation, a variance or
    an entropy. The linter reports passes that are collected in a loop after ``eval()`` if nothing turns dropout on in
    between, and a loop over the modules that turns on none of the classes of dropout that the file creates.

References
    torch.nn.Dropout, https://docs.pytorch.org/docs/stable/generated/torch.nn.Dropout.html
    Gal and Ghahramani 2016, "Dropout as a Bayesian Approximation", https://arxiv.org/abs/1506.02142
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trueloop.analysis.program_files import parse_files
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import dotted_name, encloses, nodes_in, read_source
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import ModelCalled, Ref
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_PASSES: Final = 5
MAX_VALUES: Final = 1 << 16  # of an output that is compared
_SPREAD: Final = re.compile(r"(?<![a-z])(std|var|stdev|variance|entropy|quantile|percentile)(?![a-z])|uncertain", re.I)
_DROPOUT: Final = re.compile(r"Dropout|F\.dropout|functional\.dropout")
_RANDOM: Final = re.compile(r"rand|normal_|bernoulli|sample|noise|reparam")
_COMPREHENSIONS: Final = (ast.ListComp, ast.GeneratorExp)
_SWITCHES: Final = frozenset(("train", "apply", "modules", "children"))
_Repeated = ast.For | ast.ListComp | ast.GeneratorExp


@dataclass(slots=True)
class _Passes:
    """The latest calls of a model with one result."""

    output: Any
    inputs: Any
    location: CodePosition | None
    update: int
    count: int = 1


class Detector(BaseDetector):
    """Compares the outputs of calls that follow each other.

    Cost: 5 us for each call of a model without dropout in train mode.
    """

    def __init__(self) -> None:
        self._passes = WeakIdDict[Ref, _Passes]()

    def on_model_called(self, event: ModelCalled) -> Evidence | None:
        """Return evidence at the fifth call in a row with the same output."""
        from torch import Tensor

        output, inputs, before = event.output, event.inputs, self._passes.get(event.model)
        is_readable = type(output) is Tensor and isinstance(inputs, Tensor)  # not within vmap
        if not is_readable or not output.is_cpu or event.dropout_active or output.numel() > MAX_VALUES:
            if before is not None:
                before.update = -1  # the next pass is the first one
            return None
        output = output.detach()
        is_repeated = (
            before is not None
            and before.update == event.update
            and before.location == event.location
            and before.output.equal(output)
            and (before.inputs.dtype, before.inputs.device) == (inputs.dtype, inputs.device)
            and before.inputs.equal(inputs)
        )
        if before is None or not is_repeated:
            self._passes.put(event.model, _Passes(output, inputs.detach(), event.location, event.update))
            return None
        before.count += 1
        if before.count != MIN_PASSES or not event.location or not _is_sampled(event.live_module, event.location):
            return None
        return Evidence(
            message=f"{event.model.name} returned the same output {MIN_PASSES} times in a row for the same input: no "
            "dropout layer is in train mode, so the predictions have no spread.",
            location=event.location,
        )


def _is_sampled(model: Any, location: CodePosition) -> bool:
    """Return True if a model has dropout, and the program collects its outputs to compute their spread."""
    from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

    source, line = location.source_location.path, location.source_location.line
    text = read_source(source)
    has_layers = any(isinstance(each, _DropoutNd) and each.p > 0 for each in model.modules())
    if not _SPREAD.search(text) or not (has_layers or _DROPOUT.search(text)):
        return False
    tree = (parse_files([source]) or {}).get(source)
    calls = [each for each in nodes_in(tree, ast.Call) if each.lineno <= line <= (each.end_lineno or 0)] if tree else []
    return any(_is_collected(loop, call) for call in calls for loop in nodes_in(tree, ast.For, *_COMPREHENSIONS))  # type: ignore[arg-type]


def _is_collected(loop: _Repeated, call: ast.Call) -> bool:
    """Return True if a loop repeats a call with the same arguments and uses its result."""
    if isinstance(loop, ast.For):
        targets, inner = [loop.target], [each for each in loop.body if encloses(each, call)]
    else:
        targets, inner = [each.target for each in loop.generators], [loop.elt] if encloses(loop.elt, call) else []
    varying = {each.id for target in targets for each in nodes_in(target, ast.Name)}
    arguments = [*call.args, *(each.value for each in call.keywords)]
    if not inner or any(nodes_in(each, ast.Call) for each in arguments):
        return False
    if any(each.id in varying for value in arguments for each in nodes_in(value, ast.Name)):
        return False
    if isinstance(loop, _COMPREHENSIONS):
        return True
    match inner[0]:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return any(each.id == name and isinstance(each.ctx, ast.Load) for each in nodes_in(loop, ast.Name))
        case ast.Expr(value=value):
            return value is not call
        case _:
            return True


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the passes that are collected in eval mode, and the loops that turn on other classes of dropout."""
    if not _SPREAD.search(source.text.source):
        return
    forwards = (each for each in source.nodes_of(ast.FunctionDef) if each.name == "forward")
    is_random = any(_RANDOM.search(ast.unparse(each)) for each in forwards)
    for node in () if is_random else source.nodes_of(ast.For, *_COMPREHENSIONS):
        call = _collected_call(node)  # type: ignore[arg-type]
        switched = call and _eval_before(source, node, dotted_name(call.func))
        if call and switched:
            yield Hit(
                message=f"The passes of `{dotted_name(call.func)}` are all the same: `eval()` turned dropout off, so "
                "their spread is 0.",
                node=call,
                related=((switched, "dropout is turned off here"),),
            )
    created = {last_name(each.func) for each in source.all_calls if "Dropout" in last_name(each.func)}
    for test in source.nodes_of(ast.If):
        enabled = _enabled_classes(test)
        if created and enabled and created.isdisjoint(enabled):
            yield Hit(
                message=f"This turns on {' and '.join(sorted(enabled))}, but the model has "
                f"{' and '.join(sorted(created))}: dropout stays off, and repeated predictions are all the same.",
                node=test,
            )


def _collected_call(loop: _Repeated) -> ast.Call | None:
    """Return the call that a loop over ``range`` repeats with the same arguments to collect the results."""
    iterable = loop.iter if isinstance(loop, ast.For) else loop.generators[0].iter
    if not isinstance(iterable, ast.Call) or last_name(iterable.func) not in ("range", "trange"):
        return None
    body: Sequence[ast.AST] = loop.body if isinstance(loop, ast.For) else [loop.elt]
    if len(body) > 2 or any(nodes_in(each, ast.For, ast.While, ast.If) for each in body):
        return None
    calls = [each for part in body for each in nodes_in(part, ast.Call) if each.args and dotted_name(each.func)]
    found = [each for each in calls if re.search(r"(^|\.)(model|net|network)$", dotted_name(each.func))]
    return found[0] if len(found) == 1 and _is_collected(loop, found[0]) else None


def _eval_before(source: SourceFile, loop: ast.AST, model: str) -> ast.AST | None:
    """Return the call of ``model.eval()`` before a loop in its function, if nothing may turn dropout on after it."""
    function = function_of(source, loop)
    if isinstance(function, ast.Module) or not _SPREAD.search(ast.unparse(function)):
        return None
    line = getattr(loop, "lineno", 0)
    switched: ast.AST | None = None
    for each in sorted(nodes_in(function, ast.Call), key=lambda call: call.lineno):
        name = dotted_name(each.func)
        if each.lineno >= line:
            break
        if name == f"{model}.eval":
            switched = each
        elif _may_switch(each, name, model):
            switched = None
    return switched


def _may_switch(call: ast.Call, name: str, model: str) -> bool:
    """Return True for a call that may put a part of a model into train mode."""
    takes_model = any(dotted_name(each) == model for each in call.args)
    return takes_model or last_name(call.func) in _SWITCHES or name.rpartition(".")[0] in (model, "self")


def _enabled_classes(test: ast.If) -> set[str]:
    """Return the classes of dropout whose layers a statement puts into train mode; empty for other statements."""
    match test.test:
        case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=layer), classes]):
            pass
        case _:
            return set()
    names = {last_name(each) for each in (classes.elts if isinstance(classes, ast.Tuple) else [classes])}
    is_enabled = any(dotted_name(each.func) == f"{layer}.train" for each in nodes_in(test, ast.Call))
    is_dropout = all(re.fullmatch(r"(Alpha|FeatureAlpha)?Dropout[123]?d?", each) for each in names)
    return names if is_enabled and is_dropout and not test.orelse else set()


RULE = Rule(required_words=("ropout", ".eval()|.train("), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(128, 4), torch.randn(128, 1)
model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(40):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()

def predict(model, x):
    model.eval()
    with torch.no_grad():
        passes = torch.stack([model(x) for _ in range(20)])
    return passes.mean(0), passes.std(0)

mean, spread = predict(model, x)
print(f"uncertainty {spread.mean():.3f}")
"""

FAILURE = Failure(
    code="EVL021",
    title="Repeated predictions are all the same",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"    model.eval()\n": "    model.eval()\n    model[2].train()  # the dropout layer\n"}),
    fix="Put the dropout layers into train mode after model.eval().",
    rule=RULE,
    detector=Detector,
)
