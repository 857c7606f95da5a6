"""Finds functions, such as for a preview of samples, that set the global seed and are called in every epoch."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Branch, Loop, Op, OpKind
from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.queries.loops import assigned_names, is_statement
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

TORCH_SEEDS: Final = frozenset((
    "torch.manual_seed", "torch.random.manual_seed", "lightning.seed_everything", "pytorch_lightning.seed_everything",
    "accelerate.utils.set_seed", "transformers.set_seed",
))  # fmt: skip
_SEEDS: Final = dict.fromkeys(TORCH_SEEDS, "torch") | {"numpy.random.seed": "numpy.random", "random.seed": "random"}
"""Functions that seed a global generator -> the module whose functions draw from it."""
_RESTORING: Final = frozenset(("set_rng_state", "fork_rng", "setstate", "set_state", "isolate_rng"))
_UNSEEDING: Final = frozenset(("torch.seed", "torch.random.seed"))
_DRAWS: Final = frozenset((
    "randn", "rand", "randint", "randperm", "randn_like", "rand_like", "randint_like", "bernoulli", "multinomial",
    "normal", "poisson", "dropout", "gumbel_softmax", "normal_", "uniform_", "bernoulli_", "random_", "exponential_",
))  # fmt: skip
_OTHER_DRAWS: Final = frozenset((
    "choice", "choices", "gauss", "normal", "permutation", "rand", "randint", "randn", "random", "randrange", "sample",
    "shuffle", "standard_normal", "uniform",
))  # fmt: skip
"""Functions of NumPy's and Python's ``random`` that draw from the global generator."""
_DROPOUT: Final = frozenset((
    "torch.nn.Dropout", "torch.nn.Dropout1d", "torch.nn.Dropout2d", "torch.nn.Dropout3d", "torch.nn.AlphaDropout",
))  # fmt: skip
_NEW_TRAINING: Final = (OpKind.CREATE, OpKind.LOAD_STATE_DICT)
_MAX_DEPTH: Final = 4  # of calls in the training loop that are searched for draws of NumPy and Python


class SeededHelper(NamedTuple):
    """A call that sets the same seed in every iteration of a training loop, within a function that the loop calls."""

    seed: Op
    call: ast.AST
    """The call of the function."""
    draw: ast.AST
    """What draws random numbers in the training: a call, or the loader."""


def seeded_helpers(source: SourceFile) -> Iterator[SeededHelper]:
    """Yield each constant seed that a function sets which a training loop calls, and what draws the same numbers."""
    if any(last_name(each.func) in _RESTORING for each in source.all_calls) or any(source.calls_of(*_UNSEEDING)):
        return
    reported: set[int] = set()
    for seed in source.ops(OpKind.SEED):
        loop, call = _training_call(seed)
        if seed.name not in _SEEDS or loop is None or call is None or {id(seed.node), id(call)} & reported:
            continue
        inside = source.ops_in_loop(loop, root=seed.entry_point)
        seeds = [each for each in inside if each.kind is OpKind.SEED and _SEEDS.get(each.name) == _SEEDS[seed.name]]
        is_last = all(_is_in_call(e, call) and (e.index <= seed.index or _is_fixed(source, e, loop)) for e in seeds)
        if not is_last or not _is_same_each_time(source, seed, loop) or not _trains_between(inside, seed, loop):
            continue
        module = _SEEDS[seed.name]
        draw = _torch_draw(inside, call) if module == "torch" else _other_draw(source, loop.node, call, module)
        if draw is not None:
            reported |= {id(seed.node), id(call)}
            yield SeededHelper(seed, call, draw)


def _training_call(seed: Op) -> tuple[Loop | None, ast.AST | None]:
    """Return the innermost loop that calls a function which leads to a seed, and this call."""
    for loop in reversed(seed.loops):
        call = next((each for each in seed.calls if each not in loop.calls), None)
        if call is not None:
            return (None, None) if not is_statement(loop.node) or loop.runs_at_most_once() else (loop, call)
    return None, None


def _is_same_each_time(source: SourceFile, seed: Op, loop: Loop) -> bool:
    """Return True for a constant seed that is set in every iteration, or in every n-th one."""
    conditions = [each for each in seed.conditions(loop) if not _is_invariant(each, loop)]
    return _is_fixed(source, seed, loop) and all(map(_is_regular, conditions))


def _is_fixed(source: SourceFile, seed: Op, loop: Loop) -> bool:
    """Return True for a seed that is a constant, or an option such as ``args.seed`` that a loop does not change."""
    value = seed.inputs[0] if seed.inputs else None
    is_number = value is not None and not value.union and type(value.constant()) is int
    arguments = [*seed.node.args, *(each.value for each in seed.node.keywords)]
    is_fixed = bool(arguments) and all(source.is_loop_invariant(each, seed, loop) for each in arguments)
    is_parameter = any(isinstance(each, ast.Name) for each in arguments)
    return is_number or (is_fixed and not is_parameter) or (value is not None and _is_option(source, value.node, loop))


def _is_option(source: SourceFile, node: ast.AST | None, loop: Loop) -> bool:
    """Return True for an attribute of a variable, such as ``args.seed``, neither of which is assigned in a loop."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    stored = {each.attr for each in source.nodes_of(ast.Attribute) if isinstance(each.ctx, ast.Store)}
    return node.attr not in stored and node.value.id not in assigned_names(loop.node)


