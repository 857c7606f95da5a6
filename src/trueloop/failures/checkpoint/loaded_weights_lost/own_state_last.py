"""Finds states in which a model's own values replace the loaded ones: ``{**loaded, **model.state_dict()}``."""

import ast
from collections.abc import Iterator

from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in


def own_state_last(source: SourceFile) -> Iterator[Hit]:
    """Yield each load of a dictionary to which the model's own state is added last."""
    for call in source.all_calls:
        if last_name(call.func) != "load_state_dict" or not call.args or not isinstance(call.func, ast.Attribute):
            continue
        model = ast.unparse(call.func.value)
        for state in origins(source, call.args[0], 3):
            match state:
                case ast.Dict(keys=[*_, _, None], values=[*_, last]) | ast.BinOp(op=ast.BitOr(), right=last):
                    pass
                case _:
                    continue
            own = [each for each in origins(source, last, 2) if isinstance(each, ast.Call)]
            if any(ast.unparse(each.func) == f"{model}.state_dict" for each in own) and not nodes_in(
                last, ast.DictComp
            ):
                yield Hit(
                    message=f"`{ast.unparse(state)}` takes every value from `{model}` itself, as the last dictionary "
                    "counts: nothing is loaded. Put the loaded state last.",
                    node=call,
                    related=((state, "the model's own state is added last"),) if state is not call.args[0] else (),
                )
                break
