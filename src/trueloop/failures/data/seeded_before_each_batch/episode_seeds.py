"""Finds environments that are reset to the same seed in every episode of a training."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.loops import assigned_names
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in

_JUDGES: Final = re.compile(r"eval|test|valid|play|demo|render|record|video|enjoy|watch|check|bench", re.IGNORECASE)
_LOOPS: Final = ast.For | ast.While


def episode_seeds(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``env.reset(seed=seed)`` or ``env.seed(seed)`` in a loop over episodes that keeps the seed."""
    calls = definitions(source).calls
    for call in (*calls.get("reset", ()), *calls.get("seed", ())):
        given = call.args[:1] if last_name(call.func) == "seed" else []
        seed = next((each.value for each in call.keywords if each.arg == "seed"), *given or [None])
        around = list(enclosing_nodes(source, call))
        loop: Any = next((each for each in around if isinstance(each, _LOOPS)), None)
        if seed is None or loop is None or not _is_fixed(seed, loop) or not _runs_episodes(source, call, loop):
            continue
        conditions = around[: around.index(loop)]
        if any(isinstance(each, ast.IfExp | ast.Try) for each in conditions) or not all(
            _is_end(loop, each) for each in conditions if isinstance(each, ast.If)
        ):
            continue  # only in the first episode
        yield Hit(
            message=f"`{ast.unparse(call)}` sets the same seed in every episode, so each one starts in the same state "
            "and meets the same random events. Pass the seed to the first reset only.",
            node=call,
            related=((loop, "the loop over the episodes"),),
        )


def _is_fixed(seed: ast.expr, loop: Any) -> bool:
    """Return True for a number, and for a variable or setting that a loop does not assign."""
    if isinstance(seed, ast.Constant):
        return seed.value is not None
    name = dotted_name(seed)
    changed = {dotted_name(each) for each in nodes_in(loop, ast.Attribute) if not isinstance(each.ctx, ast.Load)}
    return bool(name) and name not in changed and name.partition(".")[0] not in assigned_names(loop)


def _is_end(loop: Any, condition: ast.If) -> bool:
    """Return True for a condition on what a step of the environment returns, so that it holds in each episode."""
    steps = [
        e for e in nodes_in(loop, ast.Assign) if isinstance(e.value, ast.Call) and last_name(e.value.func) == "step"
    ]
    results = {each.id for step in steps for target in step.targets for each in nodes_in(target, ast.Name)}
    names = {each.id for each in nodes_in(condition.test, ast.Name)}
    return bool(names) and names <= results


def _runs_episodes(source: SourceFile, call: ast.Call, loop: Any) -> bool:
    """Return True if a loop makes steps in the environment that a call resets, and is no evaluation."""
    environment = dotted_name(getattr(call.func, "value", None))
    steps = [each for each in nodes_in(loop, ast.Call) if last_name(each.func) == "step"]
    resets = [each for each in nodes_in(loop, ast.Call) if last_name(each.func) == "reset"]
    loops = [next((e for e in enclosing_nodes(source, each) if isinstance(e, _LOOPS)), None) for each in resets]
    is_stepped = loop in loops and any(dotted_name(getattr(each.func, "value", None)) == environment for each in steps)
    file = Path(source.module_of(call.lineno).path).name
    names = (environment, getattr(function_of(source, call), "name", ""), file)
    return is_stepped and not any(map(_JUDGES.search, names))
