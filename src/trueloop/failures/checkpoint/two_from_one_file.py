"""Two networks that are trained apart share one file, or only one of them is saved, so that the other is lost.

What you see
    After loading, the two critics of an agent, or the two generators of a CycleGAN, are identical. The minimum of the
    critics is then the value of one, and training that goes on begins with a jump of the loss.

Why it happens
    The line was copied, and only the name of the network was changed, not that of the file. Both networks have the same
    layers, so the weights fit. Or the second network was added later, but not to the method that saves.

Fix
    Give each network a file, or a key, of its own:

        torch.save(self.critic1.state_dict(), folder / "critic1.pt")
        torch.save(self.critic2.state_dict(), folder / "critic2.pt")

When this is fine
    - Both begin with the same pretrained weights, which the program does not save itself.
    - The second one is a target network or an average of the first one.
    - The file has one key for each network.

How it is detected
    Only the linter finds it, from the source code: two networks whose names differ only in a number or letter at the
    end, or in the order of their letters, such as ``critic1`` and ``critic2`` or ``G_AB`` and ``G_BA``. One function
    saves both to the same path, or loads both from the same path, which the program writes for one of them only. Or the
    states of any two networks are saved one after the other to the same path. It also reports a method of a class that
    saves one of two networks, which the class creates alike and whose names differ only in the end, and not the other.

References
    PyTorch tutorial "Saving & Loading Multiple Models in One File",
    https://docs.pytorch.org/tutorials/recipes/recipes/saving_multiple_models_in_one_file.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.assignments import is_assigned_between
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_LOADS: Final = frozenset(("load", "load_weights", "load_model", "load_checkpoint", "load_state_dict"))
_STATES: Final = frozenset(("save", "save_weights", "save_model", "save_checkpoint", "state_dict"))
_SAVES: Final = frozenset(("save", "save_weights", "save_model", "save_checkpoint"))
_INDEX: Final = re.compile(r"_?(\d+|(?<=_)[A-Za-z]|one|two|first|second|[AB])$")
_LIBRARIES: Final = frozenset(("torch", "np", "numpy", "pickle", "joblib", "json", "os", "plt", "image"))


class _Access(NamedTuple):
    """A call that loads or saves the weights of a network."""

    call: ast.Call
    network: str
    path: str
    """Text of the path, and of the key in the file."""
    words: tuple[str, ...]
    """The texts in the path."""
    is_state: bool = False
    """Whether a function saves a state that it gets: nothing but the path tells the files of two networks apart."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the second of two networks that are saved to one file, or loaded from it."""
    saves = [each for call in source.all_calls if (each := _save(call)) is not None]
    loads = [each for call in source.all_calls if (each := _load(call)) is not None] if saves else []
    yield from _forgotten(source)
    for accesses, verb in ((saves, "saved to"), (loads, "loaded from")):
        for first, second in _twins(source, accesses):
            if accesses is loads and not _has_own_file(saves, first, second):
                continue
            yield Hit(
                message=f"`{second.network}` is {verb} the same file as `{first.network}`: `{first.path}`.",
                node=second.call,
                related=((first.call, "the other network"),),
            )


def _forgotten(source: SourceFile) -> Iterator[Hit]:
    """Yield each call that saves a network of a class in a method that does not name its twin."""
    for method in source.nodes_of(ast.FunctionDef):
        owner = source.parents.get(id(method))
        if not isinstance(owner, ast.ClassDef) or not method.name.startswith("save"):
            continue
        created = dict(_created(owner))
        used = {each.attr for each in nodes_in(method, ast.Attribute)}
        for call in nodes_in(method, ast.Call):
            saved = getattr(call.func, "value", None)
            name = last_name(saved)
            if last_name(call.func) not in _STATES or not _is_own(saved) or name not in created or "__dict__" in used:
                continue
            twins = [each for each, kind in created.items() if kind == created[name] and _are_twins(name, each)]
            lost = next((each for each in twins if each not in used and _trains(owner, each)), None)
            if lost is not None:
                yield Hit(
                    message=f"`{method.name}` saves `self.{name}`, but not `self.{lost}`, which is trained too.",
                    node=call,
                    related=((method, "the method that saves"),),
                )


