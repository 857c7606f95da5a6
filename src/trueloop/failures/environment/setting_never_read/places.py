"""Finds the code that should take a hyper-parameter and has a number of its own, or relies on a default."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.assignments import assigned_value
from trueloop.analysis.queries.class_instances import called_function, definitions
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.optimizer_settings import sets_in_groups
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.environment.setting_never_read.settings import Setting, kind_of

_STATES: Final = re.compile(r"state|hidden", re.IGNORECASE)
_WITHOUT_MOMENTUM: Final = ("SGD", "RMSprop")
_RATES: Final = {"Adadelta": 1.0, "Adagrad": 1e-2, "ASGD": 1e-2, "RMSprop": 1e-2, "Rprop": 1e-2}
"""Optimizer -> its default learning rate, if it is not 0.001."""
_ARGUMENTS: Final = {
    ("batch_size", "DataLoader"): ("batch_size", 1),
    **{("dropout", f"{kind}Dropout{size}"): ("p", 0) for kind in ("", "Alpha") for size in ("", "1d", "2d", "3d")},
    ("label_smoothing", "CrossEntropyLoss"): ("label_smoothing", 99),
    ("label_smoothing", "cross_entropy"): ("label_smoothing", 99),
    ("max_norm", "clip_grad_norm_"): ("max_norm", 1),
    ("max_norm", "clip_grad_value_"): ("clip_value", 1),
    ("seed", "manual_seed"): ("seed", 0),
    ("step_size", "StepLR"): ("step_size", 1),
    ("gamma", "StepLR"): ("gamma", 2),
    ("patience", "ReduceLROnPlateau"): ("patience", 3),
}
"""Kind of setting and name of a function or class -> the parameter that takes the setting, and its position."""


class Place(NamedTuple):
    """Code that should take a setting."""

    node: Any
    text: str
    is_equal: bool


def own_value(source: SourceFile, setting: Setting) -> Place | None:
    """Return the first call or loop with a number of its own; None if there is none, or one with another expression."""
    found: Place | None = None
    for node, name, value in _places(source, setting.kind):
        if setting.scope is not None and not encloses(setting.scope, node):
            continue
        number = assigned_value(source, node, value.id) if isinstance(value, ast.Name) else value
        if value is not None and not _is_number(number):
            return None
        if found is None:
            shown = ast.unparse(node.func) if isinstance(node, ast.Call) else f"for {ast.unparse(node.target)}"
            text = f"`{shown}` has {name} {ast.unparse(value)}" if value is not None else f"`{shown}` gets no {name}"
            default = setting.value.value if isinstance(setting.value, ast.Constant) else object()
            of_library = (
                (_RATES.get(last_name(getattr(node, "func", None)), 1e-3),) if name == "lr" else (0, None, False)
            )
            is_equal = default in (of_library if number is None else (getattr(number, "value", None),))
            found = Place(node, text, is_equal)
    return None if setting.kind == "lr" and sets_in_groups(source.tree, "lr") else found


def _is_number(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _places(source: SourceFile, kind: str) -> Iterator[tuple[Any, str, ast.expr | None]]:
    """Yield each call or loop that takes a kind of setting, the name there, and the value that it gets."""
    if kind in ("lr", "weight_decay", "momentum"):
        for each in source.nodes_of(ast.Dict):  # parameter groups
            for key, value in zip(each.keys, each.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == kind and not _is_number(value):
                    yield each, kind, value
    for call in source.all_calls:
        found = _in_call(source, call, kind) or _in_program(source, call, kind)
        if found is not None and all(each.arg for each in call.keywords):
            yield call, *found
    if kind == "epochs":
        for loop in source.nodes_of(ast.For):
            limit = loop.iter.args if isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "range" else []
            if limit and any("ep" in each.id for each in nodes_in(loop.target, ast.Name)) and _trains(source, loop):
                yield loop, "the length", limit[-1] if len(limit) < 3 else limit[1]


def _trains(source: SourceFile, loop: ast.For) -> bool:
    """Return True for a loop with a training step or a call of a function of the program, which may train."""
    called = {last_name(each.func) for each in nodes_in(loop, ast.Call)}
    return not called.isdisjoint({"backward", "step", "fit", *definitions(source).functions})


def _in_call(source: SourceFile, call: ast.Call, kind: str) -> tuple[str, ast.expr | None] | None:
    """Return the argument of a call of PyTorch for a setting, with its name; None for other calls."""
    name, qualified = last_name(call.func), source.qualified_name(call.func)
    is_optimizer = qualified.startswith("torch.optim.") and ".lr_scheduler" not in qualified and name[:1].isupper()
    label, position = _ARGUMENTS.get((kind, name), ("", 0))
    if is_optimizer and (kind in ("lr", "weight_decay") or (kind == "momentum" and name in _WITHOUT_MOMENTUM)):
        label, position = kind, 1 if kind == "lr" else 99
    is_other = name == "manual_seed" and qualified != "torch.manual_seed"
    if not label or is_other or (name == "DataLoader" and argument_node(call, "batch_sampler", 4) is not None):
        return None
    return label, argument_node(call, label, position)


def _in_program(source: SourceFile, call: ast.Call, kind: str) -> tuple[str, ast.expr | None] | None:
    """Return the argument for a parameter of the program's own function or class with the name of the setting."""
    function = called_function(source, call)
    arguments = function.args if function is not None else None
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)] if arguments is not None else []
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    chosen = [each for each in names if kind_of(each) == kind]
    if len(chosen) != 1 or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    required = names[: len(names) - len(arguments.defaults)] if arguments is not None else []
    given = {*names[: len(call.args)], *(each.arg for each in call.keywords)}
    is_state = kind == "batch_size" and _STATES.search(last_name(call.func)) is not None
    if is_state or not given.issuperset(required):
        return None  # the hidden state of one sample, or another function: `net.train()` next to `def train(net, ...)`
    return chosen[0], argument_node(call, chosen[0], names.index(chosen[0]))
