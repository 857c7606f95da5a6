"""The tensors of one operation have different types of number.

numpy makes float64 where torch makes float32; class targets must be whole numbers (int64) and binary targets
floating ones; a model in half precision takes no float32 batch outside autocast.
"""

from __future__ import annotations

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError, TensorDescription

_CALL = {"float32": "float", "float64": "double", "float16": "half", "bfloat16": "bfloat16", "int64": "long"}
_CLASSES = re.compile(
    r"expected (?:target dtype to be Long|scalar type Long)|.*one of the following scalar types: Long"
)
_FLOATING = ("float16", "bfloat16", "float32", "float64")


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation:
    """Say which tensor has which type, and which of them is to be converted."""
    if _CLASSES.match(raised.message):
        return _classes(raised)
    kinds = {each.dtype for each in raised.tensors}
    if len(kinds) < 2:
        what = (
            f"The input of {raised.running_module} has"
            if raised.running_module
            else "The operation was given tensors of"
        )
        return Explanation(
            meaning=f"{what} another type of number than its parameters, as torch says above."
            if raised.running_module
            else f"{what} different types of number.",
            fix="Convert the batch where it is made: x = x.float(); numpy makes float64 unless it is told float32.",
        )
    stray, wanted = _stray(raised.tensors)
    other = next(each for each in raised.tensors if each.dtype != stray.dtype)
    listed = f"{stray.display_name} is {stray.dtype}, and {other.display_name} is {other.dtype}"
    where = f", in {raised.running_module}" if raised.running_module and raised.running_module.path else ""
    return Explanation(meaning=f"{listed[0].upper()}{listed[1:]}{where}.", fix=_fix(stray, wanted), tensor=stray)


def _classes(raised: RaisedError) -> Explanation:
    target = next((each for each in raised.tensors if each.dtype not in ("int64", "int32", "uint8")), None)
    role = [each for each in raised.tensors if each.argument_name in ("target", "indices", "input")]
    target = next((each for each in role if each.argument_name == "target"), None) or target
    called = target.display_name if target else "the target"
    is_of = f" and {called} is {target.dtype}" if target else ""
    return Explanation(
        meaning=f"Class numbers and indices must be whole numbers (int64){is_of}.",
        fix=f"Convert them where they are made: {_name(target)} = {_name(target)}.long(). If the targets are "
        "probabilities, they need the shape of the model's output.",
        tensor=target,
    )


def _stray(tensors: tuple[TensorDescription, ...]) -> tuple[TensorDescription, str]:
    """Choose what to convert, and to which type: to that of the parameters, or of what requires a gradient."""
    model = [each for each in tensors if each.name or each.requires_grad]
    wanted = next((each.dtype for each in model if each.dtype in _FLOATING), "float32")
    others = [each for each in tensors if each.dtype != wanted]
    return next((each for each in others if not each.name), others[0]), wanted


def _fix(stray: TensorDescription, wanted: str) -> str:
    if wanted in ("float16", "bfloat16"):
        return f"Run the forward under torch.autocast, or convert the batch to the model's {wanted}."
    name = _name(stray)
    why = " numpy makes float64 unless it is told float32." if stray.dtype == "float64" else ""
    return f"Convert it where it is made: {name} = {name}.{_CALL.get(wanted, 'float')}().{why}"


def _name(tensor: TensorDescription | None) -> str:
    words = (tensor.expression, tensor.argument_name) if tensor else ()
    return next((word for word in words if word.isidentifier()), "x")


ERROR = KnownError(
    title="Tensors of different types of number",
    exception_types=frozenset({"RuntimeError", "ValueError"}),
    message_patterns=(
        r"mat1 and mat2 must have the same dtype",
        r"expected m1 and m2 to have the same dtype",
        r"self and mat2 must have the same dtype",
        r"expected scalar type \w+ but found \w+",
        r"expected target dtype to be Long",
        r"Found dtype \w+ but expected \w+",
        r"Input type \((?!torch\.cuda)[\w:. ]+\) and (?:weight|bias) type \((?!torch\.cuda)[\w:. ]+\) should be ",
        r"Input type \(torch\.cuda\.\w+\) and (?:weight|bias) type \(torch\.cuda\.\w+\) should be the same",
        r"mixed dtype \(CPU\)",
        r"RNN input dtype \(\S+\) does not match weight dtype",
        r"result type \w+ can't be cast to the desired output type \w+",
        r"Expected tensor for argument #\d+ '\w+' to have one of the following scalar types: Long",
        r"Index put requires the source and destination dtypes match",
    ),
    explain=explain,
)
