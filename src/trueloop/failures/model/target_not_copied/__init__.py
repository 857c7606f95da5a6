"""The target or teacher network is the trained network itself, under a second name.

What you see
    A DQN agent diverges or its Q values keep growing, and copying the weights less often makes no difference. A student
    agrees with its teacher from the first update on. ``target_net.load_state_dict(...)`` raises no error.

Why it happens
    ``target_net = policy_net`` gives the network a second name, and ``model.to(device)`` returns the same model. Each
    update of one name is an update of the other, so the target moves with the network that is trained on it. Copying
    the weights of a network to itself changes nothing. ``copy.copy(policy_net)`` makes a new module with the same
    layers and parameters, so it is no copy of the weights either.

Fix
    Create a second network, or copy the first one:

        target_net = policy_net                 # wrong: a second name
        target_net = copy.deepcopy(policy_net)  # right

When this is fine
    - You use no target network: the network has one name, and its output is detached.
    - The target network is a copy, or another network that gets the weights by ``load_state_dict``.
    - The second name is another network later in the run, such as a teacher that starts as the model itself.
    - The outputs under both names are trained, as in a siamese network.

How it is detected
    In a run, the sanitizer reports a network that at least four updates called under two names, one of them with the
    word target or teacher, if the gradients never go through that name and the name never stands for another network.
    It also reports such a name whose ``load_state_dict`` twice got the network's own, unchanged state_dict, and any
    network that twice got the state_dict of another object with the same parameters. The linter reports both names if
    they are assigned from the same network, or one from ``copy.copy`` of it, and one gets the weights of the other.

References
    datawhalechina/easy-rl#140, "self.policy_net = model.to(self.device)" and "self.target_net = model.to(self.device)",
    https://github.com/datawhalechina/easy-rl/issues/140
    andri27-ts/Reinforcement-Learning#14, "why is the target network reference pointing to the moving network?",
    https://github.com/andri27-ts/Reinforcement-Learning/issues/14
    thesouther/MARL#8, a target network that loads its own state_dict, https://github.com/thesouther/MARL/issues/8
    Mnih et al., "Human-level control through deep reinforcement learning", 2015, on the separate target network,
    https://doi.org/10.1038/nature14236
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from trueloop.analysis.queries.assignments import FUNCTIONS, enclosing_definition
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence, SourceLocation
from trueloop.core.source_text import Fix, dotted_name, nodes_in, walk
from trueloop.failures.checkpoint.best_by_reference import StateDictUsed
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import Event, Ref, WatchEnded

MIN_UPDATES: Final = 4  # updates in which the network is called under both names
MIN_LOADS: Final = 2  # a single load may be a test of the checkpoint
MIN_SHARE: Final = 0.5  # of the updates between the first and the last call; an evaluation calls less often
TARGET_WORDS: Final = frozenset(("target", "teacher"))
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
UNCHANGING: Final = frozenset(("to", "cuda", "cpu", "eval", "train", "float", "double", "requires_grad_"))
"""Methods that return the network itself."""


def is_target_name(name: str) -> bool:
    """Return True for a name with the word target or teacher: "self.target_net", "criticTarget"."""
    return not TARGET_WORDS.isdisjoint(word.lower() for word in _WORD.findall(name))


@dataclass(slots=True, kw_only=True, eq=False)
class TargetCalled(Event):
    """A network was called under a name with the word target or teacher."""

    network: Ref
    name: str
    """Expression that was called: "self.target_net"."""
    graph_used: bool
    """Whether a backward pass went through an earlier call under this name."""
    other_name: str
    """Another name under which the network was called since the update before; "" = none."""
    other_location: CodePosition | None


@dataclass(slots=True)
class _TargetName:
    """The calls of networks under one name with the word target or teacher."""

    networks: set[Ref] = field(default_factory=set[Ref])
    updates: list[int] = field(default_factory=list[int])
    """Numbers of updates before the calls, each once, if the network has another name."""
    graph_used: bool = False
    first: TargetCalled | None = None
    """The first call of a network that has another name."""


class Detector(BaseDetector):
    """Compares the networks that are called under two names, and counts loads of a network's own weights."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], _TargetName] = {}
        """File and expression -> its calls."""
        self._loads: dict[SourceLocation, list[int]] = {}
        """Line that loads a network's own state_dict -> numbers of updates before the loads."""
        self._reported: set[str] = set()
        """Names of networks whose loads were reported."""

    def on_target_called(self, event: TargetCalled) -> None:
        """Record the call of a target network."""
        if event.location is None:
            return
        known = self._names.setdefault((event.location.code.co_filename, event.name), _TargetName())
        known.networks.add(event.network)
        known.graph_used |= event.graph_used
        if event.other_name:
            known.first = known.first or event
            if event.update not in known.updates[-1:]:
                known.updates.append(event.update)

    def on_state_dict_used(self, event: StateDictUsed) -> Evidence | None:
        """Return evidence when a line has loaded a network's own weights twice."""
        is_own = event.into_itself or event.into_alias
        if event.how != "loaded" or not is_own or event.weights_changed or not event.update:
            return None
        location = event.location.source_location if event.location else None
        names = _loaded_names(location) if location is not None else None
        if location is None or names is None or names[0] in self._reported:
            return None
        target, source = names
        if not event.into_alias and not (source and is_target_name(target)):
            return None
        updates = self._loads.setdefault(location, [])
        if event.update not in updates[-1:]:
            updates.append(event.update)
        if len(updates) < MIN_LOADS:
            return None
        self._reported.add(target)
        how = f"is the same network as `{source}`" if target != source else f"gets the weights of `{source}`"
        if event.into_alias:
            how = f"has the same parameters as {f'`{source}`' if source else 'the network whose state_dict it gets'}"
        return Evidence(
            message=f"`{target}` {how}: {len(updates)} loads copied its weights to itself, which changes nothing.",
            location=(_assignment(location.path, target) if target != source else None) or location,
            related=((location, "loaded here"),),
            first_update=updates[0],
        )

    def on_watch_ended(self, event: WatchEnded) -> list[Evidence]:
        """Return evidence of networks that were called under two names to the end."""
        found = list[Evidence]()
        for (file, name), known in self._names.items():
            call, updates = known.first, known.updates
            if call is None or known.graph_used or len(known.networks) > 1 or name in self._reported:
                continue
            if len(updates) >= MIN_UPDATES and len(updates) > MIN_SHARE * (updates[-1] - updates[0]):
                found.append(_evidence(file, name, known, call))
        return found


