"""Finds losses of a generator that judge its detached samples, so that they have no gradient for the generator."""

import ast
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.queries.possible_values import is_without_gradients, possible_values, unpacked_call
from trueloop.analysis.queries.signed_terms import Term, jointly_minimised_terms, may_ascend, minimised_terms
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import children, nodes_in
from trueloop.failures.loss.players_labelled_alike import judged_scores
from trueloop.failures.loss.players_pull_alike import contents, is_network, network_names, scores_of

_MAX_DEPTH: Final = 6


class _Score(NamedTuple):
    """A score of a network in a loss."""

    call: ast.Call
    network: frozenset[str]
    sign: int
    """1 if the loss lowers the score, -1 if it raises it."""
    makers: frozenset[str]
    """The other networks that made what is judged."""


def players_cut_off(source: SourceFile) -> Iterator[Hit]:
    """Yield each loss that pulls against a critic, but judges only samples whose graph is cut."""
    if may_ascend(source):
        return
    losses = [list(_scores(source, each)) for each in (*minimised_terms(source), *jointly_minimised_terms(source))]
    reported: set[int] = set()
    for loss in losses:
        for first in loss:
            own = [each for each in loss if each.network == first.network]
            if id(first.call) in reported or not all(each.makers and each.sign == first.sign for each in own):
                continue
            critic = next((fake for other in losses if (fake := _judged_by_critic(other, own)) is not None), None)
            if critic is not None and all(_is_cut(source, each.call.args, each.network, _MAX_DEPTH) for each in own):
                reported.update(id(each.call) for each in own)
                yield Hit(
                    message=f"`{ast.unparse(first.call)}` judges samples that are detached from "
                    f"`{min(first.makers)}`, so this term of the generator's loss has no gradient for it.",
                    node=first.call,
                    related=((critic.call, "the discriminator judges generated samples here"),),
                )


def _scores(source: SourceFile, terms: Sequence[Term]) -> Iterator[_Score]:
    """Yield the scores in a loss, with the sign of the term or of the label that they are compared with."""
    for judged in judged_scores(source, terms):
        sign = -1 if judged.label >= 0.5 else 1
        yield _Score(judged.score, judged.network, sign, _makers(source, judged.score))
    for each in scores_of(source, terms):
        yield _Score(each.call, each.network, each.term.sign, _makers(source, each.call))


def _makers(source: SourceFile, score: ast.Call) -> frozenset[str]:
    calls = [each for each in contents(source, score.args) if isinstance(each, ast.Call) and is_network(source, each)]
    return frozenset().union(*map(network_names, calls)) - network_names(score)


def _judged_by_critic(loss: Sequence[_Score], own: Sequence[_Score]) -> _Score | None:
    """Return the score of generated samples in a loss that has the other sign for them, and real samples too."""
    if any(each.call is other.call for each in loss for other in own):
        return None
    same = [each for each in loss if each.network == own[0].network]
    is_of_real = any(each.sign == own[0].sign and not each.makers for each in same)
    return next((each for each in same if each.sign == -own[0].sign and each.makers), None) if is_of_real else None


def _is_made_inside(source: SourceFile, call: ast.Call, critic: frozenset[str]) -> bool:
    """Return True for a call of a function that runs another network than the critic, and cuts no graph."""
    function = called_function(source, call)
    if function is None or any(each.attr in ("detach", "data") for each in nodes_in(function, ast.Attribute)):
        return False
    return any(
        is_network(source, each) and not network_names(each) <= critic and not is_without_gradients(source, each)
        for each in nodes_in(function, ast.Call)
    )


def _is_cut(source: SourceFile, nodes: Sequence[ast.AST], critic: frozenset[str], depth: int) -> bool:
    """Return True if no output of another network than the critic reaches some expressions with its graph."""
    for node in nodes if depth else ():
        match node:
            case ast.Call(func=ast.Attribute(attr="detach")) | ast.Attribute(attr="data"):
                continue
            case ast.Call() if is_network(source, node) and not network_names(node) <= critic:
                if not is_without_gradients(source, node):
                    return False
            case ast.Call() if _is_made_inside(source, node, critic):
                return False
            case ast.Name() | ast.Attribute():
                call = unpacked_call(source, node)
                values = [*possible_values(source, node), *([call] if call is not None else [])]
                if not _is_cut(source, values, critic, depth - 1):
                    return False
            case _:
                if not _is_cut(source, children(node), critic, depth - 1):
                    return False
    return True
