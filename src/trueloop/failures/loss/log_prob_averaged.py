"""The log-probabilities are averaged before they are multiplied by the returns, so that all actions count alike.

What you see
    The policy does not improve, or its gradients are near 0, most of all with normalised returns, whose mean is 0. No
    error is raised.

Why it happens
    REINFORCE multiplies the log-probability of each action by the return that followed it. ``log_probs.mean()`` is one
    number: times ``returns``, or times ``returns.mean()``, it makes all actions of the batch more likely, or all less
    likely, whatever followed each of them.

Fix
    Multiply first, then average:

        loss = -(torch.stack(log_probs) * returns).mean()

When this is fine
    - The total reward of one episode, a single number, times the sum or mean of its log-probabilities.
    - A mean or sum over the dimensions of one action, ``log_prob(action).sum(-1)``.
    - Values that are only printed, and the entropy term of soft actor-critic.

How it is detected
    Only the linter finds it, from the source code: a part of the minimised value is a product of the mean of
    log-probabilities over all steps, or of a cross-entropy with its default reduction, or of the sum of a list of
    log-probabilities, and of returns or advantages. These have to be one number per step: they are averaged too, the
    product is averaged, or a loop goes over them.

References
    Williams, 1992, "Simple statistical gradient-following algorithms", https://doi.org/10.1007/BF00992696
    torch.distributions, score function, https://docs.pytorch.org/docs/stable/distributions.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.queries.possible_values import loops_around, origins
from trueloop.analysis.queries.reductions import reduction
from trueloop.analysis.queries.signed_terms import Term, factors, minimised_terms
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_LOG_PROBS: Final = re.compile(r"(^|_)(log_?probs?|logps?|log_?pis?|log_?prob_?\w*)(_|$|\d)", re.IGNORECASE)
_RETURNS: Final = re.compile(
    r"returns?|(^|_)(rets?|adv|advs|gae|rtgs?|Gs?|G_?ts?|discounted(_\w+)?|to_go)(_|$|\d)|advantages?", re.IGNORECASE
)
_REWARDS: Final = re.compile(r"rew|(^|_)R(_|$)")
_TOTAL: Final = re.compile(r"(^|_)(total|episode|ep|sum|final)(_|$)", re.IGNORECASE)
_REDUCTIONS: Final = frozenset(("mean", "sum"))
_OVER: Final = frozenset(("zip", "enumerate", "reversed"))
_LOSSES: Final = frozenset(("cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"))
_JOINED: Final = frozenset(("stack", "cat", "concat", "hstack"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each product of an average log-probability and returns."""
    reported: set[int] = set()
    for terms in minimised_terms(source):
        for term in terms:
            pair = _pair(source, term.node) if isinstance(term.node, ast.BinOp) else None
            if pair is None or id(pair[0]) in reported or not _is_vector(source, terms, term.node, *pair):
                continue
            reported.add(id(pair[0]))
            yield Hit(
                message=f"`{ast.unparse(pair[0])}` is one number for all steps, so `{ast.unparse(term.node)}` gives "
                "every action the same weight. Multiply each log-probability by its return first, then average.",
                node=pair[0],
                related=((term.node, "multiplied by the returns here"),) if not encloses(term.node, pair[0]) else (),
            )


def _pair(source: SourceFile, product: ast.BinOp) -> tuple[ast.Call, ast.expr] | None:
    """Return the average of log-probabilities and the returns of which an expression is the product."""
    _, parts = factors(product)
    if not isinstance(product.op, ast.Mult) or len(parts) != 2:
        return None
    for first, second in (parts, parts[::-1]):
        average = _average(source, first)
        if average is not None and _is_return(source, second):
            return average, second
    return None


def _average(source: SourceFile, node: ast.expr) -> ast.Call | None:
    """Return the call that averages log-probabilities over all steps, or that sums a list of them."""
    for value in origins(source, node, 3):
        parts = factors(value)[1]
        inner = parts[0] if len(parts) == 1 else value
        if isinstance(inner, ast.Call) and _is_mean_loss(source, inner):
            return inner
        found = reduction(inner, _REDUCTIONS)
        if found is None or found.dim is not None or not isinstance(inner, ast.Call):
            continue
        values = list(origins(source, found.operand, 3))
        is_joined = any(isinstance(each, ast.Call) and last_name(each.func) in _JOINED for each in values)
        is_mean = last_name(inner.func) == "mean"
        return inner if (is_mean or is_joined) and any(map(_is_log_prob, values)) else None
    return None


