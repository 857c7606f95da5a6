"""Finds functional batch normalisation that uses the statistics of the batch in eval mode too."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, nodes_in

_WANTED: Final = re.compile(
    r"(?i)monte|\bmc_|mc_?drop|uncertain|bayes|meta|maml|adapt|tent\b|tta|transduct|domain|style"
)
"""Words of programs that normalise by the batch in an evaluation on purpose."""


def batch_norms_in_train_mode(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``F.batch_norm(x, self.mean, self.var, training=True)`` of a program that calls ``eval()``."""
    calls = [each for each in source.all_calls if last_name(each.func) == "batch_norm"]
    for call in calls if calls and _is_evaluated(source) else ():
        first = 3 if source.qualified_name(call.func) == "torch.batch_norm" else 1
        flag = argument_node(call, "training", 5)
        mean, variance = argument_node(call, "running_mean", first), argument_node(call, "running_var", first + 1)
        is_constant = isinstance(flag, ast.Constant) and flag.value is True
        if not is_constant or mean is None or variance is None:
            continue
        method: Any = function_of(source, call)
        stored = next((each for each in origins(source, mean) if _is_buffer(source, each)), None)
        if stored is not None and "training" not in ast.unparse(method).replace("training=True", ""):
            yield Hit(
                message=f"`{ast.unparse(call.func)}` normalises by the batch in eval mode too: `training` is always "
                f"True, and `{ast.unparse(stored)}` is never read.",
                node=call,
                fix=_training_flag(source, method, flag),
            )


def _is_evaluated(source: SourceFile) -> bool:
    """Return True if the program puts a model into eval mode, and no word says that batches normalise on purpose."""
    if any(_WANTED.search(each.text.source) for each in source.modules):
        return False
    return any(isinstance(e.func, ast.Attribute) and e.func.attr == "eval" and not e.args for e in source.all_calls)


def _is_buffer(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a tensor that a module stores: ``self.mean``, ``self.norm.running_mean``."""
    path = dotted_name(node).split(".")
    if len(path) > 1 and path[-1].startswith("running_"):
        return True
    registered = (each for each in source.all_calls if last_name(each.func) == "register_buffer" and each.args)
    names = {each.args[0].value for each in registered if isinstance(each.args[0], ast.Constant)}
    assigned = {
        target.attr
        for each in source.nodes_of(ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Attribute) and nodes_in(each.value, ast.Call)
    }
    return len(path) == 2 and path[1] in names | assigned


def _training_flag(source: SourceFile, method: Any, flag: ast.expr | None) -> Fix | None:
    is_method = isinstance(method, ast.FunctionDef) and isinstance(source.parents.get(id(method)), ast.ClassDef)
    if not is_method or not method.args.args or method.decorator_list:
        return None
    edit = source.text.replace(flag, f"{method.args.args[0].arg}.training")
    return Fix((edit,), safe=False, description="Pass training=self.training")
