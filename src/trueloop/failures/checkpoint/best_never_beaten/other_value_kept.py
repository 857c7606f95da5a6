"""Finds best values that are updated with another value, before they are compared, or only within a function."""

import ast
from collections.abc import Iterator

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.best_values import BestCheck, is_same, stores_in
from trueloop.analysis.queries.class_instances import called_function, definitions
from trueloop.analysis.queries.loop_variables import stored_names
from trueloop.analysis.queries.metric_names import better_direction, metric_name
from trueloop.analysis.queries.possible_values import enclosing_nodes, origins, parameters_of
from trueloop.analysis.queries.shuffled_loaders import passed_argument
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, nodes_in


def find_other_value(source: SourceFile, check: BestCheck) -> Iterator[Hit]:
    """Yield the assignment that stores another metric than the one that was compared."""
    for target, value in stores_in(check.node.body):
        if value is None or not is_same(target, check.best):
            continue
        kept, compared = metric_name(value), metric_name(check.value)
        is_metric = bool(kept) and better_direction(kept) != "" and better_direction(compared) != ""
        if is_metric and kept != compared and not _is_same_value(source, value, check.value):
            yield Hit(
                message=f"`{ast.unparse(check.value)}` is compared with `{ast.unparse(check.best)}`, which is then set "
                f"to `{ast.unparse(value)}`: the next comparison is with another quantity.",
                node=value,
                related=((check.node.test, "compared here"),),
                fix=Fix(
                    (source.text.replace(value, ast.unparse(check.value)),),
                    safe=False,
                    description="Store the value that was compared",
                ),
            )


def _is_same_value(source: SourceFile, one: ast.expr, other: ast.expr) -> bool:
    """Return True if one value may have been assigned from the other one, or both from the same expression."""
    if isinstance(one, ast.Attribute) and isinstance(other, ast.Attribute) and one.attr == other.attr:
        return _is_same_value(source, one.value, other.value)  # best = node; best_reward = best.reward
    texts = [{ast.unparse(each) for each in origins(source, side)} for side in (one, other)]
    return bool(texts[0] & texts[1]) or any(
        dotted_name(part) == dotted_name(other)
        for each in origins(source, one)
        for part in nodes_in(each, ast.Name, ast.Attribute)
    )


def find_updated_before(source: SourceFile, check: BestCheck) -> Iterator[Hit]:
    """Yield each comparison with a best value that ``best = max(best, x)`` has already replaced."""
    is_strict = not any(isinstance(each, ast.LtE | ast.GtE) for each in nodes_in(check.node.test, ast.cmpop))
    for statement in source.block(check.node) if is_strict else ():
        match statement:
            case ast.Assign(targets=[target], value=ast.Call(func=func, args=[*arguments])) if (
                last_name(func) in ("max", "min") and statement.lineno < check.node.lineno
            ):
                pass
            case _:
                continue
        has_best = any(is_same(each, check.best) for each in arguments)
        if has_best and is_same(target, check.best) and any(is_same(each, check.value) for each in arguments):
            yield Hit(
                message=f"`{ast.unparse(check.node.test)}` is never true: `{ast.unparse(statement)}` has stored the "
                "new value before.",
                node=check.node.test,
                related=((statement, "stored here"),),
            )


def find_updated_locally(source: SourceFile, check: BestCheck) -> Iterator[Hit]:
    """Yield each best value that is a parameter: the loop that calls the function never gets the new value."""
    function, best = function_of(source, check.node), check.best
    if not check.updates or not isinstance(best, ast.Name) or not isinstance(function, ast.FunctionDef):
        return
    is_own_loop = any(isinstance(each, ast.For | ast.While) for each in enclosing_nodes(source, check.node))
    if best.id not in [each.arg for each in parameters_of(function)] or is_own_loop or _leaves(function, best.id):
        return
    for call in definitions(source).calls.get(function.name, []):
        given = passed_argument(source, function, call, best.id)
        loops = [each for each in enclosing_nodes(source, call) if isinstance(each, ast.For | ast.While)]
        if not isinstance(given, ast.Name) or not loops or called_function(source, call) is not function:
            continue
        if not any(given.id in stored_names(loop) for loop in loops):
            yield Hit(
                message=f"`{best.id}` is updated only within `{function.name}`: the loop that calls it passes the same "
                f"`{given.id}` each time, so every value that beats the initial one counts as the best.",
                node=check.node.test,
                related=((call, "called here"),),
            )
            return


def _leaves(function: ast.FunctionDef, name: str) -> bool:
    """Return True if a function returns a variable, or stores it in an object."""
    given = [each.value for each in nodes_in(function, ast.Return, ast.Yield) if each.value is not None]
    given += [
        each.value
        for each in nodes_in(function, ast.Assign)
        if any(isinstance(target, ast.Attribute | ast.Subscript) for target in each.targets)
    ]
    return any(read.id == name for value in given for read in nodes_in(value, ast.Name))
