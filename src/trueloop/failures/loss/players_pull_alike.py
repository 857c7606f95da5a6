"""The generator or the actor lowers the score that it shall raise, because its loss lacks a minus or has one too many.

What you see
    The generator makes worse samples with every step, and the critic's loss falls without limit. Or the actor's loss
    falls and the return falls with it, to the worst one possible.

Why it happens
    A Wasserstein critic that minimises ``-(D(real) - D(fake))`` lowers its score for generated samples; the generator
    shall raise it, so it minimises ``-D(fake)``. In the same way, a critic of an actor learns the return, which the
    actor shall raise: it minimises ``-Q(s, actor(s))``. With the other sign the shapes are the same. In a GAN with
    binary cross-entropy, the generator's samples get the label of real ones in its own loss.

Fix
    Let the second network pull against the first, or towards a higher return.

        critic_loss = D(fake).mean() - D(real).mean()
        generator_loss = -D(G(noise)).mean()

        actor_loss = -critic(states, actor(states)).mean()

When this is fine
    - Both losses have the opposite signs: the critic scores generated samples high, and the generator lowers that.
    - The critic learns a cost, which the actor shall lower.
    - A gradient reversal layer, ``maximize=True``, or a minus before ``backward()`` turns the sign.

How it is detected
    Only the linter finds it. It follows the values of ``backward()`` to the scores of one network, and counts the
    minuses: a loss with the scores of real and generated samples in opposite signs, and a loss with the score of
    generated samples alone in the same sign. In a binary cross-entropy, the label is the sign: zeros or ones. Softplus,
    sigmoid and logarithm keep it. Or a network that is trained towards a target with a reward, and another loss that
    contains its value for another network's output with a plus.

References
    Arjovsky et al., "Wasserstein GAN", 2017, arXiv:1701.07875
    Lillicrap et al., "Continuous control with deep reinforcement learning", 2015, arXiv:1509.02971
"""

import ast
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from trueloop.analysis.project import Module
from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.possible_values import possible_values, unpacked_call
from trueloop.analysis.queries.signed_terms import Term, jointly_minimised_terms, may_ascend, minimised_terms
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_GENERATED: Final = re.compile(r"fake|(^|_)gen(_|$|erat)|synth|imposter", re.IGNORECASE)
_REWARD: Final = re.compile(r"(^|_)(r|rs|rews?|rewards?|rets?|returns?|td_target)(_|$|\d)", re.IGNORECASE)
_COST: Final = re.compile(r"cost|penal|regret|energy|lyapunov", re.IGNORECASE)
_REGRESSION: Final = re.compile(
    r"mse|l1_?loss|huber|criterion|loss_?fn|(^|_)loss(_fn|_func)?$|MSELoss|SmoothL1", re.IGNORECASE
)
_BINARY: Final = re.compile(r"bce|binary_cross_entropy|BCE|criterion|adversarial_loss|loss_?fn|gan_loss", re.IGNORECASE)
_ZEROS: Final = re.compile(r"zeros|full(_like)?\([^()]*(\([^()]*\))?[^()]*, 0(\.0*)?\)|fill_\(0(\.0*)?\)")
_ONES: Final = re.compile(
    r"ones|full(_like)?\([^()]*(\([^()]*\))?[^()]*, (1|0\.[5-9]\d*)(\.0*)?\)|fill_\((1|0\.[5-9]\d*)(\.0*)?\)"
)
"""Labels of generated and of real samples."""
_METHODS: Final = re.compile(r"(\w+)\.(?:parameters|train|eval|to|cuda|apply|zero_grad|load_state_dict|state_dict)\(")
_MAX_NODES: Final = 400


class Score(NamedTuple):
    """A term of a loss that is a call of a network."""

    term: Term
    call: ast.Call
    network: frozenset[str]
    """The names in what is called: {"critic", "Q1"} for ``self.critic.Q1(x)``."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loss with a score that it shall raise, but lowers."""
    if may_ascend(source):
        return
    losses = (*jointly_minimised_terms(source), *minimised_terms(source))
    scores = [list(scores_of(source, each)) for each in losses]
    reported: set[int] = set()
    for hit, call in (*_generators(source, scores), *_actors(source, losses, scores)):
        if id(call) not in reported:
            reported.add(id(call))
            yield hit