def _evidence(file: str, name: str, known: _TargetName, call: TargetCalled) -> Evidence:
    lines = ((call.location, f"called as `{name}`"), (call.other_location, f"called as `{call.other_name}`"))
    return Evidence(
        message=f"`{name}` is the same network as `{call.other_name}`: {len(known.updates)} updates called it under "
        "both names, so the target changes with each update.",
        location=_assignment(file, name) or call.location,
        related=tuple((line, label) for line, label in lines if line is not None),
        first_update=known.updates[0],
    )


def _assignment(file: str, name: str) -> SourceLocation | None:
    """Return the only line of a file that assigns a name without a call of ``deepcopy``; None if there is none."""
    from trueloop.tracing.source_calls import tree_of

    last = name.rpartition(".")[2]
    lines = [
        node.lineno
        for node in nodes_in(tree_of(file, last) or ast.Module([], []), ast.Assign)
        if "deepcopy" not in ast.unparse(node.value) and not isinstance(node.value, ast.BinOp)
        if any(ast.unparse(each).rpartition(".")[2] == last for each in node.targets)
    ]
    return SourceLocation(file, lines[0]) if len(lines) == 1 else None


def _loaded_names(location: SourceLocation) -> tuple[str, str] | None:
    """Return both networks of ``target.load_state_dict(source.state_dict())`` in a line, the source if it is known."""
    from trueloop.tracing.source_calls import calls_in

    for call in calls_in(location.path, "load_state_dict"):
        if call.lineno <= location.line <= (call.end_lineno or call.lineno) and isinstance(call.func, ast.Attribute):
            networks = _networks(call)
            return ast.unparse(call.func.value), ast.unparse(networks[1]) if networks else ""
    return None


def _networks(call: ast.Call) -> tuple[ast.expr, ast.expr] | None:
    """Return target and source of ``target.load_state_dict(source.state_dict())``; None for other calls."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "load_state_dict" or not call.args:
        return None
    state = call.args[0]
    if isinstance(state, ast.Call) and isinstance(state.func, ast.Attribute) and state.func.attr == "state_dict":
        return call.func.value, state.func.value
    return None


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the assignments that give a network a second name, if one name gets the weights of the other."""
    reported = set[int]()
    for call in source.all_calls:
        networks = _networks(call) or _zipped_parameters(call)
        for target, online in (networks, networks[::-1]) if networks else ():
            is_named = is_target_name(ast.unparse(target))
            if ast.unparse(target) == ast.unparse(online):
                if is_named and id(call) not in reported and _networks(call):
                    reported.add(id(call))
                    yield Hit(message=f"`{source.text.segment(call)}` copies the weights to themselves.", node=call)
                continue
            assignment = _aliasing(source, call, target, online)
            is_shallow = assignment is not None and is_shallow_copy(assignment.value)
            if assignment is not None and (is_named or is_shallow) and id(assignment) not in reported:
                reported.add(id(assignment))
                yield Hit(
                    message=f"`{ast.unparse(target)}` "
                    f"{'shares the weights of' if is_shallow else 'is the same network as'} `{ast.unparse(online)}`, "
                    "not a copy, so each update changes it too.",
                    node=assignment,
                    related=((call, "the weights are copied to themselves here"),),
                    fix=_deepcopy_fix(source, assignment),
                )


