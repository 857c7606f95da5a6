"""A variance is used as a standard deviation, or a standard deviation as a variance.

What you see
    Samples of the latent space are too wide or too narrow, the reconstruction stays blurred, and predicted intervals
    hold too many or too few of the values.

Why it happens
    ``exp(log_var)`` is the variance; the deviation is ``exp(0.5 * log_var)``. ``Normal``, ``torch.normal`` and the
    reparameterisation ``mu + eps * std`` need the deviation, the KL divergence and the Gaussian loss the variance. Both
    are positive numbers of one shape, so PyTorch raises no error.

Fix
    Halve the log-variance before the exponential, and pass what the function expects.

        std = torch.exp(0.5 * log_var)
        z = mu + eps * std
        loss = nn.functional.gaussian_nll_loss(mu, y, std ** 2)

When this is fine
    - The variable is the logarithm of a deviation, whatever its name, also in the loss: ``exp(2 * log_var)`` is the
      variance there.
    - The number is used in one place only, so that it has a consistent meaning, or in the same way in all places.
    - ``exp(log_var)`` is the variance of ``GaussianNLLLoss``, or the diagonal of a covariance.

How it is detected
    The sanitizer reads the KL divergence of a model, by its terms, from the graph of its sum with a reconstruction
    loss. It reports that noise is multiplied with the same exponential that the divergence takes as the variance.

    The linter finds it in the source code: a deviation is computed as ``exp`` of a variable, and another line takes the
    same variable as a log-variance: the formula of the KL divergence, or ``exp(0.5 * log_var)`` if it is called
    log-variance. Or the Gaussian loss gets a value that is called std, that is a root, or that the program also uses as
    a deviation: in ``Normal``, as a factor of noise, or in the half width ``1.96 * sigma``. Or one of these uses gets a
    value called variance that the program takes as a variance elsewhere, or that is a square. Values are followed
    through variables, parameters and the outputs of modules. Or noise is mixed in as
    ``a.sqrt() * x + (1 - a) * noise``, where the second factor has to be a root as well.

References
    Kingma and Welling, "Auto-Encoding Variational Bayes", 2014, arXiv:1312.6114
    torch.nn.GaussianNLLLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.GaussianNLLLoss.html
    torch.distributions.Normal, https://docs.pytorch.org/docs/stable/distributions.html
"""

import ast
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from trueloop.analysis.queries.deviations import deviations, stored_values
from trueloop.analysis.queries.method_chains import without_methods
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.queries.td_targets import product_factors
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix, dotted_name, unparse
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import DivergenceRead

_PART: Final = r"(?:log_?var|log_?variance|lnvar|logv|log_?sigma_?(?:2|sq|squared))"
_LOG_VARIANCE: Final = rf"\w*?{_PART}\w*"
_NAMED: Final = re.compile(_LOG_VARIANCE, re.IGNORECASE)
_OWNER: Final = r"(?:\w+\.)*"
_AS_VARIANCE: Final = re.compile(
    rf"(?:0?\.5 \* {_OWNER}{_LOG_VARIANCE}\b(?!\.exp)|\b{_LOG_VARIANCE} (?:/ 2|\* 0\.5)|"
    rf"\b{_LOG_VARIANCE}\.(?:mul|div)\(|1(?:\.0)? \+ {_OWNER}{_LOG_VARIANCE} -|exp\(-{_OWNER}{_LOG_VARIANCE}\)|"
    rf"/ (?:torch\.)?exp\({_LOG_VARIANCE}\)|/ {_LOG_VARIANCE}\.exp\(\)|- 1(?:\.0)? - {_OWNER}{_LOG_VARIANCE}\b)",
    re.IGNORECASE,
)
_AS_DEVIATION: Final = re.compile(rf"2(?:\.0)? \* {_OWNER}{_LOG_VARIANCE}|{_LOG_VARIANCE} \* 2", re.IGNORECASE)
_DIVERGENCE: Final = re.compile(
    rf"1(?:\.0)? \+ {_OWNER}(?P<one>\w+) - .*(?:exp\({_OWNER}(?P=one)\)|\b(?P=one)\.exp\(\))|"
    rf"(?:exp\({_OWNER}(?P<two>\w+)\)|\b(?P<three>\w+)\.exp\(\)).* - "
    rf"(?:1(?:\.0)? - {_OWNER}(?:(?P=two)|(?P=three))\b|{_OWNER}(?:(?P=two)|(?P=three)) - 1\b)"
)
"""The KL divergence from a standard normal distribution; its variable is a log-variance, whatever its name."""
_VARIANCE_NAME: Final = re.compile(
    r"(?<!log)(?<!log_)(?<!ln_)(?<!ln)(^|_)(var|variance|vars|variances)($|_|\d)|sigma_?(2|sq)|s2$|std_?(2|sq)"
    r"|^(pred|y|mu|out)var$|squared",
    re.IGNORECASE,
)
_STD_NAME: Final = re.compile(r"(?<!log)(?<!log_)(^|_)(std|stds|stdev|stddev|std_?dev|sd)($|_)", re.IGNORECASE)
_SHAPING: Final = frozenset(("view", "reshape", "unsqueeze", "expand", "gather", "to", "index_select"))
_unshaped: Final = partial(without_methods, methods=_SHAPING, items=True)
_ROOTS: Final = ("sqrt(", "sqrt(self.")


