"""Interprets context managers and decorators, which switch gradients and autocast for the operations inside."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind

if TYPE_CHECKING:
    from trueloop.analysis.interpreter.interpreter import Interpreter

GRAD_DISABLING: Final = frozenset((
    "torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad", "torch.autograd.inference_mode",
    "torch.autograd.grad_mode.no_grad",
))  # fmt: skip
GRAD_ENABLING: Final = frozenset(("torch.enable_grad", "torch.autograd.enable_grad"))
GRAD_SWITCHES: Final = frozenset(("torch.set_grad_enabled", "torch.autograd.set_grad_enabled"))
AUTOCASTS: Final = frozenset((
    "torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast",
    "torch.amp.autocast_mode.autocast",
))  # fmt: skip

REUSABLE: Final = GRAD_DISABLING | GRAD_ENABLING | AUTOCASTS
"""Context managers that may be created first and entered later."""


def enter_context(interpreter: Interpreter, node: ast.expr) -> AbstractValue:
    """Enter the context manager of a ``with`` statement or decorator, and return its value."""
    recording = interpreter.recording
    value = interpreter.evaluator.evaluate(node)
    name = interpreter.evaluator.qualified_name(node.func if isinstance(node, ast.Call) else node)
    if isinstance(node, ast.Call) and not name and isinstance(node.func, ast.Attribute):
        owner = interpreter.evaluator.evaluate(node.func.value)
        name = f"{owner.kind}.{node.func.attr}"  # "accelerator.accumulate", "model.no_sync"
    if not name and not isinstance(node, ast.Call) and not value.union and value.name in REUSABLE:
        name = value.name  # autocast = torch.autocast("cuda"); with autocast: ...
    switch = _switch_value(value)
    if name in GRAD_DISABLING:
        recording.grad = False if switch is not False else recording.grad
        if switch is False and not name.endswith("no_grad"):
            recording.grad = True  # inference_mode(False)
    elif name in GRAD_ENABLING:
        recording.grad = True
    elif name in GRAD_SWITCHES:
        recording.grad = switch if isinstance(switch, bool) else None
    elif name in AUTOCASTS:
        recording.autocast = _autocast_dtype(name, value)
        recording.autocasts = (*recording.autocasts, (value, len(recording.loops)))
    elif name:
        recording.contexts = (*recording.contexts, name)
    else:
        recording.grad = None  # created outside the file, so it may switch gradients
        recording.contexts = (*recording.contexts, "")
    return value


def _switch_value(switch: AbstractValue) -> bool | None:
    """Return the mode that a context manager gets: ``set_grad_enabled(False)``; None if it is not a constant."""
    argument = switch.arguments.get("0") or switch.arguments.get("mode") or switch.arguments.get("enabled")
    value = None if argument is None else argument.constant()
    return value if isinstance(value, bool) else None


def _autocast_dtype(name: str, value: AbstractValue) -> str | None:
    arguments = value.arguments
    enabled = arguments.get("enabled")
    if enabled is not None and enabled.constant() is False:
        return None
    device = arguments.get("device_type") or arguments.get("0")
    default = "torch.float16" if ".cuda." in name or (device and device.constant() == "cuda") else ""
    dtype = arguments.get("dtype") or arguments.get("1")
    if dtype is None:
        return "torch.bfloat16" if ".cpu." in name or (device and device.constant() == "cpu") else default
    return dtype.name if dtype.kind is ValueKind.NAME else ""