def scores_of(source: SourceFile, terms: Sequence[Term]) -> Iterator[Score]:
    """Yield the scores of networks in a sum, with their signs."""
    for term in terms:
        call = term.node
        if isinstance(call, ast.Call) and call.args and is_network(source, call):
            yield Score(term, call, network_names(call))
        match call:
            case ast.Call(func=func, args=[ast.Call() as score, label]) if _BINARY.search(ast.unparse(func)):
                sign = _sign_of_label(source, label) if score.args and is_network(source, score) else 0
                if sign:
                    yield Score(term._replace(sign=sign * term.sign), score, network_names(score))
            case _:
                pass


def _sign_of_label(source: SourceFile, label: ast.expr) -> int:
    """Return 1 for a label of zeros, as the loss then lowers the score, -1 for ones, and 0 for other labels."""
    texts = [ast.unparse(each) for each in possible_values(source, label)] or [ast.unparse(label)]
    is_zero, is_one = (all(pattern.search(each) for each in texts) for pattern in (_ZEROS, _ONES))
    return 0 if is_zero == is_one else 1 if is_zero else -1


def network_names(call: ast.Call) -> frozenset[str]:
    """Return the names in what is called: {"critic", "Q1"} for ``self.critic.Q1(x)``."""
    names = {last_name(each) for each in nodes_in(call.func, ast.Name, ast.Attribute)}
    return frozenset(names - {"self", "forward", "module"})


