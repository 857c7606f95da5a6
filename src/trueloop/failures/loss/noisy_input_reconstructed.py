"""A denoising autoencoder is trained to reproduce the noisy input instead of the clean one.

What you see
    The loss falls nicely, but the output is as noisy as the input: the model has learned to copy.

Why it happens
    The loss compares the output with the tensor that the model got. Copying the input is then the perfect answer, and
    nothing in the loss says what is noise. The clean tensor has the same shape, so nothing raises an error.

Fix
    Compare the output with the clean input.

        noisy = clean + 0.3 * torch.randn_like(clean)
        loss = F.mse_loss(model(noisy), clean)

When this is fine
    - The noise is not to be removed: it only makes discrete values continuous, and the clean ones are used no more.
    - The target is another noisy copy (Noise2Noise), or the noise itself, as in a diffusion model.

How it is detected
    Only the linter finds it: a variable is a tensor plus noise from ``randn``, or a tensor of which a random mask hides
    a part. A model gets this variable, and the reconstruction loss compares its output with the same variable, while
    the tensor without noise, which has another name, is compared with nothing. The noise may also come from ``dropout``
    or a function that is called after it. If the noisy tensor replaces the clean one under the same name, programs that
    speak of denoising or corrupted inputs are reported. Uniform noise, and variables called augmented or jittered,
    are not reported.

References
    Vincent et al., 2008, "Extracting and Composing Robust Features with Denoising Autoencoders", ICML
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.batch_loops import function_of, is_loss_call
from trueloop.analysis.queries.possible_values import origins, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_NOISE: Final = frozenset(("randn_like", "randn", "normal"))
_MASK: Final = frozenset(("rand_like", "rand", "bernoulli", "dropout"))
_ON_PURPOSE: Final = re.compile(r"aug|jitter|deq|unif", re.IGNORECASE)
_ADDING: Final = re.compile(r"^dropout$|(?<!de)nois[eyi]|corrupt", re.IGNORECASE)
"""Functions that add noise to their first argument."""
_DENOISING: Final = re.compile(r"denois|de_?noise|corrupt|noisy|noising", re.IGNORECASE)
_LOSSES: Final = frozenset((
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCELoss", "BCEWithLogitsLoss",
))  # fmt: skip


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loss that compares an output with the noisy input from which it is computed."""
    calls = {id(each.node) for each in source.ops(OpKind.MODEL_CALL)}
    for node in source.all_calls:
        if len(node.args) < 2 or not _is_reconstruction_loss(source, node):
            continue
        for output, target in (node.args[:2], node.args[1::-1]):
            clean = _clean(source, target) if isinstance(target, ast.Name) else ""
            is_replaced = clean == ast.unparse(target)
            is_compared = is_replaced or _is_compared(source, node, clean)
            if clean and _gets(source, output, ast.unparse(target), calls) and is_compared is is_replaced:
                edit = source.text.replace(target, clean)
                yield Hit(
                    message=f"`{ast.unparse(target)}` is `{clean}` with noise, and the output for it is compared with "
                    "itself: the model learns to keep the noise.",
                    node=node,
                    fix=None if is_replaced else Fix((edit,), safe=False, description="Compare with the clean input"),
                )
                break


def _is_reconstruction_loss(source: SourceFile, call: ast.Call) -> bool:
    names = [last_name(call.func), *(last_name(getattr(each, "func", None)) for each in origins(source, call.func, 3))]
    return not _LOSSES.isdisjoint(names) or is_loss_call(source, call)


def _clean(source: SourceFile, noisy: ast.Name) -> str:
    """Return the variable that gets noise, or of which a random mask hides a part; "" if there is none."""
    found = (_clean_in(source, noisy, value) for value in possible_values(source, noisy))
    return next((each for each in found if each), "")


def _clean_in(source: SourceFile, noisy: ast.Name, value: ast.expr) -> str:
    """Return the variable to which the value of a variable adds noise; "" if it adds none."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in ("clamp", "clip"):
        is_function = last_name(value.func.value) in ("torch", "np")
        value = value.args[0] if is_function and value.args else value.func.value
    match value:
        case ast.BinOp(left=ast.Name(id=clean), op=ast.Add(), right=added):
            makers = _NOISE
        case ast.BinOp(left=ast.Name(id=clean), op=ast.Mult(), right=added):
            makers = _MASK
        case ast.Call(args=[ast.Name(id=clean), *_]) if _ADDING.search(last_name(value.func)):
            makers, added = frozenset((last_name(value.func),)), value
        case _:
            return ""
    made = [last_name(call.func) for each in origins(source, added, 3) for call in nodes_in(each, ast.Call)]
    is_named = clean != noisy.id or source.mentions(_DENOISING)
    return clean if not makers.isdisjoint(made) and is_named and not _ON_PURPOSE.search(noisy.id) else ""


def _gets(source: SourceFile, output: ast.expr, noisy: str, calls: set[int]) -> bool:
    """Return True if an output is the result of a model call with the noisy variable."""
    return any(
        id(call) in calls and noisy in [dotted_name(each) for each in call.args]
        for value in origins(source, output, 4)
        for call in nodes_in(value, ast.Call)
    )


def _is_compared(source: SourceFile, loss: ast.Call, clean: str) -> bool:
    """Return True if the clean variable is used in the function for more than making the noisy one."""
    uses = [each for each in nodes_in(function_of(source, loss), ast.Call) if each is not loss]
    given = [dotted_name(each) for call in uses for each in (*call.args, *(key.value for key in call.keywords))]
    other = [
        call
        for call in uses
        if clean in map(dotted_name, call.args)
        and last_name(call.func) not in _SHAPES
        and not _ADDING.search(last_name(call.func))
    ]
    return clean in given and bool(other)


_SHAPES: Final = _NOISE | _MASK | {"zeros_like", "ones_like", "empty_like", "full_like", "size", "len"}
RULE: Final = Rule(
    required_words=(
        "backward(",
        "rand|normal(|bernoulli|dropout(|nois|corrupt",
        "mse|l1_|L1|uber|BCE|binary_cross|loss",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
data = torch.randn(400, 3) @ torch.randn(3, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
criterion = nn.MSELoss()
for step in range(60):
    clean = data[torch.randint(400, (64,))]
    noisy = clean + 0.5 * torch.randn_like(clean)
    optimizer.zero_grad()
    loss = criterion(model(noisy), noisy)
    loss.backward()
    optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="LOS061",
    title="A denoising model reproduces its noisy input",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"model(noisy), noisy": "model(noisy), clean"}),
    fix="Compare the output with the input without noise.",
    rule=RULE,
)
