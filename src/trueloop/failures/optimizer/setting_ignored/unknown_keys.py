"""Finds keys of parameter groups that resemble a setting of the optimizer, and that nothing reads."""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix

_MEANT: Final = {
    "learning_rate": "lr", "learningrate": "lr", "learn_rate": "lr", "lrate": "lr", "l_r": "lr", "rate": "lr",
    "weightdecay": "weight_decay", "weight_decays": "weight_decay", "wd": "weight_decay", "decay": "weight_decay",
    "l2": "weight_decay", "beta": "betas", "momentums": "momentum", "moment": "momentum", "epsilon": "eps",
}  # fmt: skip
"""Keys in lower case -> the setting that is probably meant."""


def unknown_keys(source: SourceFile) -> Iterator[Hit]:
    """Yield each group with such a key in the call of an optimizer of PyTorch."""
    read = {each.slice.value for each in source.nodes_of(ast.Subscript) if isinstance(each.slice, ast.Constant)}
    read |= {a.value for call in source.all_calls for a in call.args[:1] if isinstance(a, ast.Constant)}  # .get("wd")
    if not any(source.qualified_name(call.func).startswith("torch.optim.") for call in source.all_calls):
        return
    for node in source.nodes_of(ast.Dict, ast.Call):
        items = list(_items(node))
        if all(key != "params" for key, _ in items):
            continue
        for key, place in items:
            meant = _MEANT.get(key.lower())
            if meant is None or key in read or any(other == meant for other, _ in items):
                continue
            text = f"{meant!r}".replace("'", '"') if isinstance(place, ast.Constant) else meant
            yield Hit(
                message=f"The key `{key}` of this parameter group has no effect: the optimizer reads `{meant}`.",
                node=place if isinstance(place, ast.Constant) else node,
                fix=_rename(source, place, text),
            )


def _items(node: ast.Dict | ast.Call) -> Iterator[tuple[str, ast.expr | ast.keyword]]:
    """Yield the keys of a dictionary, or of ``dict(params=...)``, each with its place."""
    if isinstance(node, ast.Dict):
        for key in node.keys:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, key
    elif last_name(node.func) == "dict":
        yield from ((each.arg, each) for each in node.keywords if each.arg)


def _rename(source: SourceFile, place: ast.expr | ast.keyword, text: str) -> Fix:
    start, end = source.text.span(place)
    if isinstance(place, ast.keyword):
        end = start + len(place.arg or "")
    return Fix((Edit(start, end, text),), safe=False, description=f"Call it {text}")
