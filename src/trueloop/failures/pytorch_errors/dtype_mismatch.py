"""The tensors of one operation have different dtypes.

NumPy creates float64 by default, PyTorch float32. Class targets must be integers (int64), and targets of a binary loss
must be floating-point numbers. A model in half precision does not accept a float32 batch outside autocast.
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError, TensorDescription

_CONVERSIONS = {"float32": "float", "float64": "double", "float16": "half", "bfloat16": "bfloat16", "int64": "long"}
_EXPECTS_INTEGERS = re.compile(
    r"expected (?:target dtype to be Long|scalar type Long)|.*one of the following scalar types: Long"
)
_FLOATING = ("float16", "bfloat16", "float32", "float64")


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """Name the dtype of each tensor, and the tensor to convert."""
    if _EXPECTS_INTEGERS.match(error.message):
        return _explain_integers(error)
    dtypes = {each.dtype for each in error.tensors}
    if len(dtypes) < 2:
        subject = f"The input of {error.running_module} has" if error.running_module else "The operation got tensors of"
        return Explanation(
            meaning=f"{subject} another dtype than its parameters, as the message above says."
            if error.running_module
            else f"{subject} different dtypes.",
            fix="Convert the batch where it is created: x = x.float(). NumPy creates float64 by default.",
        )
    wrong, dtype = _tensor_to_convert(error.tensors)
    other = next(each for each in error.tensors if each.dtype != wrong.dtype)
    listed = f"{wrong.display_name} is {wrong.dtype}, and {other.display_name} is {other.dtype}"
    location = f", in {error.running_module}" if error.running_module and error.running_module.path else ""
    return Explanation(meaning=f"{listed[0].upper()}{listed[1:]}{location}.", fix=_fix(wrong, dtype), tensor=wrong)


def _explain_integers(error: RaisedError) -> Explanation:
    target = next((each for each in error.tensors if each.dtype not in ("int64", "int32", "uint8")), None)
    arguments = [each for each in error.tensors if each.argument_name in ("target", "indices", "input")]
    target = next((each for each in arguments if each.argument_name == "target"), None) or target
    name = target.display_name if target else "the target"
    dtype = f", but {name} is {target.dtype}" if target else ""
    return Explanation(
        meaning=f"Class targets and indices must be integers (int64){dtype}.",
        fix=f"Convert them where they are created: {_name(target)} = {_name(target)}.long(). If the targets are "
        "probabilities, they need the shape of the output of the model.",
        tensor=target,
    )


def _tensor_to_convert(tensors: tuple[TensorDescription, ...]) -> tuple[TensorDescription, str]:
    """Return the tensor to convert and its new dtype: that of the parameters, or of tensors that require a gradient."""
    references = [each for each in tensors if each.name or each.requires_grad]
    dtype = next((each.dtype for each in references if each.dtype in _FLOATING), "float32")
    others = [each for each in tensors if each.dtype != dtype]
    return next((each for each in others if not each.name), others[0]), dtype


def _fix(wrong: TensorDescription, dtype: str) -> str:
    if dtype in ("float16", "bfloat16"):
        return f"Run the forward pass under torch.autocast, or convert the batch to {dtype}, the dtype of the model."
    name = _name(wrong)
    cause = " NumPy creates float64 by default." if wrong.dtype == "float64" else ""
    return f"Convert it where it is created: {name} = {name}.{_CONVERSIONS.get(dtype, 'float')}().{cause}"


def _name(tensor: TensorDescription | None) -> str:
    names = (tensor.expression, tensor.argument_name) if tensor else ()
    return next((name for name in names if name.isidentifier()), "x")


ERROR = KnownError(
    title="Tensors have different dtypes",
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
