"""The shapes of two tensors do not match in an operation.

Common causes are a linear layer after ``flatten`` that was built for another image size, a channel dimension in the
wrong position, or a last batch with fewer samples.
"""

import math
import re

from trueloop.failures.pytorch_error import Explanation, KnownError, ModuleDescription, RaisedError, TensorDescription

_SIZE_ATTRIBUTES = ("in_features", "in_channels", "num_features", "input_size", "embed_dim")


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """Name the module, the size it expects and the shape of its input."""
    module = error.running_module
    attribute = next((name for name in _SIZE_ATTRIBUTES if module and name in module.int_attributes), None)
    inputs = next((each for each in error.tensors if not each.name and not each.module_role), None)
    if module is not None and attribute is not None and inputs is not None:
        return _explain_layer(module, attribute, inputs, error)
    tensors = _main_operands(error.tensors)
    shapes = ", ".join(f"{each.display_name} has the shape {each.shape_text}" for each in tensors)
    location = f" The operation is in {module}." if module is not None and module.path else ""
    if not shapes:
        meaning, fix = _explain_message(error.message)
        return Explanation(meaning=f"{meaning}{location}", fix=fix)
    last = max(
        (each for each in tensors if each.created_at),
        key=lambda each: each.created_at.line if each.created_at else 0,
        default=None,
    )
    related = tuple(
        (e.created_at, f"{e.display_name} is created here") for e in tensors if e.created_at and e is not last
    )
    shapes = shapes[0].upper() + shapes[1:]
    return Explanation(meaning=f"{shapes}.{location}", fix=_fix(error, tensors), tensor=last, related=related)


_FIX = "Print the shapes before this line, and use the same order of dimensions (batch, channel, ...) in both tensors."


# Explanations from the message alone, if the tensors are not available: pattern, meaning, fix.
_MESSAGES: tuple[tuple[str, str, str], ...] = (
    (
        r"mat1 and mat2 shapes cannot be multiplied \(\d+x(?P<got>\d+) and (?P<wanted>\d+)x\d+\)",
        "The input has {got} features, but the layer expects {wanted} (in_features of a linear layer).",
        "Build the layer with in_features={got}, or change the layers before it so that they return {wanted} features.",
    ),
    (
        r".*expected input\[(?P<shape>[^\]]*)\] to have (?P<wanted>\d+) channels, but got (?P<got>\d+)",
        "The convolution expects {wanted} channels, but the input of shape ({shape}) has {got}.",
        "Build the layer with in_channels={got}, or move the channels to the second position: (batch, channel, ...).",
    ),
    (
        r"Expected input batch_size \((?P<got>\d+)\) to match target batch_size \((?P<wanted>\d+)\)",
        "There are {got} predictions for {wanted} targets.",
        "Keep the batch dimension when you flatten, x.flatten(1), and pass one target per prediction.",
    ),
    (
        r"each tensor to be equal size, but got \[(?P<got>[^\]]*)\] at entry 0 and \[(?P<wanted>[^\]]*)\]",
        "Samples of one batch have different shapes: ({got}) and ({wanted}).",
        "Resize images in the dataset; pad sequences in a collate_fn (pad_sequence), and pass the model their lengths.",
    ),
)


def _explain_message(message: str) -> tuple[str, str]:
    """Return the meaning and the fix that follow from the numbers in the message."""
    for pattern, meaning, fix in _MESSAGES:
        if match := re.search(pattern, message):
            numbers = match.groupdict()
            return meaning.format(**numbers), fix.format(**numbers)
    return "The shapes do not match.", _FIX


def _main_operands(tensors: tuple[TensorDescription, ...]) -> list[TensorDescription]:
    """Return the inputs, and the first parameter of another shape."""
    inputs = [each for each in tensors if not each.name]
    other = [each for each in tensors if each.name and all(each.shape != i.shape for i in inputs)]
    return [*inputs[:4], *other[:1]]