def _is_invariant(branch: Branch, loop: Loop) -> bool:
    """Return True for ``rank == 0`` and other comparisons of names that a loop does not assign."""
    test = branch.node.test if isinstance(branch.node, ast.If) else None
    names = {each.id for each in nodes_in(test, ast.Name)} if isinstance(test, ast.Compare) else set[str]()
    return bool(names) and "self" not in names and not names & assigned_names(loop.node) and not _leaves(branch)


def _is_regular(branch: Branch) -> bool:
    """Return True for ``epoch % 5 == 0``, ``step in evaluated``, ``seed is not None``, a flag, and what a call says."""
    test = branch.node.test if isinstance(branch.node, ast.If) else None
    if test is None or _leaves(branch):
        return False
    none = (ast.Is, ast.IsNot, ast.In)
    is_known = any(isinstance(op, none) for each in nodes_in(test, ast.Compare) for op in each.ops)
    return bool(nodes_in(test, ast.Mod)) or is_known or isinstance(test, ast.Name | ast.Attribute | ast.Call)


def _leaves(branch: Branch) -> bool:
    """Return True if the arm of an ``if`` ends the loop."""
    arm: list[ast.stmt] = branch.node.body if branch.arm == 0 else branch.node.orelse
    return any(isinstance(each, ast.Break | ast.Return | ast.Raise) for each in arm)


def _trains_between(inside: Sequence[Op], seed: Op, loop: Loop) -> bool:
    """Return True if a loop goes on with one training, and makes several updates between two calls of the function."""
    kinds = (ValueKind.MODEL, ValueKind.OPTIMIZER)
    if any(each.kind in _NEW_TRAINING and each.subject.kind in kinds for each in inside):
        return False
    steps = [each for each in inside if each.kind is OpKind.STEP]
    periodic = (ast.Mod, ast.In, ast.Call)
    is_periodic = any(
        nodes_in(each.node.test, *periodic) for each in seed.conditions(loop) if hasattr(each.node, "test")
    )
    is_outer = any(each.loops[-1].node is not loop.node for each in steps)
    return bool(steps) and (is_outer or is_periodic)


def _torch_draw(inside: Sequence[Op], call: ast.AST) -> ast.AST | None:
    """Return what draws from PyTorch's global generator in a loop, outside of a call: a call or a loader."""
    draw = next((each for each in inside if _draws(each) and not _is_in_call(each, call)), None)
    return None if draw is None else getattr(draw.node, "iter", draw.node)


def _other_draw(source: SourceFile, block: ast.AST, call: ast.AST, module: str, depth: int = 0) -> ast.Call | None:
    """Return a call in a block, or in the functions that it calls, that draws from NumPy's or Python's generator."""
    for each in nodes_in(block, ast.Call):
        owner, _, name = source.qualified_name(each.func).rpartition(".")
        if owner == module and name in _OTHER_DRAWS:
            return each
        function = called_function(source, each) if each is not call and depth < _MAX_DEPTH else None
        found = None if function is None else _other_draw(source, function, call, module, depth + 1)
        if found is not None:
            return found
    return None


def _draws(operation: Op) -> bool:
    """Return True for an operation that draws from PyTorch's global generator."""
    if operation.kind is OpKind.ITERATE:
        loader = operation.subject
        while loader.kind is not ValueKind.LOADER and loader.name.startswith("builtins.") and loader.sources:
            loader = loader.sources[0]  # for enumerate(loader)
        shuffle = loader.arguments.get("shuffle") or loader.arguments.get("2")
        is_shuffled = shuffle is not None and shuffle.constant() is True
        return loader.kind is ValueKind.LOADER and is_shuffled and not _has_generator(loader.arguments)
    if operation.kind is OpKind.TORCH_CALL:
        is_random = operation.name.startswith("torch.") and operation.name.rpartition(".")[2] in _DRAWS
        return is_random and not _has_generator(operation.arguments)
    return operation.kind is OpKind.MODEL_CALL and operation.subject.name in _DROPOUT


def _has_generator(arguments: Mapping[str, AbstractValue]) -> bool:
    """Return True if a generator of its own may be passed, not ``generator=None``."""
    generator = arguments.get("generator")
    is_none = generator is not None and generator.kind is ValueKind.CONSTANT and generator.value is None
    return generator is not None and (not is_none or bool(generator.union))


def _is_in_call(operation: Op, call: ast.AST) -> bool:
    return any(each is call for each in operation.calls)