class Detector(BaseDetector):
    """Judges the noise in the code of a variational autoencoder."""

    def __init__(self) -> None:
        self._found = self._reported = False

    def on_divergence_read(self, event: DivergenceRead) -> Evidence | None:
        """Return evidence for the first noise that is multiplied with the variance."""
        self._found = True
        if self._reported or not event.samples_with_variance:
            return None
        self._reported = True
        return Evidence(
            message="The noise of the code is multiplied with the exponential that the KL divergence takes as the "
            "variance. The deviation is its square root: `exp(0.5 * log_var)`.",
            location=event.location,
        )

    def inconclusive(self) -> str:
        """Return a reason if no loss had a divergence."""
        return "" if self._found else "no loss was the sum of a KL divergence and a reconstruction loss"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the variances that are used as deviations, and the deviations that are used as variances."""
    yield from _exponentials(source)
    yield from _named_deviations(source)
    yield from _named_variances(source)
    yield from _mixtures(source)


def _mixtures(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``a.sqrt() * x + (1 - a) * noise``, whose second factor has to be the root of ``1 - a``."""
    for each in source.nodes_of(ast.BinOp):
        if not isinstance(each.op, ast.Add):
            continue
        for first, second in ((each.left, each.right), (each.right, each.left)):
            if len(product_factors(first)) != 2 or len(product_factors(second)) != 2:
                continue
            roots = {of for factor in product_factors(first) if (of := _root_of(factor))}
            rest = next((factor for factor in product_factors(second) if _one_minus(factor) in roots), None)
            if rest is not None:
                name = ast.unparse(rest)
                text = source.text.segment(rest)
                yield Hit(
                    message=f"`{name}` is a variance, but multiplies the noise: the other factor is a square root, so "
                    f"this one has to be the square root of `{name}`, too.",
                    node=each,
                    fix=Fix(
                        (source.text.replace(rest, f"({text}) ** 0.5"),), safe=False, description="Take the square root"
                    ),
                )
                break


def _root_of(node: ast.expr) -> str:
    """Return the variable whose square root an expression is; "" if it is none."""
    match _unshaped(node):
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch" | "np" | "math"), attr="sqrt"), args=[inner]):
            return dotted_name(_unshaped(inner))
        case ast.Call(func=ast.Attribute(value=inner, attr="sqrt"), args=[]):
            return dotted_name(_unshaped(inner))
        case ast.BinOp(left=inner, op=ast.Pow(), right=ast.Constant(value=0.5)):
            return dotted_name(_unshaped(inner))
        case _:
            return ""


def _one_minus(node: ast.expr) -> str:
    """Return ``a`` for ``1 - a``; "?" for everything else."""
    match _unshaped(node):
        case ast.BinOp(left=ast.Constant(value=1 | 1.0), op=ast.Sub(), right=inner):
            return dotted_name(_unshaped(inner)) or "?"
        case _:
            return "?"