def _fix(error: RaisedError, tensors: list[TensorDescription]) -> str:
    if "is invalid for input of size" in error.message:
        return "The product of the requested sizes must be the number of elements: x.flatten(1), x.reshape(len(x), -1)."
    shapes = [tuple(size for size in each.shape if size != 1) for each in tensors]
    if len(tensors) == 2 and shapes[0] == shapes[1]:
        longer, shorter = sorted(tensors, key=lambda each: -len(each.shape))
        dim = next((n for n, size in enumerate(longer.shape) if size == 1), -1)
        names = [
            each.expression if each.expression.isidentifier() else each.argument_name or "x"
            for each in (longer, shorter)
        ]
        return f"They differ by a dimension of size 1: {names[0]}.squeeze({dim}), or {names[1]}.unsqueeze({dim})."
    return _FIX


def _explain_layer(
    module: ModuleDescription, attribute: str, inputs: TensorDescription, error: RaisedError
) -> Explanation:
    expected, spatial = module.int_attributes[attribute], attribute == "in_channels"
    dim = -3 if spatial and module.class_name == "Conv2d" else -2 if spatial or len(inputs.shape) > 2 else -1
    dim = -1 if attribute in ("in_features", "input_size", "embed_dim") else dim
    got = inputs.shape[dim] if len(inputs.shape) >= -dim else None
    name = inputs.display_name.capitalize()
    shape = f"{inputs.display_name} has the shape {inputs.shape_text}"
    mismatch = f"{_module_name(module)} expects {attribute}={expected}, but {shape}"
    related = ((module.created_at, "the layer is created here"),) if module.created_at else ()
    if got is None or got == expected:
        return Explanation(meaning=f"{mismatch}.", fix=_FIX, tensor=inputs, related=related)
    if attribute == "in_features" and inputs.shape_text and math.prod(inputs.shape[1:]) == expected:
        fix = f"{name} has {expected} numbers per sample after flattening: call torch.flatten(x, 1) before this layer."
    elif expected in inputs.shape:
        fix = f"Another dimension has the size {expected}: if it is the right one, use transpose or permute."
    else:
        fix = f"Build the layer with {attribute}={got}, or change the layers before it so that they return {expected}."
    return Explanation(meaning=f"{mismatch}: {got} instead of {expected}.", fix=fix, tensor=inputs, related=related)


def _module_name(module: ModuleDescription) -> str:
    return f"{module}"[:1].upper() + f"{module}"[1:]


ERROR = KnownError(
    title="Tensor shapes do not match",
    exception_types=frozenset({"RuntimeError", "ValueError", "AssertionError"}),
    message_patterns=(
        r"mat1 and mat2 shapes cannot be multiplied",
        r"size mismatch, got ",
        r"The size of tensor a \(\d+\) must match the size of tensor b",
        r"Given groups=\d+, weight of size \[[^\]]*\], expected input\[[^\]]*\] to have \d+ channels",
        r"Expected \dD \(unbatched\) or \dD \(batched\) input to conv",
        r"Calculated padded input size per channel: ",
        r"running_(?:mean|var) should contain \d+ elements not \d+",
        r"Given normalized_shape=\[[^\]]*\], expected input with shape",
        r"shape '\[[^\]]*\]' is invalid for input of size \d+",
        r"input\.size\(-1\) must be equal to input_size",
        r"input has inconsistent input_size",
        r"was expecting embedding dimension of \d+, but got \d+",
        r"Expected size for first two dimensions of batch2 tensor to be",
        r"Expected input batch_size \(\d+\) to match target batch_size \(\d+\)",
        r"Target size \(torch\.Size\([^)]*\)\) must be the same as input size",
        r"Using a target size \(torch\.Size\([^)]*\)\) that is different to the input size",
        r"Sizes of tensors must match except in dimension \d+",
        r"stack expects each tensor to be equal size",
        r"0D or 1D target tensor expected",
        r"inconsistent tensor size, expected tensor",
    ),
    explain=explain,
)
