"""The shapes of two tensors do not fit the operation.

Mostly the first linear layer after a ``flatten`` whose size was counted for other images, a channel dimension in the
wrong place, or a last batch that is smaller.
"""

from __future__ import annotations

import re

from trueloop.ground.raised import Explanation, KnownError, ModuleSeen, Raised, TensorSeen

_EXPECTS = ("in_features", "in_channels", "num_features", "input_size", "embed_dim")


def explain(raised: Raised, match: re.Match[str]) -> Explanation:
    """Name the module, what it expects and what it was given."""
    module = raised.module
    expects = next((name for name in _EXPECTS if module and name in module.numbers), None)
    given = next((each for each in raised.tensors if not each.name and not each.held), None)
    if module is not None and expects is not None and given is not None:
        return _into(module, expects, given, raised)
    listed = ", ".join(f"{each.called} has the shape {each.size}" for each in raised.tensors)
    where = f" That happened in {module}." if module is not None and module.path else ""
    if not listed:
        return Explanation(meaning=f"The shapes do not fit the operation.{where}", fix=_FIX)
    return Explanation(meaning=f"{listed[0].upper()}{listed[1:]}.{where}", fix=_FIX, made=_last_made(raised))


_FIX = "Print the shapes before this line, and bring the two into one order of dimensions (batch, channel, ...)."


def _into(module: ModuleSeen, expects: str, given: TensorSeen, raised: Raised) -> Explanation:
    wanted, spatial = module.numbers[expects], expects == "in_channels"
    place = -3 if spatial and module.kind == "Conv2d" else -2 if spatial or len(given.shape) > 2 else -1
    place = -1 if expects in ("in_features", "input_size", "embed_dim") else place
    got = given.shape[place] if len(given.shape) >= -place else None
    called = given.called.capitalize()
    what = f"{_called(module)} expects {expects}={wanted}, and {given.called} has the shape {given.size}"
    related = ((module.made_at, "the layer is made here"),) if module.made_at else ()
    if got is None or got == wanted:
        return Explanation(meaning=f"{what}.", fix=_FIX, made=given, related=related)
    if expects == "in_features" and given.size and _count(given.shape[1:]) == wanted:
        fix = f"{called} has {wanted} numbers per sample once it is flattened: torch.flatten(x, 1) before this layer."
    elif wanted in given.shape:
        fix = "The dimensions are in another order than the layer's: move this one there with transpose or permute."
    else:
        fix = f"Build the layer with {expects}={got}, or bring {given.called} to {wanted} there."
    return Explanation(meaning=f"{what}: {got} where {wanted} belongs.", fix=fix, made=given, related=related)


def _called(module: ModuleSeen) -> str:
    return f"`{module.path}` ({module.kind}) of {module.model}" if module.path else f"The {module.kind}"


def _count(shape: tuple[int, ...]) -> int:
    product = 1
    for each in shape:
        product *= each
    return product


def _last_made(raised: Raised) -> TensorSeen | None:
    """Take the one whose line is nearest before the failing one: that is where the shape was given last."""
    made = [each for each in raised.tensors if each.made_at is not None]
    return max(made, key=lambda each: each.made_at.line if each.made_at else 0, default=None)


ERROR = KnownError(
    title="Shapes that do not fit together",
    types=frozenset({"RuntimeError", "ValueError", "AssertionError"}),
    texts=(
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
