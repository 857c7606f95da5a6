"""The critic of a Wasserstein GAN ends in a sigmoid, so its scores are bounded.

What you see
    The critic's loss stays near -1 or 0 and says nothing about the samples; the generator gets small gradients, learns
    slowly, or stops.

Why it happens
    The discriminator of a GAN returns a probability, the critic of a Wasserstein GAN any number: the loss is a plain
    difference of mean scores. With a sigmoid at the end, the scores of real and generated samples are soon 1 and 0,
    where the sigmoid is flat. A gradient penalty for a slope of 1 cannot be met then.

Fix
    Return the result of the last layer.

        critic = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))  # no nn.Sigmoid()

When this is fine
    - The loss takes the logarithm of the output, or is a binary cross-entropy or a mean squared error with labels.
    - The sigmoid is applied only for a display.

How it is detected
    Only the linter finds it, from the source code: a loss that contains two scores of one network with opposite signs,
    without a logarithm or another function around them, where the network ends in a sigmoid, in a program with a
    gradient penalty, clipped weights or a Wasserstein loss by name.

References
    Arjovsky, Chintala and Bottou, "Wasserstein GAN", 2017, arXiv:1701.07875
    martinarjovsky/WassersteinGAN, https://github.com/martinarjovsky/WassersteinGAN
"""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.activations import SIGMOID, VIEWS, remove_activation_fix
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.signed_terms import EXTREMA, Term, jointly_minimised_terms, minimised_terms
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.failures.failure import Failure, Rule, Severity, changed
from trueloop.failures.loss.players_pull_alike import FAILURE as PLAYERS
from trueloop.failures.loss.players_pull_alike import scores_of

_WASSERSTEIN: Final = re.compile(r"wasserstein|wgan|gradient_?penalty|\bgp\b|clamp_\(|n_?critic|critic_iter", re.I)
_CURVED: Final = frozenset(
    (*EXTREMA, "log", "logsigmoid", "sigmoid", "softplus", "relu", "softmax", "clamp", "clamp_min")
)
"""Functions around a score with which the loss is not the plain difference of a Wasserstein GAN."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each sigmoid at the end of a network whose mean scores are subtracted."""
    if not source.mentions(_WASSERSTEIN):
        return
    outputs = {id(each.node): each.result for each in source.ops(OpKind.MODEL_CALL)}
    reported: set[int] = set()
    for terms in (*minimised_terms(source), *jointly_minimised_terms(source)):
        for score in _differences(source, terms):
            output = outputs.get(id(score))
            origin = output.origin(VIEWS) if output is not None else None
            if origin is not None and origin.name in SIGMOID and id(origin.node) not in reported:
                reported.add(id(origin.node))
                yield Hit(
                    message=f"The critic ends in a sigmoid, but its loss contains the plain score "
                    f"`{ast.unparse(score)}`: between 0 and 1, the scores soon reach the flat ends of the sigmoid.",
                    node=origin.node,
                    related=((score, "a score in the loss"),),
                    fix=remove_activation_fix(source, origin, "sigmoid"),
                )


def _differences(source: SourceFile, terms: Sequence[Term]) -> Iterator[ast.Call]:
    """Yield the scores in a loss that contains another score of the network with the opposite sign."""
    curved = [e.node for e in terms if isinstance(e.node, ast.Call) and last_name(e.node.func) in _CURVED]
    if any(getattr(function_of(source, each), "name", "") != "forward" for each in curved):
        return
    scores = [each for each in scores_of(source, terms) if each.term.node is each.call]
    signs = {(each.network, each.term.sign) for each in scores}
    yield from (each.call for each in scores if (each.network, -each.term.sign) in signs)


FAILURE = Failure(
    code="LOS074",
    title="The critic of a Wasserstein GAN ends in a sigmoid",
    severity=Severity.WARNING,
    bad=changed(PLAYERS.good, {"nn.Linear(32, 1))": "nn.Linear(32, 1), nn.Sigmoid())"}),
    good=PLAYERS.good,
    fix="Return the result of the critic's last layer.",
    rule=Rule(required_words=("igmoid", "backward|training_step", "mean(|sum("), find=find),
)
