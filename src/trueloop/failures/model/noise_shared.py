"""A reparameterization draws too few random numbers, so several values or samples get the same noise.

What you see
    Samples of a VAE lie on a line through the mean, the decoder cannot use the dimensions independently, or a policy
    explores in one direction only: all its actions go up or down together.

Why it happens
    ``mean + std * eps`` needs one number for each value. ``eps`` with one number, one for each sample or one vector for
    the whole batch is broadcast without an error. ``Normal(0, 1).sample()`` returns a single number.

Fix
    Draw noise of the shape of the mean:

        eps = torch.randn_like(std)
        z = Normal(mean, std).rsample()

When this is fine
    - The mean is a single number, or a single sample is drawn.
    - The noise is shared on purpose, as one perturbation of all weights.

How it is detected
    Only the linter finds it, from the source code: ``mean + std * eps``, where the names say mean and standard
    deviation, the deviation is an ``exp`` or softplus, and ``eps`` is drawn with a size of 1, with the size of one
    sample, or with one number for each sample. Functions that choose an action for one state are left out.

References
    Kingma and Welling, "Auto-Encoding Variational Bayes", https://arxiv.org/abs/1312.6114
    torch.distributions.Normal, https://docs.pytorch.org/docs/stable/distributions.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import computed_from, origins
from trueloop.analysis.queries.reparameterisations import EMPTY, drawn_by, reparameterisations
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer
from trueloop.failures.failure import Failure, Rule, Severity, changed
from trueloop.failures.model.uniform_reparameterisation import FAILURE as UNIFORM

_FOR_ONE_STATE: Final = re.compile(r"(^|_)(act|action|actions|choose|select|explore|step|predict|infer|play)($|_)")
_FOR_BATCH: Final = re.compile(r"reparam|forward|encode|evaluate|sample", re.IGNORECASE)
_WIDTH: Final = re.compile(r"dim|latent|hidden|feature|units|action|z_size|nz$|size\(-?1\)|shape\[-?1\]", re.IGNORECASE)
_SPREADS: Final = frozenset(("exp", "exp_", "softplus", "Softplus"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each call that draws too few numbers for a reparameterization."""
    reported: set[int] = set()
    for node, _, spread, noise in reparameterisations(source):
        name = getattr(function_of(source, node), "name", "")
        call = drawn_by(source, noise) if _FOR_BATCH.search(name) else None
        if call is None or id(call) in reported or _FOR_ONE_STATE.search(name):
            continue
        what, calls = _shared_by(source, call), (e for e in computed_from(source, spread) if isinstance(e, ast.Call))
        if what and any(last_name(each.func) in _SPREADS for each in calls):
            reported.add(id(call))
            yield Hit(
                message=f"`{ast.unparse(call)}` draws {what}: the noise of a reparameterization must have the shape of "
                "the mean.",
                node=call,
                related=((node, "used here"),) if call.lineno != node.lineno else (),
            )


def _shared_by(source: SourceFile, call: ast.Call) -> str:
    """Return what a call draws too little of; "" if it may draw enough, or is no source of noise."""
    sizes = _sizes(source, call)
    match [integer(each) == 1 for each in sizes] if sizes is not None else None:
        case [] | [True] | [True, True]:
            return "one number for all values of all samples"
        case [False, True]:
            return "one number for all values of a sample"
        case [False] | [True, False] if sizes and _WIDTH.search(ast.unparse(sizes[-1])):
            return "one vector for all samples of the batch"
        case _:
            return ""


def _sizes(source: SourceFile, call: ast.Call) -> list[ast.expr] | None:
    """Return the sizes that a call gets, [] for a single number; None if they are unknown, or it draws no noise."""
    name = last_name(call.func)
    named = [each.value for each in call.keywords if each.arg in ("size", "sample_shape")]
    given = named or call.args[2 if name == "normal" else 0 :]
    if name == "sample" and isinstance(call.func, ast.Attribute):
        if not any(_is_of_one_number(each) for each in origins(source, call.func.value)):
            return None
    elif not given or not (name in ("randn", "normal") or name in EMPTY):
        return None
    if len(given) == 1 and isinstance(given[0], ast.Tuple | ast.List):
        return given[0].elts
    is_shape = len(given) == 1 and integer(given[0]) is None and not _WIDTH.search(ast.unparse(given[0]))
    return None if is_shape or any(isinstance(each, ast.Starred) for each in given) else given


def _is_of_one_number(node: ast.expr) -> bool:
    """Return True for ``Normal(0, 1)``."""
    is_normal = isinstance(node, ast.Call) and last_name(node.func) == "Normal" and len(node.args) == 2
    return is_normal and all(isinstance(each, ast.Constant) for each in node.args)  # type: ignore[attr-defined]


FAILURE = Failure(
    code="MDL043",
    title="A reparameterization shares its noise",
    severity=Severity.WARNING,
    bad=changed(UNIFORM.good, {"torch.randn_like(std)": "torch.randn(1)"}),
    good=UNIFORM.good,
    fix="Draw noise of the shape of the mean: torch.randn_like(std).",
    rule=Rule(
        required_words=("randn(|normal_(|.normal(|sample(", "exp(|exp_(|oftplus", "mu|mean|loc|m +|m+"), find=find
    ),
)
