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
    """Yield each ``env.reset(seed=seed)`` in a loop over episodes that does not change the seed."""
    for call in definitions(source).calls.get("reset", ()):
        seed = next((each.value for each in call.keywords if each.arg == "seed"), None)
        around = list(enclosing_nodes(source, call))
        loop: Any = next((each for each in around if isinstance(each, _LOOPS)), None)
        if seed is None or loop is None or not _is_fixed(seed, loop) or not _runs_episodes(source, call, loop):
            continue
        conditions = around[: around.index(loop)]
        if any(isinstance(each, ast.If | ast.IfExp | ast.Try) for each in conditions):
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


def _runs_episodes(source: SourceFile, call: ast.Call, loop: Any) -> bool:
    """Return True if a loop makes steps in the environment that a call resets, and is no evaluation."""
    environment = dotted_name(getattr(call.func, "value", None))
    steps = [each for each in nodes_in(loop, ast.Call) if last_name(each.func) == "step"]
    is_stepped = any(dotted_name(getattr(each.func, "value", None)) == environment for each in steps)
    file = Path(source.module_of(call.lineno).path).name
    names = (environment, getattr(function_of(source, call), "name", ""), file)
    return is_stepped and not any(map(_JUDGES.search, names))