def _is_mean_loss(source: SourceFile, call: ast.Call) -> bool:
    """Return True for ``F.cross_entropy(logits, actions)`` with its default reduction, also as a module."""
    made = [each for each in origins(source, call.func, 2) if isinstance(each, ast.Call)]
    names = [last_name(each.func) for each in (call, *made)]
    has_reduction = any(each.arg in ("reduction", "reduce", None) for e in (call, *made) for each in e.keywords)
    return bool(_LOSSES & set(names)) and len(call.args) + len(call.keywords) > 1 and not has_reduction


def _is_log_prob(node: ast.expr) -> bool:
    names = [last_name(each) for each in nodes_in(node, ast.Name, ast.Attribute)]
    return (any(map(_LOG_PROBS.search, names)) or "log_softmax" in names) and not any(
        "old" in each or "ratio" in each for each in names
    )


def _is_return(source: SourceFile, node: ast.expr) -> bool:
    """Return True for returns and advantages, and for rewards that are discounted or normalised."""
    values = [*origins(source, node, 3)]
    values[1:1] = [loop.iter for loop in loops_around(source, node) if last_name(node) in _stored(loop.target)]
    names = [last_name(e) for each in values[:2] for e in nodes_in(each, ast.Name, ast.Attribute)]
    if any(_LOG_PROBS.search(each) or _TOTAL.search(each) for each in names if each not in _REDUCTIONS):
        return False
    if any(_RETURNS.search(each) for each in names):
        return True
    stored = [v for each in names for v in assigned_in(function_of(source, node), each)]
    is_reward = any(map(_REWARDS.search, names))
    return is_reward and any(".std(" in ast.unparse(each) or "gamma" in ast.unparse(each) for each in stored)


def _is_vector(
    source: SourceFile, terms: tuple[Term, ...], product: ast.expr, average: ast.Call, factor: ast.expr
) -> bool:
    """Return True for returns of which there is one for each step."""
    if any(reduction(each, _REDUCTIONS) for each in origins(source, factor, 2)):
        return True
    for term in terms:
        found = reduction(term.node, _REDUCTIONS)
        for value in origins(source, found.operand, 3) if found is not None else ():
            if encloses(value, product):
                return _has_steps(source, average, factor)
    return _is_iterated(source, product, average, factor)


def _has_steps(source: SourceFile, average: ast.Call, factor: ast.expr) -> bool:
    """Return True if names or joined lists say that there are several log-probabilities or returns."""
    found = reduction(average, _REDUCTIONS)
    values = list(origins(source, found.operand, 3)) if found is not None else []
    if any(isinstance(each, ast.Call) and last_name(each.func) in _JOINED for each in values):
        return True
    return any(last_name(each).endswith("s") for each in (*values, factor))


def _is_iterated(source: SourceFile, product: ast.expr, average: ast.Call, factor: ast.expr) -> bool:
    """Return True for a loop over returns around a product with an average that it does not change."""
    read = {each.id for each in nodes_in(average, ast.Name)}
    for loop in loops_around(source, product):
        stored = _stored(loop) if isinstance(loop, ast.For) else _stored(loop.target)
        is_over = not isinstance(loop.iter, ast.Call) or last_name(loop.iter.func) in _OVER
        if last_name(factor) in _stored(loop.target) and not stored & read and is_over:
            return True
    return False


def _stored(node: ast.AST) -> set[str]:
    return {each.id for each in nodes_in(node, ast.Name) if isinstance(each.ctx, ast.Store)}


RULE = Rule(
    required_words=(
        "log_prob|logp|log_pi|logprob|log_softmax|cross_entropy|CrossEntropy|nll|NLL",
        "adv|returns|Return|rew|rtg| G|gae|discounted",
        ".mean(|.sum(|mean(",
        "backward|loss",
        "torch",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
for episode in range(20):
    log_probs, rewards = [], []
    for t in range(16):
        state = torch.randn(4)
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        log_probs.append(choice.log_prob(action))
        rewards.append(float(action == (state[0] > 0)))
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    returns = (returns - returns.mean()) / returns.std()
    loss = -(torch.stack(log_probs).mean() * returns).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"reward {sum(rewards):.0f}")
"""

FAILURE = Failure(
    code="LOS057",
    title="Log-probabilities are averaged before the returns",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"torch.stack(log_probs).mean() * returns": "torch.stack(log_probs) * returns"}),
    fix="Multiply each log-probability by its return first, then average.",
    rule=RULE,
)
