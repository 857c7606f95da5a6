"""Finds the seeds that are set to the same number in every training step, and from which its batch is drawn."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.data.seeded_before_each_batch.fixed_seeds import is_fixed
from trueloop.failures.data.seeded_before_each_batch.step_code import StepCode

_GENERATORS: Final = frozenset(("default_rng", "RandomState", "Random"))
_SEEDS: Final = frozenset(("manual_seed", "seed", "set_seed", "seed_everything", "manual_seed_all"))
_GLOBAL: Final = re.compile(r"(torch|random|np\.random|numpy\.random|pl|lightning|L|accelerate.*)(\.|$)")
DRAWS: Final = frozenset((
    "rand", "randn", "randint", "rand_like", "randn_like", "randperm", "normal", "uniform", "choice", "choices",
    "shuffle", "sample", "permutation", "multinomial", "bernoulli", "standard_normal", "integers", "random", "gauss",
    "normal_", "uniform_", "random_",
))  # fmt: skip
_ORDERS: Final = frozenset(("randperm", "permutation", "shuffle"))
_RESTORING: Final = frozenset(("setstate", "set_state", "set_rng_state", "fork_rng"))
"""Calls after which the global generators go on as if no seed had been set."""
_WEIGHING: Final = frozenset(("matmul", "mm", "bmm", "linear", "einsum", "conv1d", "conv2d", "dot", "tensordot"))
_NEW_FOR_EACH_BATCH: Final = re.compile(
    r"noise|(^|_)eps|batch|row|idx|ind(ex|ices)|perm|order|pick|(^|_)(ix|z|t)(_|$)|time", re.IGNORECASE
)
_MAX_DEPTH: Final = 3


def repeated_seeds(source: SourceFile, code: StepCode) -> Iterator[ast.Call]:
    """Yield each call of a piece of code that sets a fixed seed before numbers are drawn for the batch."""
    nodes = list(code.nodes())
    calls = [each for each in nodes if isinstance(each, ast.Call)]
    if any(last_name(each.func) in _RESTORING for each in calls):
        return
    for call in calls:
        seed = _seed(source, code, call)
        if seed is None or not is_fixed(source, code, seed):
            continue
        draws = _draws_from(source, code, call, calls)
        owner = dotted_name(getattr(call.func, "value", None))
        others = [
            each
            for each in calls
            if last_name(each.func) in DRAWS
            and each not in draws  # what the same generator draws before goes on from the end of the last step
            and (not _GLOBAL.match(owner) or dotted_name(getattr(each.func, "value", None)) != owner)
        ]
        if any(_is_batch(source, code, each) and (not others or _is_noise(source, each)) for each in draws):
            yield call


def _seed(source: SourceFile, code: StepCode, call: ast.Call) -> ast.expr | None:
    """Return the seed that a call sets; None for other calls."""
    arguments = [*call.args, *(each.value for each in call.keywords)]
    name = last_name(call.func)
    function = called_function(source, call) if isinstance(call.func, ast.Name) else None
    if function is not None:
        return _seed_of_wrapper(function, arguments)
    if name in _GENERATORS | _SEEDS and len(arguments) == 1 and dotted_name(call.func) != "seed":
        return arguments[0]
    return None


def _seed_of_wrapper(function: ast.FunctionDef, arguments: list[ast.expr]) -> ast.expr | None:
    """Return the seed that a function gets, or sets by itself, which does nothing but set seeds."""
    calls = nodes_in(function, ast.Call)
    seeds = [each for each in calls if last_name(each.func) in _SEEDS and each.args]
    draws = any(last_name(each.func) in DRAWS for each in calls)
    if not seeds or draws or any(each.value is not None for each in nodes_in(function, ast.Return)):
        return None
    given = [*arguments, *function.args.defaults] if function.args.args else [seeds[0].args[0]]
    return given[0] if given else None


def _draws_from(source: SourceFile, code: StepCode, seed: ast.Call, calls: list[ast.Call]) -> list[ast.Call]:
    """Return the calls of a piece of code that draw from the generator that a call seeds, for the batch."""
    owner = dotted_name(seed.func.value) if isinstance(seed.func, ast.Attribute) else ""
    later = [each for each in calls if (each.lineno, each.col_offset) > (seed.lineno, seed.col_offset)]
    statement = source.statement_of(seed)
    is_object = last_name(seed.func) in _GENERATORS or "Generator" in ast.unparse(seed.func)
    if not is_object and (not owner or _GLOBAL.match(owner)):
        drawn = [each for each in later if _draws_globally(source, each)]
        return [each for each in drawn if _is_kept(source.statement_of(each)) or _changes(each)]
    if not is_object:
        return [each for each in later if _mentions(each, owner)]
    names = {dotted_name(each) for each in getattr(statement, "targets", [])} - {""}
    if getattr(statement, "value", None) is not seed:  # drawn from within the same expression
        return [each for each in calls if each is not seed and seed in nodes_in(each, ast.Call)]
    return [each for each in later if any(_mentions(each, name) for name in names)]


def _is_kept(statement: Any) -> bool:
    """Return False for a statement that does not store what it draws, neither in a variable nor in a list."""
    is_appended = last_name(getattr(getattr(statement, "value", None), "func", None)) == "append"
    return is_appended or not isinstance(statement, ast.Expr)


def _mentions(call: ast.Call, name: str) -> bool:
    """Return True if a call is a method of a generator, or gets it."""
    owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    return any(dotted_name(each) == name for each in (*owner, *call.args, *(k.value for k in call.keywords)))


def _changes(call: ast.Call) -> bool:
    return last_name(call.func).endswith("_") or last_name(call.func) == "shuffle"


def _draws_globally(source: SourceFile, call: ast.Call, depth: int = _MAX_DEPTH) -> bool:
    """Return True if a call draws from a global generator, perhaps in a function of the program."""
    if last_name(call.func) in DRAWS:
        return not any(each.arg == "generator" for each in call.keywords)
    function = called_function(source, call) if depth else None
    return function is not None and any(_draws_globally(source, e, depth - 1) for e in nodes_in(function, ast.Call))


def _is_batch(source: SourceFile, code: StepCode, draw: ast.Call) -> bool:
    """Return True for numbers from which the batch is made: not a weight, a mask, or the order of a split."""
    uses = [draw, *_loads(source, code, draw)]
    if not any(id(each) in code.reached for each in uses):
        return False
    parents: list[Any] = [source.parents.get(id(each)) for each in uses]
    if any(isinstance(each, ast.Compare) or _is_product(each) for each in parents):
        return False
    if any(isinstance(e, ast.Subscript) and e.value in uses and not isinstance(e.slice, ast.Slice) for e in parents):
        return False  # a table from which each sample takes a row
    if last_name(draw.func) not in _ORDERS:
        return True
    slices = [each.slice for each in parents if isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Slice)]
    return bool(slices) and all(each.lower is None and each.upper is not None for each in slices)


def _loads(source: SourceFile, code: StepCode, draw: ast.Call) -> list[ast.expr]:
    """Return the nodes that read the variable to which drawn numbers are assigned, or that is drawn in place."""
    statement = source.statement_of(draw)
    targets: list[ast.expr] = list(getattr(statement, "targets", []))
    if isinstance(statement, ast.Expr) and statement.value is draw:  # rng.shuffle(rows), noise.normal_()
        targets = draw.args[:1] if last_name(draw.func) == "shuffle" else [getattr(draw.func, "value", draw)]
    names = {dotted_name(e) for target in targets for e in nodes_in(target, ast.Name, ast.Attribute)}
    within = function_of(source, draw)
    return [
        each
        for each in nodes_in(within, ast.Name, ast.Attribute)
        if isinstance(each.ctx, ast.Load) and dotted_name(each) in names and each.lineno >= draw.lineno
    ]


def _is_noise(source: SourceFile, draw: ast.Call) -> bool:
    """Return True for numbers that are new for each batch by their name: others may be constants of a made-up task."""
    statement = source.statement_of(draw)
    names = [each.id for target in getattr(statement, "targets", []) for each in nodes_in(target, ast.Name)]
    return any(map(_NEW_FOR_EACH_BATCH.search, names))


def _is_product(node: Any) -> bool:
    is_product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
    return is_product or (isinstance(node, ast.Call) and last_name(node.func) in _WEIGHING)
