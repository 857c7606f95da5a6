"""The tensors of one operation are on different devices.

``model.to(device)`` moves parameters and buffers only. It does not move a batch, a tensor that a module stores as a
plain attribute, or a tensor that ``forward`` creates without ``device=``.
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError, TensorDescription


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """Name the device of each tensor, and the tensor to move."""
    tensors = [each for each in error.tensors if each.dtype]
    devices = {each.device for each in tensors}
    if len(devices) < 2:
        return Explanation(
            meaning=_input_text(error) or "The operation got tensors on different devices, named in the message above.",
            fix="Move the batch to the device of the model, x = x.to(device), and new tensors with device=x.device.",
        )
    misplaced = _misplaced_tensor(tensors)
    other = next(each for each in tensors if each.device != misplaced.device)
    listed = f"{misplaced.display_name} on {misplaced.device} and {other.display_name} on {other.device}"
    return Explanation(
        meaning=f"The operation got {listed}.{_module_text(error)}", fix=_fix(misplaced, other), tensor=misplaced
    )


def _misplaced_tensor(tensors: list[TensorDescription]) -> TensorDescription:
    """Return the tensor to move: a plain attribute of a module, otherwise a tensor that is not a parameter."""
    cpu = [each for each in tensors if each.device == "cpu"] or tensors
    attributes = [each for each in cpu if each.module_role == "attribute"]
    inputs = [each for each in cpu if not each.name]
    return (attributes or inputs or cpu)[0]


def _fix(misplaced: TensorDescription, other: TensorDescription) -> str:
    name = misplaced.expression or misplaced.argument_name or "x"
    if misplaced.module_role == "attribute":
        short = name.rpartition(".")[2]
        return (
            f"{misplaced.display_name.capitalize()} is a plain attribute, which model.to(device) does not move: "
            f'register it with self.register_buffer("{short}", ...).'
        )
    if misplaced.name:
        return f"The model was not moved: call model.to({other.device!r}) before you build the optimizer."
    if not other.name and misplaced.created_by in (
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
        return f"Create it on the device of the others: device={other.display_name.strip('`')}.device."
    name = name if name.isidentifier() else "x"
    return f"Move it to the device of the others: {name} = {name}.to({other.device!r})."


def _module_text(error: RaisedError) -> str:
    return f" The operation is in {error.running_module}." if error.running_module and error.running_module.path else ""


def _input_text(error: RaisedError) -> str:
    return (
        f"The input of {error.running_module} is on another device than its parameters." if error.running_module else ""
    )


ERROR = KnownError(
    title="Tensors are on different devices",
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
