"""The same seed is set before every batch, so every update is made on the same random batch.

What you see
    The training loss falls far below what the noise in the data allows, and the score on new samples is poor. More
    steps do not help: the model only learns one batch.

Why it happens
    A function that makes a batch calls ``torch.manual_seed(0)``, perhaps in a ``set_seed()`` "for reproducibility". A
    seed starts the sequence of random numbers again, so each call draws the same indices, samples and noise.

Fix
    Seed once at the start of the program. A function that needs its own numbers gets a generator that goes on.

        generator = torch.Generator().manual_seed(0)  # once

        def make_batch(n):
            return torch.randn(n, 8, generator=generator)

When this is fine
    - The seed differs in each step, such as ``torch.manual_seed(seed + step)``.
    - The batch with the fixed seed is only used to evaluate.
    - A closure seeds so that an optimizer such as LBFGS always sees the same function.
    - All updates use all samples, and nothing is drawn.
    - Several models are trained from the same seed, one after the other.

How it is detected
    In a run, the sanitizer reports 12 updates in a row before each of which one line sets the same seed of PyTorch,
    NumPy or Python, if the model's inputs have equal values and random numbers were drawn after the seed. Batches of a
    DataLoader are left to DAT005. The linter reports a constant seed in a loop that trains, or in a function that makes
    the batch for it, if random numbers are drawn there. A fixed batch may be wanted, so this is a warning.

References
    PyTorch, "Reproducibility", https://docs.pytorch.org/docs/stable/notes/randomness.html
"""

import ast
import random
import sys
import weakref
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import nodes_in, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import ModelCalled, OptimizerCreated, SeedSet, StateLoaded, StepTaken, TracingGap

MIN_UPDATES: Final = 12
_SEEDS: Final = frozenset(
    ("manual_seed", "seed", "set_seed", "seed_everything", "default_rng", "RandomState", "Random")
)
_DRAWS: Final = frozenset((
    "rand", "randn", "randint", "rand_like", "randn_like", "randperm", "normal", "uniform", "choice", "choices",
    "shuffle", "sample", "permutation", "multinomial", "bernoulli", "standard_normal", "integers", "random", "gauss",
    "normal_", "uniform_",
))  # fmt: skip


class Detector(BaseDetector):
    """Compares the first input after each seed with the first one after the previous seed."""

    def __init__(self) -> None:
        self._keys: dict[str, tuple[object, ...]] = {}
        """Generator -> its latest seed and the line that set it."""
        self._input: int | None = None
        """Hash of the first input since the latest seed."""
        self._before: int | None = None
        """Hash of the first input after the seed before."""
        self._tensor: weakref.ref[Any] | None = None
        self._updates = self._repeats = 0
        self._judged = False

    def on_seed_set(self, event: SeedSet) -> Evidence | None:
        """Return evidence when the same batch has followed the same seed often enough."""
        if event.loader is not None or self._repeats < 0:
            return None
        key = (event.seed, event.location)
        if self._keys.get(event.generator) != key or event.location is None:
            self._keys[event.generator] = key
            self._start_again()
            return None
        if self._input is not None:  # the first of the generators that are seeded together
            is_repeated = self._input == self._before and 1 <= self._updates <= 2  # two: of a GAN
            self._repeats = self._repeats + 1 if is_repeated else 0
            self._before, self._input, self._updates, self._judged = self._input, None, 0, True
        if self._repeats < MIN_UPDATES - 1 or not _has_drawn(event.generator, event.seed):
            return None
        self._repeats = -1
        return Evidence(
            message=f"{MIN_UPDATES} updates in a row were made on the same batch: the same seed ({event.seed}) is set "
            "before each of them, so each draws the same random numbers.",
            location=event.location,
        )

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the first input since the latest seed."""
        if not self._keys or self._input is not None or not event.has_graph or event.recomputed or self._repeats < 0:
            return
        from trueloop.tracing.row_digests import row_digests

        rows = None if event.loader is not None else row_digests(event)
        if rows is None or rows.device.type != "cpu" or (self._tensor and self._tensor() is event.inputs):
            self._start_again()  # also for one tensor that every update uses
            return
        self._input, self._tensor = int(rows.sum()), weakref.ref(event.inputs)

    def on_step_taken(self, event: StepTaken) -> None:
        """Count the update."""
        self._updates += not event.closure

    def on_optimizer_created(self, event: OptimizerCreated) -> None:
        """Start again: another training begins."""
        self._start_again()

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Start again: the training returns to an earlier state."""
        self._start_again()

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Start again: the inputs of some updates were not seen."""
        self._start_again()

    def _start_again(self) -> None:
        self._input = self._before = None
        self._updates, self._repeats = 0, min(self._repeats, 0)

    def inconclusive(self) -> str:
        """Return a reason if no seed was set between updates."""
        return "" if self._judged else "no seed was set again between updates"


def _has_drawn(generator: str, seed: Any) -> bool:
    """Return True if random numbers were drawn since a global generator was seeded."""
    if generator == "torch":
        torch = sys.modules["torch"]
        return not torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(int(seed)).get_state())
    if generator == "random":
        return random.getstate() != random.Random(seed).getstate()  # noqa: S311
    numpy = sys.modules["numpy"].random
    now, start = numpy.get_state(), numpy.RandomState(seed).get_state()
    return now[2:] != start[2:] or bool((now[1] != start[1]).any())


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each constant seed that is set before every batch that a loop trains on."""
    functions = {each.name: each for each in source.nodes_of(ast.FunctionDef)}
    for loop in source.nodes_of(ast.For, ast.While):
        used = set[str]() if any(map(_makes_optimizer, loop.body)) else _names_of_losses(loop)
        for position, statement in enumerate(loop.body) if used else ():
            seed = _seed(source, functions, statement)
            if seed is not None and any(_draws_for(functions, each, used) for each in loop.body[position + 1 :]):
                yield _hit(seed, loop, "the loop")
            call = _call_in(statement)
            made = functions.get(last_name(call.func)) if call is not None and _targets(statement) & used else None
            if call is None or made is None:
                continue
            seeds = [_seed(source, functions, each) for each in made.body]
            first = next((number for number, each in enumerate(seeds) if each is not None), None)
            if first is not None and any(_draws(functions, each) for each in made.body[first:]):
                seed = seeds[first]
                if seed is not None:
                    yield _hit(seed, call, "the batch is made here")


