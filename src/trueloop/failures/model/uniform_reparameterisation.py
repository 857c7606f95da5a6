"""A VAE or a diffusion model draws its noise with ``rand_like`` (uniform) instead of ``randn_like`` (normal).

What you see
    Samples from the decoder are worse than reconstructions, and the latent space is shifted: the mean of the codes is
    not 0, although the KL divergence is small. Samples of a diffusion model are blurred and far from the data.

Why it happens
    ``mu + std * eps`` is a sample of a normal distribution only if ``eps`` is. ``torch.rand_like`` draws from 0 to 1:
    its mean is 0.5, so each code is shifted by half a standard deviation, and its spread is 3.5 times too small. The
    sampler of a diffusion model begins with normal noise, which such a training never shows to the model.

Fix
    Draw normal noise:

        eps = torch.randn_like(std)

When this is fine
    - The noise becomes another distribution by its inverse: ``-log(-log(u))`` for Gumbel, ``logit(u)`` for logistic.
    - Uniform noise is centred and used on purpose, as for quantisation: ``x + torch.rand_like(x) - 0.5``.

How it is detected
    Only the linter finds it, from the source code: ``mean + eps * std``, where ``eps`` is ``rand`` or ``rand_like`` and
    nothing else, the names say mean and standard deviation or log-variance, or the latter is an ``exp``. The same in
    the sum of an example and of noise that is multiplied by the root of one minus a share of the signal, also if the
    noise is an argument of the function with the sum, and in ``scheduler.add_noise(x, noise, t)``.

References
    Kingma and Welling, "Auto-Encoding Variational Bayes", https://arxiv.org/abs/1312.6114
    torch.rand_like, https://docs.pytorch.org/docs/stable/generated/torch.rand_like.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.queries.possible_values import origins, possible_values
from trueloop.analysis.queries.reparameterisations import drawn_by, operands, reparameterisations
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix
from trueloop.failures.failure import Failure, Rule, Severity, changed

_ROOT_OF_REST: Final = re.compile(
    r"sqrt_?(one_?minus|1_?m|om)|(sqrt\(|\*\* ?0\.5).*\b1(\.0?)? - |\b1(\.0?)? - .*(sqrt\(|\*\* ?0\.5)", re.IGNORECASE
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each call that draws uniform noise for a reparameterization or for a diffusion model."""
    seen = set[ast.Call]()
    for node, noise, what in _uses_of_noise(source):
        for value in (noise, *possible_values(source, noise)):
            call = drawn_by(source, value)
            if call is None or call in seen or ast.unparse(call.func) not in ("torch.rand", "torch.rand_like"):
                continue
            seen.add(call)
            yield Hit(
                message=f"`{ast.unparse(call)}` draws uniform numbers from 0 to 1, but {what} needs normal noise.",
                node=call,
                related=((node, "used here"),) if call.lineno != node.lineno else (),
                fix=_normal(source, call),
            )


def _uses_of_noise(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """Yield the sums and calls that need normal noise, with the noise and what they do."""
    for node, _, _, noise in reparameterisations(source):
        yield node, noise, "a reparameterization"
    for node in source.nodes_of(ast.BinOp):
        products = [
            e
            for pair in operands(node, ast.Add, ("", ""))
            for term in pair
            for e in operands(term, ast.Mult, ("mul", "mul_"))
        ]
        for noise, factor in (pair for each in products for pair in (each, each[::-1])):
            if any(_ROOT_OF_REST.search(ast.unparse(each)) for each in origins(source, factor, 2)):
                yield node, noise, "a diffusion model"
    for call in source.all_calls:
        match call:
            case ast.Call(func=ast.Attribute(attr="add_noise"), args=[_, noise, _]) if (
                called_function(source, call) is None
            ):
                yield call, noise, "a diffusion model"
            case _:
                pass


def _normal(source: SourceFile, call: ast.Call) -> Fix:
    edit = source.text.replace(call.func, f"torch.{last_name(call.func).replace('rand', 'randn')}")
    return Fix((edit,), safe=False, description="Draw normal noise")


RULE = Rule(required_words=("torch.rand(|torch.rand_like(",), find=find)

BAD = """
import torch
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(2, 8)

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, dim=1)
        std = torch.exp(0.5 * logvar)
        eps = torch.rand_like(std)
        return self.decoder(mu + eps * std), mu, logvar


torch.manual_seed(0)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    x = torch.randn(64, 8)
    optimizer.zero_grad()
    output, mu, logvar = model(x)
    loss = (output - x).pow(2).sum(1).mean() - 0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="MDL029",
    title="Noise is uniform where it has to be normal",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"torch.rand_like(std)": "torch.randn_like(std)"}),
    fix="Use torch.randn_like.",
    rule=RULE,
)