def _exponentials(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``exp`` of a log-variance that is used as a deviation, if another line takes it as a log-variance."""
    uses = [
        (use, deviation, each, of)
        for use, deviation in (deviations(source) if "exp" in source.text.source else ())
        for each in stored_values(source, deviation)
        if (of := _exponential_of(each)) is not None
    ]
    text = "\n".join(unparse(each.tree) for each in source.modules) if uses else ""
    is_named = _AS_VARIANCE.search(text) and not _AS_DEVIATION.search(text)
    known = {name for found in _DIVERGENCE.finditer(text) for name in found.groups() if name}
    reported = set[int]()
    for use, deviation, each, of in uses:
        is_variance = last_name(of) in known or (is_named and _exponent(each) is not None)
        if is_variance and id(each) not in reported:
            reported.add(id(each))
            yield Hit(
                message=f"`{ast.unparse(each)}` is the variance, but is used as the standard deviation: the "
                f"deviation is `exp(0.5 * {ast.unparse(of)})`.",
                node=each,
                related=() if each is deviation else ((use, "used as the deviation here"),),
                fix=_halved(source, each, of),
            )


def _named_deviations(source: SourceFile) -> Iterator[Hit]:
    """Yield each Gaussian loss that gets a deviation as its variance."""
    losses = list(_losses(source))
    uses = [(use, each) for use, each in deviations(source) if last_name(each)] if losses else []
    for call, passed in losses:
        chain = list(origins(source, passed))
        names = [last_name(each) for each in chain if last_name(each)]
        if any(_VARIANCE_NAME.search(each) for each in names) or any(map(_is_variance, chain)):
            continue
        if any(f"{root}{each}" in source.text.source for each in names for root in _ROOTS):
            continue
        use = next((use for use, each in uses if last_name(each) in names or _is_same(source, each, chain)), None)
        is_deviation = any(_STD_NAME.search(each) for each in names) or any(map(_is_root, chain))
        if is_deviation or use is not None:
            text = source.text.segment(passed)
            edit = source.text.replace(passed, f"{text} ** 2" if isinstance(passed, ast.Name) else f"({text}) ** 2")
            yield Hit(
                message=f"`{ast.unparse(call.func)}` expects the variance, but `{ast.unparse(passed)}` is a standard "
                "deviation: pass its square.",
                node=call,
                related=((use, "used as the deviation here"),) if use is not None else (),
                fix=Fix((edit,), safe=False, description="Square the deviation"),
            )


def _is_same(source: SourceFile, node: ast.expr, chain: list[ast.expr]) -> bool:
    """Return True if an expression may have its value from one that another value comes from, such as an output."""
    known = {id(each) for each in chain}
    return any(id(each) in known for each in origins(source, node))


def _named_variances(source: SourceFile) -> Iterator[Hit]:
    """Yield each deviation that is called a variance, if the program also takes it as one."""
    variances = {last_name(each) for _, passed in _losses(source) for each in origins(source, passed)}
    reported = set[int]()
    for use, passed in deviations(source):
        name = last_name(passed)
        if not isinstance(passed, ast.Name | ast.Attribute) or not _VARIANCE_NAME.search(name) or id(use) in reported:
            continue
        chain = list(origins(source, passed))
        if any(map(_is_root, chain)) or any(_exponent(each) is not None for each in chain):
            continue
        is_taken_as_variance = name in variances or any(f"{root}{name}" in source.text.source for root in _ROOTS)
        if is_taken_as_variance or any(map(_is_variance, chain)):
            reported.add(id(use))
            yield Hit(
                message=f"`{ast.unparse(passed)}` is a variance, but is used as the standard deviation in "
                f"`{ast.unparse(use)}`: take its root.",
                node=use,
                fix=Fix(
                    (source.text.replace(passed, f"{source.text.segment(passed)} ** 0.5"),),
                    safe=False,
                    description="Take the root of the variance",
                ),
            )


def _losses(source: SourceFile) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield the calls of PyTorch's Gaussian loss, with the argument for the variance."""
    for call in source.all_calls:
        passed = [each.value for each in call.keywords if each.arg == "var"] or call.args[2:3]
        if passed and not isinstance(passed[0], ast.Starred) and _is_loss(source, call.func):
            yield call, passed[0]


def _is_loss(source: SourceFile, function: ast.expr) -> bool:
    if source.qualified_name(function) == "torch.nn.functional.gaussian_nll_loss":
        return True
    made = [each for each in origins(source, function) if isinstance(each, ast.Call)]
    return any(source.qualified_name(each.func) == "torch.nn.GaussianNLLLoss" for each in made)


def _is_variance(node: ast.expr) -> bool:
    """Return True for a square, ``x.var()`` or the exponential of a log-variance."""
    match node:
        case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=2)):
            return True
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            return ast.dump(left) == ast.dump(right)
        case ast.BinOp(op=ast.Add(), left=left):  # var + 1e-6
            return _is_variance(left)
        case ast.Call(func=ast.Attribute(attr="clamp" | "clamp_min" | "clip", value=inner)):
            return _is_variance(inner)
        case ast.Call(func=ast.Attribute(attr="square" | "var" | "pow" as method), args=arguments):
            return method != "pow" or [ast.unparse(each) for each in arguments[-1:]] == ["2"]
        case _:
            return _exponent(node) is not None