def _makes_optimizer(statement: ast.stmt) -> bool:
    """Return True for a loop that trains another model in each iteration."""
    made = walk(statement.value) if isinstance(statement, ast.Assign) else ()
    return any(isinstance(each, ast.Attribute) and each.attr == "parameters" for each in made)


def _hit(seed: ast.Call, node: ast.AST, label: str) -> Hit:
    return Hit(
        message=f"`{ast.unparse(seed)}` sets the same seed before every batch, so every update is made on the same "
        "random numbers.",
        node=seed,
        related=((node.iter if isinstance(node, ast.For) else node, label),),
    )


def _names_of_losses(loop: ast.For | ast.While) -> set[str]:
    """Return the variables of a loop from which the losses that it differentiates are computed."""
    names: set[str] = set()
    for statement in loop.body:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="backward", value=loss))):
                names |= _names(loss)
            case _:
                pass
    assignments = [each for each in loop.body if isinstance(each, ast.Assign)] if names else []
    for each in assignments[::-1]:
        if _targets(each) & names:
            names |= _names(each.value)
    return names


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in nodes_in(node, ast.Name)}


def _targets(statement: ast.stmt) -> set[str]:
    return set().union(*map(_names, statement.targets)) if isinstance(statement, ast.Assign) else set()


def _call_in(statement: ast.stmt) -> ast.Call | None:
    value = statement.value if isinstance(statement, ast.Assign | ast.Expr) else None
    return value if isinstance(value, ast.Call) else None


def _seed(source: SourceFile, functions: dict[str, ast.FunctionDef], statement: ast.stmt) -> ast.Call | None:
    """Return the call of a statement that sets a constant seed, perhaps by a function that only sets seeds."""
    call = _call_in(statement)
    if call is None:
        return None
    own = functions.get(last_name(call.func))
    if own is not None:
        seeds = [each for each in map(_call_in, own.body) if each is not None and last_name(each.func) in _SEEDS]
        is_wrapper = bool(seeds) and not any(_draws({}, each) for each in own.body)
        arguments = [*call.args, *(each.value for each in call.keywords), *own.args.defaults]
        return (
            call if is_wrapper and arguments and all(_is_constant(source, call, each) for each in arguments) else None
        )
    if isinstance(call.func, ast.Name) and call.func.id == "seed":
        return None
    arguments = [*call.args, *(each.value for each in call.keywords)]
    is_seed = last_name(call.func) in _SEEDS and len(arguments) == 1
    return call if is_seed and _is_constant(source, call, arguments[0]) else None


def _is_constant(source: SourceFile, call: ast.Call, value: ast.expr) -> bool:
    """Return True for a number, a constant of the file, or a parameter to which no call passes anything."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int)
    if not isinstance(value, ast.Name) or assigned_in(function_of(source, call), value.id)[1:]:
        return False
    function = function_of(source, call)
    if isinstance(function, ast.FunctionDef) and value.id in (each.arg for each in nodes_in(function.args, ast.arg)):
        return _has_default(source, function, value.id)
    values = assigned_in(source.tree, value.id)
    parameters = {each.arg for each in source.nodes_of(ast.arg)}
    return value.id not in parameters and len(values) == 1 and isinstance(values[0], ast.Constant)


def _has_default(source: SourceFile, function: ast.FunctionDef, name: str) -> bool:
    """Return True if a parameter has another default than None, which all calls of the function use."""
    names = [each.arg for each in function.args.args]
    defaults = dict(zip(names[::-1], function.args.defaults[::-1], strict=False))
    default = defaults.get(name)
    if default is None or (isinstance(default, ast.Constant) and default.value is None):
        return False
    calls = [each for each in source.all_calls if last_name(each.func) == function.name]
    given = [each for each in calls if len(each.args) > names.index(name) or any(k.arg == name for k in each.keywords)]
    return bool(calls) and not given


def _draws(functions: dict[str, ast.FunctionDef], statement: ast.AST) -> bool:
    """Return True if a statement draws random numbers, perhaps in a function that it calls."""
    names = {last_name(each.func) for each in nodes_in(statement, ast.Call)}
    return bool(names & _DRAWS) or any(_draws({}, functions[each]) for each in names & functions.keys())


def _draws_for(functions: dict[str, ast.FunctionDef], statement: ast.stmt, used: set[str]) -> bool:
    return bool(_targets(statement) & used) and _draws(functions, statement)


RULE = Rule(required_words=("seed|default_rng|RandomState|Random(", ".backward("), find=find)

BAD = """
import torch
from torch import nn

def make_batch(n):
    torch.manual_seed(0)
    x = torch.randn(n, 8)
    return x, x.sum(1, keepdim=True) + 0.5 * torch.randn(n, 1)

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(60):
    inputs, targets = make_batch(32)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="DAT024",
    title="The same seed is set before every batch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {"    torch.manual_seed(0)\n": "", "from torch import nn\n": "from torch import nn\n\ntorch.manual_seed(0)\n"},
    ),
    fix="Seed once at the start of the program, not for each batch.",
    rule=RULE,
    detector=Detector,
)
