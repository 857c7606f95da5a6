"""Finds loops over time steps that bind the new hidden state to another name than the one that they pass on."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import in_other_arm
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in

_STATE: Final = re.compile(r"(^|_)(hidden|hiddens|state|states|h|hx|hn|hs)\d?($|_)", re.IGNORECASE)
_INITIAL: Final = re.compile(r"0$|init|zero|first|start", re.IGNORECASE)
_STEPS: Final = re.compile(r"len|step|time|size|shape|horizon|\bT\b|seq", re.IGNORECASE)
_BATCHES: Final = re.compile(r"loader|batch|epoch|dataset|sampler", re.IGNORECASE)
_TRAINS: Final = frozenset(("backward", "fit", "zero_grad"))


def lost_states(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``out, hidden = decoder(token, state)`` in a loop over steps whose new state nothing reads."""
    for loop in source.nodes_of(ast.For, ast.While):
        for statement in nodes_in(loop, ast.Assign) if _runs_over_steps(loop) else ():
            results = getattr(statement.targets[0], "elts", [])[1:]
            new = next((e for e in results if isinstance(e, ast.Name) and _STATE.search(e.id)), None)
            passed = _passed_state(source, loop, statement.value) if new is not None else None
            if new is not None and passed is not None and _is_unread(source, new):
                yield Hit(
                    message=f"The new state `{new.id}` is lost: nothing reads it, and every step begins with the same "
                    f"`{passed.id}`, so the layer remembers nothing of earlier steps.",
                    node=statement,
                    related=((passed, "the same in every step"),),
                    fix=Fix((source.text.replace(new, passed.id),), safe=False, description="Pass the state on"),
                )


def _runs_over_steps(loop: ast.For | ast.While) -> bool:
    """Return True for a loop over the steps of a sequence, which trains nothing inside."""
    text = ast.unparse(loop.iter if isinstance(loop, ast.For) else loop.test)
    is_known = isinstance(loop, ast.While) or text.startswith("range(")
    trains = any(last_name(each.func) in _TRAINS for each in nodes_in(loop, ast.Call))
    return is_known and bool(_STEPS.search(text)) and not _BATCHES.search(text) and not trains


def _passed_state(source: SourceFile, loop: ast.For | ast.While, call: ast.expr) -> ast.Name | None:
    """Return the state that a call gets, if it is the same in every step while another argument changes."""
    given = [*call.args, *(each.value for each in call.keywords)] if isinstance(call, ast.Call) else []
    stored = [each for each in nodes_in(loop, ast.Name) if isinstance(each.ctx, ast.Store)]
    changing = {each.id for each in stored if not in_other_arm(source, source.statement_of(each), call)}
    states = [each for each in given if isinstance(each, ast.Name) and _STATE.search(each.id)]
    fixed = [each for each in states if each.id not in changing and not _INITIAL.search(each.id)]
    is_step = any(each.id in changing for part in given for each in nodes_in(part, ast.Name))
    return fixed[0] if len(fixed) == 1 and len(states) == 1 and is_step else None


def _is_unread(source: SourceFile, new: ast.Name) -> bool:
    names = [each for each in nodes_in(function_of(source, new), ast.Name) if each.id == new.id]
    return not new.id.startswith("_") and all(isinstance(each.ctx, ast.Store) for each in names)
