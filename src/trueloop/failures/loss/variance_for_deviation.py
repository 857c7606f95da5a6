"""The exponential of a log-variance is used as a standard deviation, without the factor 0.5.

What you see
    Samples of the latent space are too wide or too narrow, the reconstruction stays blurred, and predicted intervals
    hold too many or too few of the values.

Why it happens
    ``exp(log_var)`` is the variance; the deviation is ``exp(0.5 * log_var)``. ``Normal``, ``torch.normal`` and the
    reparameterisation ``mu + eps * std`` need the deviation, the KL divergence and the Gaussian loss the variance. Both
    are positive numbers of one shape, so PyTorch raises no error.

Fix
    Halve the log-variance before the exponential.

        std = torch.exp(0.5 * log_var)
        z = mu + eps * std

When this is fine
    - The variable is the logarithm of a deviation, whatever its name, also in the loss: ``exp(2 * log_var)`` is the
      variance there.
    - The number is used in one place only, so that it has a consistent meaning.
    - ``exp(log_var)`` is the variance of ``GaussianNLLLoss``, or the diagonal of a covariance.

How it is detected
    Only the linter finds it: a deviation is computed as ``exp`` of a variable called log-variance, and another line
    takes the same variable as a log-variance: ``exp(0.5 * log_var)``, or the formula of the KL divergence.

References
    Kingma and Welling, "Auto-Encoding Variational Bayes", 2014, arXiv:1312.6114
    torch.distributions.Normal, https://docs.pytorch.org/docs/stable/distributions.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name
from trueloop.failures.failure import Failure, Rule, Severity, changed

_PART: Final = r"(?:log_?var|log_?variance|lnvar|logv|log_?sigma_?(?:2|sq|squared))"
_LOG_VARIANCE: Final = rf"\w*?{_PART}\w*"
_MENTIONED: Final = re.compile(_PART, re.IGNORECASE)
_NAMED: Final = re.compile(_LOG_VARIANCE, re.IGNORECASE)
_OWNER: Final = r"(?:\w+\.)*"
_AS_VARIANCE: Final = re.compile(
    rf"(?:0?\.5 \* {_OWNER}{_LOG_VARIANCE}\b(?!\.exp)|\b{_LOG_VARIANCE} (?:/ 2|\* 0\.5)|"
    rf"\b{_LOG_VARIANCE}\.(?:mul|div)\(|1(?:\.0)? \+ {_OWNER}{_LOG_VARIANCE} -|exp\(-{_OWNER}{_LOG_VARIANCE}\)|"
    rf"/ (?:torch\.)?exp\({_LOG_VARIANCE}\)|/ {_LOG_VARIANCE}\.exp\(\)|- 1(?:\.0)? - {_OWNER}{_LOG_VARIANCE}\b)",
    re.IGNORECASE,
)
_AS_DEVIATION: Final = re.compile(rf"2(?:\.0)? \* {_OWNER}{_LOG_VARIANCE}|{_LOG_VARIANCE} \* 2", re.IGNORECASE)
_NOISE: Final = re.compile(r"randn|^eps|_eps$|epsilon|noise|normal", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``exp`` of a log-variance that is used as a deviation, if another line takes it as a log-variance."""
    text = ast.unparse(source.tree) if _MENTIONED.search(source.text.source) else ""
    if not _AS_VARIANCE.search(text) or _AS_DEVIATION.search(text):
        return
    reported = set[int]()
    for use, deviation in _deviations(source):
        for each in _values(source, deviation):
            of = _exponent(each)
            if of is not None and id(each) not in reported:
                reported.add(id(each))
                yield Hit(
                    message=f"`{ast.unparse(each)}` is the variance, but is used as the standard deviation: the "
                    f"deviation is `exp(0.5 * {ast.unparse(of)})`.",
                    node=each,
                    related=() if each is deviation else ((use, "used as the deviation here"),),
                    fix=_halved(source, each, of),
                )


def _deviations(source: SourceFile) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Yield the expressions that are used as deviations: of a normal distribution, or as a factor of noise."""
    for call in source.all_calls:
        if last_name(call.func) in ("Normal", "LogNormal") or dotted_name(call.func) == "torch.normal":
            named = [each.value for each in call.keywords if each.arg in ("scale", "std")]
            yield from ((call, each) for each in (*call.args[1:2], *named))
    for node in source.nodes_of(ast.BinOp):
        if isinstance(node.op, ast.Add):
            for product in (node.left, node.right):
                yield from ((node, each) for each in _factors_of_noise(source, product))


def _factors_of_noise(source: SourceFile, product: ast.expr) -> Iterator[ast.expr]:
    match product:
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            pairs = [(left, right), (right, left)]
        case ast.Call(func=ast.Attribute(attr="mul", value=left), args=[right]):
            pairs = [(left, right), (right, left)]
        case _:
            return
    yield from (factor for factor, other in pairs if _is_noise(source, other))


def _is_noise(source: SourceFile, node: ast.expr) -> bool:
    called = last_name(node.func) if isinstance(node, ast.Call) else last_name(node)
    return bool(_NOISE.search(called)) or any(
        isinstance(each, ast.Call) and _NOISE.search(last_name(each.func)) for each in _values(source, node)
    )


def _values(source: SourceFile, node: ast.expr) -> list[ast.expr]:
    """Return what is assigned to a variable; the expression itself if it is none."""
    if not isinstance(node, ast.Name):
        return [node]
    return assigned_in(function_of(source, node), node.id)


def _exponent(node: ast.expr) -> ast.expr | None:
    """Return x of ``x.exp()`` or ``torch.exp(x)`` if x is called a log-variance."""
    of: Any = None
    match node:
        case ast.Call(func=ast.Attribute(attr="exp", value=ast.Name(id="torch")), args=[argument]):
            of = argument
        case ast.Call(func=ast.Attribute(attr="exp", value=owner), args=[]):
            of = owner
        case _:
            pass
    return of if isinstance(of, ast.Name | ast.Attribute) and _NAMED.fullmatch(last_name(of)) else None


def _halved(source: SourceFile, call: ast.expr, of: ast.expr) -> Fix:
    half = f"0.5 * {source.text.segment(of)}"
    is_method = isinstance(call, ast.Call) and not call.args
    edit = source.text.replace(of, f"({half})" if is_method else half)
    return Fix((edit,), safe=False, description="Halve the log-variance")


RULE = Rule(required_words=("exp(", "torch", "og"), find=find)

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
    title="Exponential of the log-variance is used as the deviation",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"torch.exp(log_var)": "torch.exp(0.5 * log_var)"}),
    fix="Compute the standard deviation as exp(0.5 * log_var).",
    rule=RULE,
)
