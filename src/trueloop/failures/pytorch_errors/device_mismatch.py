"""The tensors of one operation lie on different devices.

``model.to(device)`` moves parameters and buffers only. A batch stays where the loader made it, and so does a tensor
that a module holds as a plain attribute, or that a forward makes without ``device=``.
"""

from __future__ import annotations

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError, TensorDescription


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation:
    """Say which tensor lies where, and which of them is to be moved."""
    tensors = [each for each in raised.tensors if each.dtype]
    where = {each.device for each in tensors}
    if len(where) < 2:
        return Explanation(
            meaning=_of_model(raised) or "The operation was given tensors of different devices, as torch says above.",
            fix="Move the batch to where the model is, x = x.to(device), and make new tensors with device=x.device.",
        )
    stray = _stray(tensors)
    other = next(each for each in tensors if each.device != stray.device)
    listed = f"{stray.display_name} on {stray.device}, and {other.display_name} on {other.device}"
    return Explanation(
        meaning=f"The operation was given {listed}.{_within(raised)}", fix=_fix(stray, other), tensor=stray
    )


def _stray(tensors: list[TensorDescription]) -> TensorDescription:
    """Choose the one to move: a forgotten attribute, else what is not the model's own."""
    cpu = [each for each in tensors if each.device == "cpu"] or tensors
    held = [each for each in cpu if each.module_role == "attribute"]
    given = [each for each in cpu if not each.name]
    return (held or given or cpu)[0]


def _fix(stray: TensorDescription, other: TensorDescription) -> str:
    name = stray.expression or stray.argument_name or "x"
    if stray.module_role == "attribute":
        short = name.rpartition(".")[2]
        return (
            f"{stray.display_name.capitalize()} is a plain attribute, of which model.to(device) knows nothing: "
            f'self.register_buffer("{short}", ...) makes it move with the model.'
        )
    if stray.name:
        return f"The model was not moved: call model.to({other.device!r}) before the optimizer is built."
    if not other.name and stray.created_by in (
        "zeros",
        "ones",
        "full",
        "randn",
        "rand",
        "arange",
        "tensor",
        "empty",
        "eye",
        "linspace",
    ):
        return f"Make it where the others are: device={other.display_name.strip('`')}.device."
    name = name if name.isidentifier() else "x"
    return f"Move it to where the others are: {name} = {name}.to({other.device!r})."


def _within(raised: RaisedError) -> str:
    return f" That happened in {raised.running_module}." if raised.running_module and raised.running_module.path else ""


def _of_model(raised: RaisedError) -> str:
    return (
        f"The input of {raised.running_module} is not on the device of its parameters." if raised.running_module else ""
    )


ERROR = KnownError(
    title="Tensors on different devices",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(
        r"Expected all tensors to be on the same device",
        r"Tensor on device \S+ is not on the expected device \S+!",
        r"Input type \((?!torch\.cuda)[\w.]+\) and (?:weight|bias) type \(torch\.cuda\.\w+\) should be the same",
        r"Input type \(torch\.cuda\.\w+\) and (?:weight|bias) type \((?!torch\.cuda)[\w.]+\) should be the same",
        r"Expected (?:object|input and hidden tensors) .*device",
        r"indices should be either on cpu or on the same device as the indexed tensor",
        r"Input and (?:parameter|hidden) tensors are not at the same device",
    ),
    explain=explain,
)
