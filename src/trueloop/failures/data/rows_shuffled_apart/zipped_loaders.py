"""Finds loops over ``zip`` of two shuffling DataLoaders, one with the inputs and one with the labels."""

import ast
from collections.abc import Iterator, Mapping

from trueloop.analysis.queries.batch_loops import assigned_pairs, created_loader, is_label, is_loss_call
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in


def find_zipped(source: SourceFile) -> Iterator[Hit]:
    """Yield each loader whose batches are the labels of the batches of another loader."""
    for loop in source.nodes_of(ast.For):
        match loop.target, loop.iter:
            case target, ast.Call(func=ast.Name(id="zip"), args=[_, _]) as call:
                pass
            case ast.Tuple(elts=[_, target]), ast.Call(
                func=ast.Name(id="enumerate" | "tqdm"), args=[ast.Call(func=ast.Name(id="zip"), args=[_, _]) as call]
            ):
                pass
            case _:
                continue
        created = [_shuffling(source, each) for each in call.args]
        if not isinstance(target, ast.Tuple) or len(target.elts) != 2 or None in created:
            continue
        loaders = _loaders_of_names(loop, target)
        pairs = [_pair(source, each) for each in nodes_in(loop, ast.Call, ast.Yield)]
        sides = [tuple(frozenset(_sides(part, loaders)) for part in pair) for pair in pairs if pair is not None]
        apart = [each for each in sides if each in ((frozenset({0}), frozenset({1})), (frozenset({1}), frozenset({0})))]
        together = any(len(first | second) < 2 for first, second in sides if first and second)
        if apart and not together:
            labels = next(iter(apart[0][1]))
            yield Hit(
                message=f"`{ast.unparse(call.args[labels])}` returns the labels and "
                f"`{ast.unparse(call.args[1 - labels])}` the inputs, and each of the two shuffles on its own: the "
                "inputs get the labels of other samples.",
                node=created[labels] or call,
                related=((call, "paired here"),),
            )


def _shuffling(source: SourceFile, loader: ast.expr) -> ast.Call | None:
    """Return the call that creates a loader which shuffles with PyTorch's own generator; None for other loaders."""
    made = loader if isinstance(loader, ast.Call) else created_loader(source, loader)
    if made is None or not last_name(made.func).endswith("DataLoader"):
        return None
    options = {each.arg: each.value for each in made.keywords}
    is_shuffling = getattr(options.get("shuffle", (made.args + [None] * 3)[2]), "value", None) is True
    return made if is_shuffling and not options.keys() & {"generator", None} else None


def _loaders_of_names(loop: ast.For, target: ast.Tuple) -> dict[str, set[int]]:
    """Return each variable of a loop with the numbers of the loaders from which its value follows."""
    loaders = {each.id: {number} for number, part in enumerate(target.elts) for each in nodes_in(part, ast.Name)}
    for statement in sorted(nodes_in(loop, ast.Assign), key=lambda each: each.lineno):
        found = [(each, _sides(value, loaders)) for each, value in assigned_pairs(statement)]
        loaders |= {name.id: sides for each, sides in found for name in nodes_in(each, ast.Name)}
    return loaders


def _sides(node: ast.expr, loaders: Mapping[str, set[int]]) -> set[int]:
    return {side for name in nodes_in(node, ast.Name) for side in loaders.get(name.id, ())}


def _pair(source: SourceFile, node: ast.Call | ast.Yield) -> tuple[ast.expr, ast.expr] | None:
    """Return the prediction and the target of a loss, or the inputs and labels that are yielded or trained on."""
    match node:
        case ast.Call(args=[first, second, *_]) if is_loss_call(source, node):
            return first, second
        case ast.Yield(value=ast.Tuple(elts=[first, second])) if is_label(second) and not is_label(first):
            return first, second
        case ast.Call(args=[*_, first, second]) if is_label(second) and not is_label(first):
            is_training = any(word in last_name(node.func) for word in ("step", "train", "fit", "update"))
            return (first, second) if is_training else None
        case _:
            return None