def _is_root(node: ast.expr) -> bool:
    """Return True for a square root, ``x.std()`` or the exponential of half a log-variance or of a log-deviation."""
    match node:
        case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=0.5)):
            return True
        case ast.Call(func=ast.Attribute(attr="sqrt" | "std")):
            return True
        case ast.Call(func=ast.Attribute(attr="exp", value=inner)):
            text = ast.unparse(node.args[0] if node.args else inner)
            return bool(
                re.search(r"0\.5 \*|\* 0\.5|/ 2\b|log_?std|log_?sigma(?!_?(2|sq))|log_?scale", text, re.IGNORECASE)
            )
        case _:
            return False


def _exponent(node: ast.expr) -> ast.expr | None:
    """Return x of ``x.exp()`` or ``torch.exp(x)`` if x is called a log-variance."""
    of = _exponential_of(node)
    return of if of is not None and _NAMED.fullmatch(last_name(of)) else None


def _exponential_of(node: ast.expr) -> ast.expr | None:
    """Return x of ``x.exp()`` or ``torch.exp(x)`` if x is a variable."""
    of: Any = None
    match node:
        case ast.Call(func=ast.Attribute(attr="exp", value=ast.Name(id="torch")), args=[argument]):
            of = argument
        case ast.Call(func=ast.Attribute(attr="exp", value=owner), args=[]):
            of = owner
        case _:
            pass
    return of if isinstance(of, ast.Name | ast.Attribute) else None


def _halved(source: SourceFile, call: ast.expr, of: ast.expr) -> Fix:
    half = f"0.5 * {source.text.segment(of)}"
    is_method = isinstance(call, ast.Call) and not call.args
    edit = source.text.replace(of, f"({half})" if is_method else half)
    return Fix((edit,), safe=False, description="Halve the log-variance")


RULE = Rule(
    required_words=("torch", "exp(|gaussian_nll_loss|GaussianNLLLoss|Normal(|torch.normal(|randn|sqrt&noise"),
    find=find,
)

BAD = """
import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 4)
        self.decoder = nn.Linear(2, 8)

    def forward(self, x):
        mu, log_var = self.encoder(x).chunk(2, dim=1)
        std = torch.exp(log_var)
        z = mu + torch.randn_like(std) * std
        return self.decoder(z), mu, log_var


torch.manual_seed(0)
x = torch.randn(128, 8)
model = Autoencoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(8):
    optimizer.zero_grad()
    output, mu, log_var = model(x)
    divergence = -0.5 * torch.mean(1 + log_var - mu.pow(2) - log_var.exp())
    loss = nn.functional.mse_loss(output, x) + divergence
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS021",
    title="Variance and standard deviation are confused",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"torch.exp(log_var)": "torch.exp(0.5 * log_var)"}),
    fix="Pass the variance or the deviation, whichever is expected; the deviation is exp(0.5 * log_var).",
    rule=RULE,
    detector=Detector,
)