def _zipped_parameters(call: ast.Call) -> tuple[ast.expr, ast.expr] | None:
    """Return the networks of ``zip(target.parameters(), source.parameters())`` in a loop; None for other calls."""
    if getattr(call.func, "id", "") != "zip" or len(call.args) != 2:
        return None
    found = [
        each.func.value
        for each in call.args
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "parameters"
    ]
    return (found[0], found[1]) if len(found) == 2 else None


def _aliasing(source: SourceFile, call: ast.Call, target: ast.expr, online: ast.expr) -> ast.Assign | None:
    """Return the only assignment of a target if it assigns the online network itself; None otherwise."""
    scope = enclosing_definition(source, call, ast.ClassDef if isinstance(target, ast.Attribute) else FUNCTIONS)
    scopes = [scope] if isinstance(scope, ast.ClassDef) else [scope, source.tree]
    assigned, values = (next(filter(None, (_assignments_of(s, each) for s in scopes)), []) for each in (target, online))
    if len(assigned) != 1:
        return None
    network = assigned[0].value
    base = ast.unparse(_without_moves(network))
    if base == ast.unparse(online):
        return assigned[0] if len(values) <= 1 else None
    if len(values) != 1 or ast.unparse(_without_moves(values[0].value)) != base:
        return None
    if not isinstance(_without_moves(network), ast.Name | ast.Attribute | ast.Subscript):
        return None  # each call of a constructor creates another network
    function = enclosing_definition(source, assigned[0], FUNCTIONS)
    same_function = function is enclosing_definition(source, values[0], FUNCTIONS)
    others = _assignments_of(function, _without_moves(network))
    return assigned[0] if same_function and len(others) <= 1 else None


def _assignments_of(scope: ast.AST, target: ast.expr) -> list[ast.Assign]:
    """Return the assignments of a variable or attribute, also those of several at once."""
    name = ast.unparse(target)
    assignments = (each for each in nodes_in(scope, ast.Assign))
    return [
        each
        for each in assignments
        if any(isinstance(inner, ast.expr) and ast.unparse(inner) == name for t in each.targets for inner in walk(t))
    ]


def _without_moves(value: Any) -> Any:
    """Return the network in ``network.to(device).eval()`` and ``copy.copy(network)``."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if is_shallow_copy(value):
            value = value.args[0]
        elif value.func.attr in UNCHANGING:
            value = value.func.value
        else:
            break
    return value


def is_shallow_copy(value: ast.expr) -> bool:
    """Return True for ``copy.copy(network)``, which has the same parameters."""
    return isinstance(value, ast.Call) and dotted_name(value.func) == "copy.copy" and len(value.args) == 1


def _deepcopy_fix(source: SourceFile, assignment: ast.Assign) -> Fix | None:
    """Return the fix that copies the network; None if the file does not import ``copy``."""
    if not any(any(n.name == "copy" for n in each.names) for each in source.nodes_of(ast.Import)):
        return None
    value: Any = assignment.value
    edit = (
        source.text.replace(value.func, "copy.deepcopy")
        if is_shallow_copy(value)
        else source.text.replace(value, f"copy.deepcopy({source.text.segment(value)})")
    )
    return Fix((edit,), safe=False, description="Copy the network")


BAD = """
import copy
import torch
from torch import nn

torch.manual_seed(0)
states, next_states = torch.randn(256, 4), torch.randn(256, 4)
actions, rewards = torch.randint(0, 2, (256, 1)), torch.randn(256)
policy_net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
target_net = policy_net
optimizer = torch.optim.Adam(policy_net.parameters(), lr=0.01)
for step in range(30):
    rows = torch.randint(0, 256, (32,))
    with torch.no_grad():
        target = rewards[rows] + 0.9 * target_net(next_states[rows]).max(1).values
    value = policy_net(states[rows]).gather(1, actions[rows]).squeeze(1)
    optimizer.zero_grad()
    nn.functional.smooth_l1_loss(value, target).backward()
    optimizer.step()
    if step % 10 == 9:
        target_net.load_state_dict(policy_net.state_dict())
"""
GOOD = changed(BAD, {"target_net = policy_net\n": "target_net = copy.deepcopy(policy_net)\n"})

FAILURE = Failure(
    code="MDL013",
    title="Target network is the trained network itself",
    severity=Severity.WARNING,
    bad=BAD,
    good=GOOD,
    fix="Create the target network as a copy: copy.deepcopy(policy_net).",
    rule=Rule(required_words=("torch", "target|teacher|Target|Teacher|copy.copy(", "load_state_dict(|zip("), find=find),
    detector=Detector,
)
