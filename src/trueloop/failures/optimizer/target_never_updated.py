"""The target network is copied once and never updated.

What you see
    The Q-values learn the reward of one step and what the untrained network said about the rest, and then stop
    improving. The loss falls nevertheless.

Why it happens
    The TD target bootstraps from the target network. Without updates that network keeps its random initial weights, so
    nothing that the agent learns reaches the target. No part of PyTorch connects the two networks.

Fix
    Copy the weights every few hundred steps, or mix a little of them in at each step:

        if step % 500 == 0:
            target_net.load_state_dict(policy_net.state_dict())

When this is fine
    - A frozen teacher, reference or old policy, as in distillation, PPO and DPO.
    - The random target of random network distillation, which is no copy of the predictor.
    - A target encoder that is trained itself, as in domain adaptation.
    - The copy is updated by a function that gets the network, or in another file.

How it is detected
    Only the linter finds it: a network called target that is a copy of another one, by ``deepcopy`` or
    ``load_state_dict`` before the training, and computes values where that other one is trained. Nothing else may
    happen to it in the file but calls, ``eval()``, ``to()`` and freezing.

References
    Mnih et al., "Human-level control through deep reinforcement learning", 2015, https://doi.org/10.1038/nature14236
    torch.nn.Module, with load_state_dict,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions, uses
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.unread_variables import has_loop
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed
from trueloop.failures.model.target_not_copied import GOOD

_WORDS: Final = frozenset(("target", "tgt", "targ"))
_HARMLESS: Final = frozenset(("eval", "to", "cuda", "cpu", "requires_grad_", "train", "float", "double"))
_Loop = ast.For | ast.While


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the copy of each target network that nothing updates."""
    for statement in source.nodes_of(ast.Assign):
        target = statement.targets[0]
        if not isinstance(target, ast.Name | ast.Attribute) or not name_words(last_name(target)) & _WORDS:
            continue
        found = uses(source, target) if not has_loop(source, statement) else None
        copy, model = _copied(source, statement, found or [])
        if not found or model is None or not _is_trained(source, model) or not _is_whole(source, target):
            continue
        contexts = [_context(source, each, statement) for each in found]
        calls = [each for each, kind in zip(found, contexts, strict=True) if kind == "called"]
        if "other" not in contexts and any(_is_in_training(source, each) for each in calls):
            yield Hit(
                message=f"`{ast.unparse(target)}` is copied from `{ast.unparse(model)}` once and never updated: the "
                "targets come from the initial weights for the whole training.",
                node=copy,
                related=((calls[0], "it computes targets here"),),
            )


def _copied(source: SourceFile, statement: ast.Assign, found: list[ast.expr]) -> tuple[Any, ast.expr | None]:
    """Return the statement that makes a network a copy, and the other network; None if it is no copy."""
    value: Any = statement.value
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _HARMLESS:
        value = value.func.value
    if not isinstance(value, ast.Call):
        return None, None
    if last_name(value.func) == "deepcopy" and len(value.args) == 1 and dotted_name(value.args[0]):
        return statement, value.args[0]
    for each in found:
        load = _load_of(source, each)
        if load is not None and isinstance(load.args[0], ast.Call):
            state = load.args[0].func
            if isinstance(state, ast.Attribute) and state.attr == "state_dict":
                return load, state.value
    return None, None


def _load_of(source: SourceFile, node: ast.AST) -> ast.Call | None:
    """Return the call of ``load_state_dict`` of a network."""
    method = source.parents[id(node)]
    call = source.parents.get(id(method))
    is_load = isinstance(method, ast.Attribute) and method.attr == "load_state_dict"
    return call if is_load and isinstance(call, ast.Call) and call.args else None


def _context(source: SourceFile, node: Any, created: ast.stmt) -> str:
    """Return "called" for a call of a network, "harmless" for what does not change its weights, else "other"."""
    parent: Any = source.parents[id(node)]
    if isinstance(parent, ast.Call) and parent.func is node:
        return "called"
    if not isinstance(parent, ast.Attribute):
        return "other"
    if parent.attr in _HARMLESS:
        return "harmless"
    load = _load_of(source, node)
    if load is not None:
        is_first = function_of(source, load) is function_of(source, created) and not has_loop(source, load)
        return "harmless" if is_first else "other"
    loop = source.parents.get(id(source.parents[id(parent)]))
    if parent.attr == "parameters" and isinstance(loop, ast.For):
        return "harmless" if all("requires_grad" in ast.unparse(each) for each in loop.body) else "other"
    return "other"


def _is_whole(source: SourceFile, target: ast.expr) -> bool:
    """Return True for a variable, and for an attribute of a class that the program itself creates."""
    owner = enclosing_definition(source, target, ast.ClassDef)
    return isinstance(target, ast.Name) or getattr(owner, "name", "") in definitions(source).calls


def _is_trained(source: SourceFile, model: ast.expr) -> bool:
    """Return True if an optimizer gets the parameters of a network."""
    methods = definitions(source).attributes.get("parameters", ())
    return any(last_name(each.value) == last_name(model) for each in methods)


def _is_in_training(source: SourceFile, call: ast.AST) -> bool:
    """Return True if a backward pass follows in the function of a call, or in one that calls it."""
    function = function_of(source, call)
    if any(last_name(each.func) == "backward" for each in nodes_in(function, ast.Call)):
        return True
    name = "" if isinstance(function, ast.Module) else function.name
    callers = [function_of(source, each) for each in definitions(source).calls.get(name, [])]
    return any(last_name(each.func) == "backward" for caller in callers for each in nodes_in(caller, ast.Call))


RULE = Rule(required_words=("backward(", "target|Target|tgt|targ", "deepcopy(|load_state_dict("), find=find)

BAD = changed(GOOD, {"    if step % 10 == 9:\n        target_net.load_state_dict(policy_net.state_dict())\n": ""})

FAILURE = Failure(
    code="OPT013",
    title="The target network is never updated",
    severity=Severity.WARNING,
    bad=BAD,
    good=GOOD,
    fix="Copy the weights to the target network regularly, or mix them in.",
    rule=RULE,
)