def _created(owner: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the attributes for which the methods of a class create an object, with the called function or class."""
    for each in nodes_in(owner, ast.Assign):
        match each:
            case ast.Assign(targets=[ast.Attribute(attr=name) as target], value=ast.Call(func=func)) if _is_own(target):
                yield name, ast.unparse(func)
            case _:
                pass


def _trains(owner: ast.ClassDef, name: str) -> bool:
    """Return True if a class passes the parameters of a network on, or calls the network and then a method of it."""
    uses = [each.attr for each in nodes_in(owner, ast.Attribute) if last_name(each.value) == name]
    return "parameters" in uses or any(each in ("update", "optimizer", "train_step", "learn") for each in uses)


def _is_own(node: Any) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _twins(source: SourceFile, accesses: list[_Access]) -> Iterator[tuple[_Access, _Access]]:
    """Yield two accesses of one block to the same path, by networks whose names differ in a number only."""
    for number, second in enumerate(accesses):
        for first in accesses[:number]:
            is_overwritten = (
                first.is_state and second.is_state and first.network != second.network and bool(first.words)
            )
            if first.path != second.path or not (is_overwritten or _are_twins(first.network, second.network)):
                continue
            blocks = [source.block(source.statement_of(each.call)) for each in (first, second)]
            function, path = function_of(source, first.call), set(re.findall(r"\w+", first.path))
            if blocks[0] is not blocks[1] or function is not function_of(source, second.call):
                continue
            if not is_assigned_between(function, path, first.call.lineno, second.call.lineno):
                yield first, second
                break


def _are_twins(first: str, second: str) -> bool:
    one, other = first.rpartition(".")[2], second.rpartition(".")[2]
    if first == second or first.rpartition(".")[0] != second.rpartition(".")[0]:
        return False
    is_numbered = _INDEX.search(one) is not None and _INDEX.search(other) is not None
    return sorted(one) == sorted(other) or (is_numbered and _INDEX.sub("", one) == _INDEX.sub("", other))


def _has_own_file(saves: list[_Access], first: _Access, second: _Access) -> bool:
    """Return True if the program writes the file for one of two networks, and not for the other."""
    files = {each.network.rpartition(".")[2]: each for each in saves}
    written = [files.get(each.network.rpartition(".")[2]) for each in (first, second)]
    same = [each is not None and (each.words, bool(first.words)) == (first.words, True) for each in written]
    return same.count(True) == 1


def _load(call: ast.Call) -> _Access | None:
    """Return the network and the file of ``net.load_state_dict(torch.load(path))`` or ``net.load(path)``."""
    name, owner = last_name(call.func), getattr(call.func, "value", None)
    if name not in _LOADS or owner is None or last_name(owner) in _LIBRARIES or not call.args:
        return None
    given: Any = call.args[0]
    if name != "load_state_dict":
        return _access(call, owner, given, "")
    inner = next((e for e in nodes_in(given, ast.Call) if last_name(e.func) in ("load", "load_file") and e.args), None)
    key = ast.unparse(given.slice) if isinstance(given, ast.Subscript) else ""
    return _access(call, owner, inner.args[0], key) if inner is not None else None


def _save(call: ast.Call) -> _Access | None:
    """Return the network and the file of ``torch.save(net.state_dict(), path)`` or ``net.save(path)``."""
    state = _save_of_state(call)
    if state is not None:
        return state
    match call:
        case ast.Call(
            func=ast.Attribute(attr="save", value=ast.Name(id="torch")),
            args=[ast.Call(func=ast.Attribute(attr="state_dict", value=owner)) | (ast.Attribute() as owner), path, *_],
        ):
            return _access(call, owner, path, "")
        case ast.Call(func=ast.Attribute(attr=name, value=owner), args=[path, *_]) if (
            name in _SAVES and last_name(owner) not in _LIBRARIES
        ):
            return _access(call, owner, path, "")
        case _:
            return None


def _save_of_state(call: ast.Call) -> _Access | None:
    """Return the network and the file of ``save_checkpoint({"model": net.state_dict(), ...}, path)``."""
    if last_name(call.func) not in _SAVES or len(call.args) < 2:
        return None
    saved, path = call.args[:2]
    parts = saved.values if isinstance(saved, ast.Dict) else [saved]
    for each in parts:
        match each:
            case ast.Call(func=ast.Attribute(attr="state_dict", value=owner)) if "optim" not in ast.unparse(owner):
                found = _access(call, owner, path, "")
                return found._replace(is_state=True) if found is not None else None
            case _:
                pass
    return None


def _access(call: ast.Call, owner: ast.expr, path: ast.expr, key: str) -> _Access | None:
    if not last_name(owner) or not isinstance(owner, ast.Name | ast.Attribute):
        return None
    words = tuple(each.value for each in nodes_in(path, ast.Constant) if isinstance(each.value, str))
    text = ast.unparse(path) + (f"[{key}]" if key else "")
    return _Access(call, ast.unparse(owner), text, words)


RULE = Rule(required_words=("load(|load_|.save(|save_", ".save(|save_"), find=find)

BAD = """
import os
import tempfile
import torch
from torch import nn

torch.manual_seed(0)
folder = tempfile.mkdtemp()
x = torch.randn(64, 4)


class Critics:
    def __init__(self):
        self.critic1, self.critic2 = nn.Linear(4, 1), nn.Linear(4, 1)
        self.optimizer = torch.optim.Adam([*self.critic1.parameters(), *self.critic2.parameters()], lr=0.01)

    def update(self):
        self.optimizer.zero_grad()
        losses = [nn.functional.mse_loss(net(x), x.sum(1, keepdim=True)) for net in (self.critic1, self.critic2)]
        sum(losses).backward()
        self.optimizer.step()

    def save(self):
        torch.save(self.critic1.state_dict(), os.path.join(folder, "critic1.pt"))
        torch.save(self.critic2.state_dict(), os.path.join(folder, "critic2.pt"))

    def load(self):
        self.critic1.load_state_dict(torch.load(os.path.join(folder, "critic1.pt")))
        self.critic2.load_state_dict(torch.load(os.path.join(folder, "critic1.pt")))


critics = Critics()
for step in range(10):
    critics.update()
critics.save()
critics.load()
"""

FAILURE = Failure(
    code="CKP017",
    title="One of two networks is lost in the files",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            'self.critic2.load_state_dict(torch.load(os.path.join(folder, "critic1.pt")))': (
                'self.critic2.load_state_dict(torch.load(os.path.join(folder, "critic2.pt")))'
            )
        },
    ),
    fix="Give each network a file, or a key, of its own.",
    rule=RULE,
)
