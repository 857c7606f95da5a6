"""The logarithm of a standard deviation is used as the deviation itself.

What you see
    Samples are far too narrow or too wide, the policy explores hardly at all, or ``Normal`` raises a ValueError only
    when the logarithm becomes negative during training.

Why it happens
    Networks predict ``log_std`` or ``log_var`` because it may be any number. ``Normal`` and ``mu + eps * std`` expect
    the positive deviation. Before the logarithm is negative, every number is plausible, and the product with noise
    accepts negative numbers as well.

Fix
    Take the exponential first.

        distribution = Normal(mu, log_std.exp())
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * log_var)

When this is fine
    - The variable has its value from ``exp`` or ``softplus``, whatever its name.
    - The value is itself a logarithm, so that the distribution is one of logarithms: ``LogNormal``, or a location that
      is called a logarithm, too.

How it is detected
    Only the linter finds it: a value that is called the logarithm of a deviation, scale or variance, and in which
    nothing makes it positive, is the scale of ``Normal`` or ``Laplace``, the deviation of ``torch.normal``, or the
    factor of noise in a sum. Values are followed through variables, attributes, parameters and layers.

References
    torch.distributions.Normal, https://docs.pytorch.org/docs/stable/distributions.html
    Kingma and Welling, "Auto-Encoding Variational Bayes", 2014, arXiv:1312.6114
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.deviations import deviations
from trueloop.analysis.queries.method_chains import without_methods
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_LOGARITHM: Final = re.compile(r"(^|_)(log|ln)_?(std|sigma|sig|scale|dev|sd|var|variance)", re.IGNORECASE)
_VARIANCE: Final = re.compile(r"(log|ln)_?(var|sigma_?(2|sq))", re.IGNORECASE)
_CLAMPING: Final = ("clamp", "clip")
_SHAPING: Final = frozenset((
    "expand", "expand_as", "clamp", "clip", "unsqueeze", "squeeze", "view", "reshape", "to", "repeat", "float",
))  # fmt: skip
_POSITIVE: Final = re.compile(r"exp\b|exp\(|exp_\(|softplus|sigmoid|sqrt|square|elu\(|abs\(|pow\(", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each logarithm that is used as a deviation."""
    reported = set[int]()
    for use, scale in (*deviations(source), *_laplace(source)):
        if not isinstance(use, ast.Call) and not (isinstance(use, ast.BinOp) and isinstance(use.op, ast.Add)):
            continue
        name = _logarithm(source, scale)
        if name and id(scale) not in reported and not _is_of_logarithms(use):
            reported.add(id(scale))
            yield _hit(source, use, scale, name)


def _laplace(source: SourceFile) -> Iterator[tuple[ast.AST, ast.expr]]:
    for call in source.all_calls:
        if last_name(call.func) in ("Laplace", "Cauchy"):
            named = [each.value for each in call.keywords if each.arg == "scale"]
            yield from ((call, each) for each in (*call.args[1:2], *named))


def _logarithm(source: SourceFile, scale: ast.expr) -> str:
    """Return the name by which a scale is a logarithm; "" if it is none, or if something makes it positive."""
    found = ""
    for each in origins(source, scale):
        value = without_methods(each, _SHAPING, _CLAMPING)
        name = last_name(value.func if isinstance(value, ast.Call) else value)
        if isinstance(value, ast.Name | ast.Attribute | ast.Subscript | ast.Call) and _LOGARITHM.search(name):
            found = found or name
        if isinstance(value, ast.Call):  # a layer, such as self.log_std(h)
            values = [value, *origins(source, value.func)]
        else:
            values = [value, *origins(source, value)] if value is not each else [value]
        if any(_POSITIVE.search(ast.unparse(each)) for each in values):
            return ""
    return found


def _is_of_logarithms(use: ast.Call | ast.BinOp) -> bool:
    """Return True for ``LogNormal``, and for a location that is called a logarithm."""
    if isinstance(use, ast.BinOp):
        locations = [each for each in (use.left, use.right) if isinstance(each, ast.Name | ast.Attribute)]
    else:
        locations = [*use.args[:1], *(each.value for each in use.keywords if each.arg in ("loc", "mean"))]
    is_named = any("log" in last_name(e).lower() for each in locations for e in nodes_in(each, ast.Name, ast.Attribute))
    return is_named or (isinstance(use, ast.Call) and last_name(use.func) == "LogNormal")


def _hit(source: SourceFile, use: ast.AST, scale: ast.expr, name: str) -> Hit:
    text = source.text.segment(scale)
    is_simple = isinstance(scale, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    text = text if is_simple else f"({text})"
    value = f"(0.5 * {text}).exp()" if _VARIANCE.search(name) else f"{text}.exp()"
    return Hit(
        message=f"`{ast.unparse(scale)}` is the logarithm of the deviation, by the name `{name}`, but "
        f"`{ast.unparse(use)}` needs the deviation: `{value}`.",
        node=scale,
        fix=Fix((source.text.replace(scale, value),), safe=False, description="Take the exponential"),
    )


RULE: Final = Rule(
    required_words=(
        "log_|logstd|logvar|logsigma|ln_|logscale",
        "Normal(|torch.normal(|randn|eps|noise|Laplace(",
        "torch",
    ),
    find=find,
    depends_on_users=True,
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
        mu, log_std = self.encoder(x).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * log_std
        return self.decoder(z), mu, log_std


torch.manual_seed(0)
x = torch.randn(128, 8)
model = Autoencoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(8):
    optimizer.zero_grad()
    output, mu, log_std = model(x)
    divergence = (0.5 * (mu.pow(2) + (2 * log_std).exp() - 1) - log_std).mean()
    loss = nn.functional.mse_loss(output, x) + divergence
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS066",
    title="Logarithm of a deviation is used as the deviation",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"torch.randn_like(mu) * log_std": "torch.randn_like(mu) * log_std.exp()"}),
    fix="Take the exponential of the logarithm before it is used as a deviation.",
    rule=RULE,
)