def is_network(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a call of something whose parameters, mode or device the program uses."""
    return not network_names(call).isdisjoint(_owners_of_methods(source))


@lru_cache(maxsize=1)
def _owners_of_methods(source: SourceFile) -> frozenset[str]:
    """Return the names in a file of which the program calls methods as modules have them."""
    return frozenset().union(*map(_owners_in, source.modules)) - {"torch", "F", "nn", "np"}


@lru_cache(maxsize=64)
def _owners_in(module: Module) -> frozenset[str]:
    return frozenset(_METHODS.findall(module.text.source))


def _generators(source: SourceFile, losses: list[list[Score]]) -> Iterator[tuple[Hit, ast.Call]]:
    """Yield each generator loss that has the sign of the critic's loss for generated samples."""
    for critic in losses:
        for fake in critic:
            reals = [e for e in critic if e.network == fake.network and e.term.sign == -fake.term.sign]
            fakes = [e for e in critic if e.network == fake.network and e.term.sign == fake.term.sign]
            makers = _makers(source, fake)
            if not reals or any(_is_made_by(source, each, makers) for each in reals):
                continue
            if not makers or not all(_is_made_by(source, each, makers) for each in fakes):
                continue
            known = {id(each.call) for each in critic}
            for other in losses:
                own = [e for e in other if e.network == fake.network and id(e.call) not in known]
                if own and len(own) == len([e for e in other if e.network == fake.network]):
                    yield from _judged(source, own, fake, makers)


def _judged(
    source: SourceFile, own: list[Score], fake: Score, makers: frozenset[str]
) -> Iterator[tuple[Hit, ast.Call]]:
    is_detached = any(".detach()" in ast.unparse(each.call) for each in own)
    if not all(_may_be_one_network(source, each.call, fake.call) for each in own):
        return
    if is_detached or any(each.term.sign != fake.term.sign or not _is_made_by(source, each, makers) for each in own):
        return
    score = own[0]
    verb = "lower" if fake.term.sign > 0 else "raise"
    opposite = "raise" if fake.term.sign > 0 else "lower"
    message = (
        f"This loss and that of the critic both {verb} `{ast.unparse(score.call)}`: the generator shall {opposite} the "
        "score of its samples."
    )
    related = ((fake.call, f"the critic {verb}s the score of generated samples here"),)
    yield Hit(message=message, node=score.call, related=related), score.call


def _may_be_one_network(source: SourceFile, first: ast.Call, second: ast.Call) -> bool:
    """Return False for ``self.D`` in the methods of two classes, such as two trainers."""
    if not all(ast.unparse(each.func).startswith("self.") for each in (first, second)):
        return True
    owners = [enclosing_definition(source, each, ast.ClassDef) for each in (first, second)]
    return owners[0] is owners[1]


def _makers(source: SourceFile, score: Score) -> frozenset[str]:
    """Return the names of networks that made the input of a score, and "" if only its name says that one did."""
    found: set[str] = set()
    for node in contents(source, score.call.args):
        if isinstance(node, ast.Call) and is_network(source, node) and not network_names(node) & score.network:
            found |= network_names(node)
        if isinstance(node, ast.Name | ast.Attribute) and _GENERATED.search(last_name(node)):
            found.add("")
    return frozenset(found)


def _is_made_by(source: SourceFile, score: Score, makers: frozenset[str]) -> bool:
    return bool(_makers(source, score) & makers)


def contents(source: SourceFile, nodes: Sequence[ast.expr], depth: int = 4) -> list[ast.AST]:
    """Return the nodes in expressions, and in the values of the variables that they read, each of them once."""
    return list(islice(_all_contents(source, nodes, depth, set()), _MAX_NODES))


def _all_contents(source: SourceFile, nodes: Sequence[ast.expr], depth: int, seen: set[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        for each in walk(node) if node not in seen else ():
            seen.add(each)
            yield each
            if depth and isinstance(each, ast.Name | ast.Attribute):
                call = unpacked_call(source, each)
                values = [*possible_values(source, each), *([call] if call else [])]
                yield from _all_contents(source, values, depth - 1, seen)


def _actors(
    source: SourceFile, losses: Sequence[Sequence[Term]], scores: list[list[Score]]
) -> Iterator[tuple[Hit, ast.Call]]:
    """Yield each actor loss that lowers the value of a critic which learns returns."""
    if not any(each.term.sign > 0 for own in scores for each in own):
        return
    regressions = [list(_regressions(source, each)) for each in losses]
    learnt = [network for several in regressions for network, is_return in several if is_return]
    costs = [network for several in regressions for network, is_return in several if not is_return]
    for own, regressed in zip(scores, regressions, strict=True):
        for score in own:
            is_critic = any(score.network & each for each in learnt)
            is_regressed = any(score.network & each for each, _ in regressed)
            has_other_sign = any(e.network == score.network and e.term.sign < 0 for e in own)
            if not is_critic or is_regressed or has_other_sign or any(score.network & each for each in costs):
                continue
            actors = _makers(source, score) - {""}
            if score.term.sign > 0 and actors and not _COST.search(" ".join(score.network)):
                message = (
                    f"This loss contains `{ast.unparse(score.call)}` without a minus: the actor is trained to choose "
                    "the actions with the lowest return."
                )
                yield Hit(message=message, node=score.call), score.call


def _regressions(source: SourceFile, terms: Sequence[Term]) -> Iterator[tuple[frozenset[str], bool]]:
    """Yield the networks that a loss trains towards a target, and whether the target is a return."""
    for term in terms:
        sides = _sides(term.node)
        for value, target in (sides, sides[::-1]) if sides else ():
            of_value = contents(source, [value], 3)
            networks = [
                network_names(each) for each in of_value if isinstance(each, ast.Call) and is_network(source, each)
            ]
            of_target = contents(source, [target], 3)
            names = [last_name(each) for each in of_target if isinstance(each, ast.Name | ast.Attribute)]
            names += [str(each.value) for each in of_target if isinstance(each, ast.Constant)]
            if networks and any(map(_REWARD.search, names)):
                negated = [e for e in of_target if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub)]
                is_negative = any(_REWARD.search(last_name(each.operand)) for each in negated)
                yield networks[0], not is_negative and not any(map(_COST.search, names))


def _sides(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Return both sides of ``mse_loss(a, b)`` or ``(a - b) ** 2``."""
    match node:
        case ast.Call(func=ast.Call(func=func), args=[left, right, *_]) | ast.Call(func=func, args=[left, right, *_]):
            return (left, right) if _REGRESSION.search(last_name(func)) else None
        case (
            ast.BinOp(op=ast.Pow(), left=ast.BinOp(op=ast.Sub(), left=left, right=right))
            | ast.Call(func=ast.Attribute(attr="pow" | "square", value=ast.BinOp(op=ast.Sub(), left=left, right=right)))
        ):
            return left, right
        case _:
            return None


RULE = Rule(
    required_words=("backward|training_step", "critic|Critic|disc|Disc|D(|d(|netD|fake|reward|Q(|q1|q("), find=find
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=0.001)
generator_optimizer = torch.optim.RMSprop(generator.parameters(), lr=0.001)
for step in range(20):
    real = torch.randn(32, 8) + 2
    fake = generator(torch.randn(32, 4))
    critic_loss = critic(fake.detach()).mean() - critic(real).mean()
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    for weight in critic.parameters():
        weight.data.clamp_(-0.01, 0.01)
    generator_loss = critic(generator(torch.randn(32, 4))).mean()
    generator_optimizer.zero_grad()
    generator_loss.backward()
    generator_optimizer.step()
"""

FAILURE = Failure(
    code="LOS033",
    title="Generator or actor lowers the score that it shall raise",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"generator_loss = critic": "generator_loss = -critic"}),
    fix="Turn the sign of the generator's or actor's loss: `generator_loss = -critic(generator(noise)).mean()`.",
    rule=RULE,
)
