"""The shapes of two tensors do not fit the operation.

Mostly the first linear layer after a ``flatten`` whose size was counted for other images, a channel dimension in the
wrong place, or a last batch that is smaller.
"""

from __future__ import annotations

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, ModuleDescription, RaisedError, TensorDescription

_EXPECTS = ("in_features", "in_channels", "num_features", "input_size", "embed_dim")


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation:
    """Name the module, what it expects and what it was given."""
    module = raised.running_module
    expects = next((name for name in _EXPECTS if module and name in module.int_attributes), None)
    given = next((each for each in raised.tensors if not each.name and not each.module_role), None)
    if module is not None and expects is not None and given is not None:
        return _into(module, expects, given, raised)
    seen = _two(raised.tensors)
    listed = ", ".join(f"{each.display_name} has the shape {each.shape_text}" for each in seen)
    where = f" That happened in {module}." if module is not None and module.path else ""
    if not listed:
        meaning, fix = _by_its_words(raised.message)
        return Explanation(meaning=f"{meaning}{where}", fix=fix)
    last = max(
        (e for e in seen if e.created_at), key=lambda each: each.created_at.line if each.created_at else 0, default=None
    )
    related = tuple((e.created_at, f"{e.display_name} is made here") for e in seen if e.created_at and e is not last)
    listed = listed[0].upper() + listed[1:]
    return Explanation(meaning=f"{listed}.{where}", fix=_fix(raised, seen), tensor=last, related=related)


_FIX = "Print the shapes before this line, and bring the two into one order of dimensions (batch, channel, ...)."


# What the message says by itself, where the tensors are not at hand: pattern, meaning, fix.
_SAID: tuple[tuple[str, str, str], ...] = (
    (
        r"mat1 and mat2 shapes cannot be multiplied \(\d+x(?P<got>\d+) and (?P<wanted>\d+)x\d+\)",
        "{got} numbers per row arrive at a matrix that takes {wanted}, in_features of a linear layer.",
        "Build the layer with in_features={got}, or change what comes before it so that {wanted} arrive.",
    ),
    (
        r".*expected input\[(?P<shape>[^\]]*)\] to have (?P<wanted>\d+) channels, but got (?P<got>\d+)",
        "The convolution takes {wanted} channels, and the input of shape ({shape}) has {got}.",
        "Build the layer with in_channels={got}, or bring the channels into second place: (batch, channel, ...).",
    ),
    (
        r"Expected input batch_size \((?P<got>\d+)\) to match target batch_size \((?P<wanted>\d+)\)",
        "There are {got} predictions for {wanted} targets.",
        "Keep the batch apart from what is flattened, x.flatten(1), and give one target for each prediction.",
    ),
    (
        r"each tensor to be equal size, but got \[(?P<got>[^\]]*)\] at entry 0 and \[(?P<wanted>[^\]]*)\]",
        "Samples of one batch differ in shape: ({got}) and ({wanted}).",
        "Bring them to one shape in the dataset, or pad them in a collate_fn.",
    ),
)


def _by_its_words(message: str) -> tuple[str, str]:
    """Return meaning and fix, as far as the numbers of the message tell."""
    for pattern, meaning, fix in _SAID:
        if found := re.search(pattern, message):
            numbers = found.groupdict()
            return meaning.format(**numbers), fix.format(**numbers)
    return "The shapes do not fit the operation.", _FIX


def _two(tensors: tuple[TensorDescription, ...]) -> list[TensorDescription]:
    """Take what was given, and the first parameter of another shape."""
    given = [each for each in tensors if not each.name]
    other = [each for each in tensors if each.name and all(each.shape != one.shape for one in given)]
    return [*given[:4], *other[:1]]


def _fix(raised: RaisedError, seen: list[TensorDescription]) -> str:
    if "is invalid for input of size" in raised.message:
        return "The sizes that are asked for have to multiply to what is there: x.flatten(1), or x.reshape(len(x), -1)."
    shapes = [tuple(size for size in each.shape if size != 1) for each in seen]
    if len(seen) == 2 and shapes[0] == shapes[1]:
        longer, shorter = sorted(seen, key=lambda each: -len(each.shape))
        place = next((n for n, size in enumerate(longer.shape) if size == 1), -1)
        names = [
            each.expression if each.expression.isidentifier() else each.argument_name or "x"
            for each in (longer, shorter)
        ]
        return f"They differ by a dimension of 1: {names[0]}.squeeze({place}), or {names[1]}.unsqueeze({place})."
    return _FIX


def _into(module: ModuleDescription, expects: str, given: TensorDescription, raised: RaisedError) -> Explanation:
    wanted, spatial = module.int_attributes[expects], expects == "in_channels"
    place = -3 if spatial and module.class_name == "Conv2d" else -2 if spatial or len(given.shape) > 2 else -1
    place = -1 if expects in ("in_features", "input_size", "embed_dim") else place
    got = given.shape[place] if len(given.shape) >= -place else None
    called = given.display_name.capitalize()
    what = f"{_called(module)} expects {expects}={wanted}, and {given.display_name} has the shape {given.shape_text}"
    related = ((module.created_at, "the layer is made here"),) if module.created_at else ()
    if got is None or got == wanted:
        return Explanation(meaning=f"{what}.", fix=_FIX, tensor=given, related=related)
    if expects == "in_features" and given.shape_text and _count(given.shape[1:]) == wanted:
        fix = f"{called} has {wanted} numbers per sample once it is flattened: torch.flatten(x, 1) before this layer."
    elif wanted in given.shape:
        fix = f"The {wanted} stands in another place of the shape: if that is it, move it with transpose or permute."
    else:
        fix = f"Build the layer with {expects}={got}, or change what comes before it so that {wanted} arrive."
    return Explanation(meaning=f"{what}: {got} where {wanted} belongs.", fix=fix, tensor=given, related=related)


def _called(module: ModuleDescription) -> str:
    return f"{module}"[:1].upper() + f"{module}"[1:]


def _count(shape: tuple[int, ...]) -> int:
    product = 1
    for each in shape:
        product *= each
    return product


ERROR = KnownError(
    title="Shapes that do not fit together",
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
