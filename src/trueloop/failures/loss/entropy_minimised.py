"""The entropy of the policy is added to the loss, so that training removes exploration.

What you see
    The entropy falls to zero within a few updates, the policy always takes the same action, and the return stays at a
    poor value. A larger entropy coefficient makes it worse.

Why it happens
    The entropy bonus rewards a policy that tries several actions: it shall become large. An optimizer lowers the loss,
    so the entropy is subtracted from it. Many papers write the objective, which is maximised, with a plus.

Fix
    Subtract the entropy.

        loss = policy_loss + 0.5 * value_loss - 0.01 * entropy

When this is fine
    - The variable already contains the negative entropy, or the coefficient is negative.
    - The optimizer was created with ``maximize=True``, or the whole sum is negated later.
    - Predictions shall become certain, as in semi-supervised learning or test-time adaptation: there is no policy.

How it is detected
    Only the linter finds it. It follows the value of ``backward()`` through sums, products with numbers and
    coefficients, variables, and functions of the program, and counts the minuses. It reports an entropy (a call of
    ``entropy()``, or a product of a probability and its logarithm) with the sign that lowers it, if the same loss also
    contains a log-probability or a ratio of probabilities of a policy, in a program with returns or advantages.

References
    Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", 2016, arXiv:1602.01783
    Schulman et al., "Proximal Policy Optimization Algorithms", 2017, arXiv:1707.06347
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.queries.signed_terms import Term, factors, may_ascend, minimised_terms
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_ENTROPY: Final = re.compile(
    r"^(dist_|action_|policy_|pi_|mean_|total_|batch_|b_|new_)*(entropy|entropies|ent|entropys)$"
)
_POLICY: Final = re.compile(
    r"log_?prob|(^|_)logps?(_|$)|log_?pi|ratio|surr|(^|_)nll|cross_entropy|neg_?log", re.IGNORECASE
)
_POLICY_LOSS: Final = re.compile(
    r"(policy|actor|pg|action|pi|clip\w*|surrogate|ppo)_?loss|loss_?(policy|actor|pg|pi|clip|action)(_|$)",
    re.IGNORECASE,
)
_RETURN: Final = re.compile(r"adv|return|reward|(^|_)(rets?|gae|G|R|delta|td_err\w*)(_|$|\d)", re.IGNORECASE)
_CALLED: Final = re.compile(r"^(?:(?!-).)*\.entropy\(\)", re.MULTILINE)
"""An entropy without a minus in front of it."""
_SHALL_FALL: Final = re.compile(
    r"minimi[sz]\w* (\w+ )?entropy|entropy[ _]minimi|(?<!min_)entropy[ _]penalty", re.IGNORECASE
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each entropy of a policy that a loss lowers."""
    if may_ascend(source) or source.mentions(_SHALL_FALL):
        return
    reported: set[int] = set()
    for terms in minimised_terms(source):
        if not any(_is_policy_loss(source, each) for each in terms):
            continue
        entropies = [(each, sign) for each in terms if (sign := _entropy_sign(source, each))]
        if any(sign < 0 for _, sign in entropies):
            continue  # one entropy rises: the other one is something else, or the signs are not clear
        for term, _ in entropies:
            if id(term.added) not in reported:
                reported.add(id(term.added))
                yield Hit(
                    message=f"The loss contains the entropy of the policy with a plus (`{ast.unparse(term.added)}`): "
                    "minimising it lowers the entropy, so the policy stops exploring. Subtract the entropy.",
                    node=term.added,
                    related=() if term.node is term.added else ((term.node, "the entropy"),),
                )


def _entropy_sign(source: SourceFile, term: Term) -> int:
    """Return 1 if the loss lowers an entropy, -1 if it raises one; 0 if the term is none."""
    match term.node:
        case ast.Call(func=ast.Attribute(attr="entropy")):
            return term.sign
        case ast.BinOp(op=ast.Mult()) as product if _is_p_log_p(source, product):
            return -term.sign
        case ast.Name() | ast.Attribute() if _ENTROPY.search(last_name(term.node)):
            is_known = len(list(origins(source, term.node, 1))) > 1
            return 0 if is_known or not _CALLED.search(source.text.source) else term.sign
        case _:
            return 0


def _is_p_log_p(source: SourceFile, product: ast.BinOp) -> bool:
    """Return True for ``probs * log_probs`` or ``p * p.log()``, without a return or another network's probability."""
    sign, parts = factors(product)
    if len(parts) != 2 or sign < 0:
        return False
    for probability, logarithm in (parts, parts[::-1]):
        name = last_name(probability)
        if isinstance(logarithm, ast.Call) and last_name(logarithm.func) in ("log", "log2"):
            called = logarithm.func
            owner = called.value if isinstance(called, ast.Attribute) else None
            inside = logarithm.args[0] if logarithm.args else owner
            names = {last_name(each) for each in nodes_in(inside, ast.Name, ast.Attribute)} if inside else set[str]()
            if name and name in names:
                return True
        values = [last_name(e.func) for e in origins(source, probability) if isinstance(e, ast.Call)]
        logs = [last_name(e.func) for e in origins(source, logarithm) if isinstance(e, ast.Call)]
        if logs[:1] == ["log_softmax"] and (values[:1] == ["softmax"] or values[:1] == ["exp"]):
            return True
    return False


def _is_policy_loss(source: SourceFile, term: Term) -> bool:
    """Return True for a term that raises a log-probability or ratio with a return, or is called a policy loss."""
    node = term.node
    if isinstance(node, ast.Name | ast.Attribute):
        return term.sign > 0 and bool(_POLICY_LOSS.search(last_name(node)))
    _, parts = factors(node)
    names = [_names(source, each) for each in parts]
    has_policy = any(_POLICY.search(name) for several in names for name in several)
    return len(parts) > 1 and has_policy and any(_RETURN.search(name) for several in names for name in several)


def _names(source: SourceFile, node: ast.expr) -> set[str]:
    return {
        last_name(each)
        for value in [node, *origins(source, node, 2)]
        for each in nodes_in(value, ast.Name, ast.Attribute)
    }


RULE = Rule(
    required_words=("backward|training_step", "entropy()|* log|*log|.log()|entropy", "adv|reward|return|Adv"),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
policy, critic = nn.Linear(4, 3), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], lr=0.01)
for step in range(60):
    states = torch.randn(32, 4)
    dist = torch.distributions.Categorical(logits=policy(states))
    actions = dist.sample()
    rewards = (actions == states[:, :3].argmax(1)).float()
    advantages = rewards - critic(states).squeeze(1)
    policy_loss = -(dist.log_prob(actions) * advantages.detach()).mean()
    entropy = dist.entropy().mean()
    loss = policy_loss + 0.5 * advantages.pow(2).mean() + 0.1 * entropy
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"entropy {entropy.item():.2f}")
"""

FAILURE = Failure(
    code="LOS029",
    title="The entropy of the policy is minimised",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"+ 0.1 * entropy": "- 0.1 * entropy"}),
    fix="Subtract the entropy from the loss: `loss = policy_loss - 0.01 * entropy`.",
    rule=RULE,
)
