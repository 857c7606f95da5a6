"""Finds functions, such as for a preview of samples, that set the global seed and are called in every epoch."""

import ast
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Branch, Loop, Op, OpKind
from trueloop.analysis.queries.loops import is_statement
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in

TORCH_SEEDS: Final = frozenset((
    "torch.manual_seed", "torch.random.manual_seed", "lightning.seed_everything", "pytorch_lightning.seed_everything",
    "accelerate.utils.set_seed", "transformers.set_seed",
))  # fmt: skip
_RESTORING: Final = frozenset(("set_rng_state", "fork_rng", "setstate", "set_state", "isolate_rng"))
_DRAWS: Final = frozenset((
    "randn", "rand", "randint", "randperm", "randn_like", "rand_like", "randint_like", "bernoulli", "multinomial",
    "normal", "poisson", "dropout", "gumbel_softmax",
))  # fmt: skip
_DROPOUT: Final = frozenset(("torch.nn.Dropout", "torch.nn.Dropout2d", "torch.nn.AlphaDropout"))
_NEW_TRAINING: Final = (OpKind.CREATE, OpKind.LOAD_STATE_DICT)


class SeededHelper(NamedTuple):
    """A call that sets the same seed in every iteration of a training loop, within a function that the loop calls."""

    seed: Op
    call: ast.AST
    """The call of the function."""
    draw: ast.AST
    """What draws random numbers in the training: a call, or the loader."""


def seeded_helpers(source: SourceFile) -> Iterator[SeededHelper]:
    """Yield each constant seed that a function sets which a training loop calls, and what draws the same numbers."""
    if any(last_name(each.func) in _RESTORING for each in source.all_calls):
        return
    reported: set[int] = set()
    for seed in source.ops(OpKind.SEED):
        if seed.name not in TORCH_SEEDS or id(seed.node) in reported or not seed.loops or not seed.calls:
            continue
        loop = seed.loops[-1]
        call = next((each for each in seed.calls if each not in loop.calls), None)
        if call is None or not is_statement(loop.node) or loop.runs_at_most_once():
            continue
        inside = source.ops_in_loop(loop, root=seed.entry_point)
        is_reseeded = any(e.kind is OpKind.SEED and e.name in TORCH_SEEDS and not _is_in_call(e, call) for e in inside)
        if is_reseeded or not _is_same_each_time(source, seed, loop) or not _trains_between(inside, seed, loop):
            continue
        draw = next((each for each in inside if _draws(each) and not _is_in_call(each, call)), None)
        if draw is not None:
            reported.add(id(seed.node))
            yield SeededHelper(seed, call, getattr(draw.node, "iter", draw.node))


def _is_same_each_time(source: SourceFile, seed: Op, loop: Loop) -> bool:
    """Return True for a constant seed that is set in every iteration, or in every n-th one."""
    value = seed.inputs[0] if seed.inputs else None
    is_number = value is not None and not value.union and type(value.constant()) is int
    arguments = [*seed.node.args, *(each.value for each in seed.node.keywords)]
    is_fixed = bool(arguments) and all(source.is_loop_invariant(each, seed, loop) for each in arguments)
    is_parameter = any(isinstance(each, ast.Name) for each in arguments)
    return (is_number or (is_fixed and not is_parameter)) and all(map(_is_regular, seed.conditions(loop)))


def _is_regular(branch: Branch) -> bool:
    """Return True for ``epoch % 5 == 0``, ``seed is not None`` and a flag."""
    test = branch.node.test if isinstance(branch.node, ast.If) else None
    if test is None:
        return False
    is_none = any(isinstance(op, ast.Is | ast.IsNot) for each in nodes_in(test, ast.Compare) for op in each.ops)
    return bool(nodes_in(test, ast.Mod)) or is_none or isinstance(test, ast.Name | ast.Attribute)


def _trains_between(inside: Sequence[Op], seed: Op, loop: Loop) -> bool:
    """Return True if a loop goes on with one training, and makes several updates between two calls of the function."""
    kinds = (ValueKind.MODEL, ValueKind.OPTIMIZER)
    if any(each.kind in _NEW_TRAINING and each.subject.kind in kinds for each in inside):
        return False
    steps = [each for each in inside if each.kind is OpKind.STEP]
    is_periodic = any(nodes_in(each.node, ast.Mod) for each in seed.conditions(loop))
    is_outer = any(each.loops[-1].node is not loop.node for each in steps)
    return bool(steps) and (is_outer or is_periodic)


def _draws(operation: Op) -> bool:
    """Return True for an operation that draws from PyTorch's global generator."""
    if operation.kind is OpKind.ITERATE:
        loader = operation.subject
        shuffle = loader.arguments.get("shuffle") or loader.arguments.get("2")
        is_shuffled = shuffle is not None and shuffle.constant() is True
        return loader.kind is ValueKind.LOADER and is_shuffled and "generator" not in loader.arguments
    if operation.kind is OpKind.TORCH_CALL:
        is_random = operation.name.startswith("torch.") and operation.name.rpartition(".")[2] in _DRAWS
        return is_random and "generator" not in operation.arguments
    return operation.kind is OpKind.MODEL_CALL and operation.subject.name in _DROPOUT


def _is_in_call(operation: Op, call: ast.AST) -> bool:
    return any(each is call for each in operation.calls)
