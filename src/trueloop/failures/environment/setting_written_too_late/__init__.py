"""A setting is changed during training after all objects that use it have copied it, so the change has no effect.

What you see
    A warm-up of a loss weight makes no difference: the weight stays at its first value for the whole training. A
    variational autoencoder whose KL weight starts at zero reconstructs well, but its samples are poor.

Why it happens
    ``self.beta = config.beta`` in a constructor copies the number. ``config.beta = 0.5`` later gives the configuration
    another number, and the object keeps the one that it has copied. Python raises no error. The same is true of a
    variable: after ``agent = Agent(epsilon)``, ``epsilon *= 0.99`` does not reach the agent.

Fix
    Change the object that uses the setting.

        trainer.criterion.beta = 0.5

    Or let the object read ``self.config.beta`` each time.

When this is fine
    - Other code reads the setting from the configuration during training.
    - The objects that copy it are created after the change, as in a loop over settings.
    - The configuration computes its value by a property, or passes changes on.
    - The value is only printed or saved.

How it is detected
    Only the linter finds it, from the source code: an attribute of a configuration is set in a training loop or in a
    method of a callback, and all code that reads this attribute, except what prints it, passes it to a constructor or
    stores it in one, outside of all loops. Configurations that are passed to other libraries, read by
    ``getattr`` or unpacked by ``vars`` are not reported. A number that a loop multiplies or
    increases is reported if an object of a class of the program got it before, and only messages read the new value.

References
    Python, "Assignment statements", https://docs.python.org/3/reference/simple_stmts.html#assignment-statements
    Bowman et al., 2015, "Generating Sentences from a Continuous Space", arXiv:1511.06349
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import called_function, definitions, enclosing_loops
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.environment.setting_written_too_late.copied_numbers import CHANGE, copied_numbers
from trueloop.failures.failure import Failure, Rule, Severity, changed

_CONFIG: Final = re.compile(r"conf|cfg|args$|setting|hparams|options|opts?$|hyper", re.IGNORECASE)
_RECORDS: Final = re.compile(r"epoch|step|iter|best|resume|start|seed|path|dir|name|device|count|total", re.IGNORECASE)
_SHOWING: Final = re.compile(r"print|log|info|debug|write|save|dump|format|str|repr|add_scalar|add_text|deepcopy|copy")
_DYNAMIC: Final = frozenset(("vars", "asdict", "getattr", "replace", "setattr", "to_dict", "update", "__dict__"))
_CALLBACK: Final = re.compile(r"^(on_|before_|after_|pre_|post_)|_(start|end|begin)$|^__call__$|^step$|callback")
_TRAINS: Final = re.compile(r"\.backward\(|\.step\(|manual_backward|training_step")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each change of a setting that only constructors read, before the change."""
    yield from copied_numbers(source)
    reported: set[str] = set()
    for write in source.nodes_of(ast.Assign, ast.AugAssign):
        target = write.target if isinstance(write, ast.AugAssign) else write.targets[0]
        if not isinstance(target, ast.Attribute) or target.attr in reported or not _is_setting(target):
            continue
        if not _is_in_training(source, write):
            continue
        reads = _reads(source, target, write)
        copies = [_copy(source, each) for each in reads]
        if any(_is_optimizer(source, each) for each in copies):
            continue  # a finding of OPT007
        if reads and all(each is not None for each in copies) and _is_visible(source, last_name(target.value)):
            reported.add(target.attr)
            name = f"{last_name(target.value)}.{target.attr}"
            yield Hit(
                message=f"`{ast.unparse(target)}` is changed during training, but `{name}` is read only by "
                "constructors, which have copied its first value: the change has no effect.",
                node=write,
                related=((reads[0], "the value is copied here"),),
            )


def _is_setting(target: ast.Attribute) -> bool:
    return bool(_CONFIG.search(last_name(target.value))) and not _RECORDS.search(target.attr)


def _is_in_training(source: SourceFile, write: ast.stmt) -> bool:
    """Return True for a statement in a loop that trains, or in a method that a trainer calls."""
    function = function_of(source, write)
    name = getattr(function, "name", "")
    if name == "__init__":
        return False
    chains = enclosing_loops(source, write)
    if any(_trains(source, loop) for chain in chains for loop in chain):
        return True
    is_method = isinstance(source.parents.get(id(function)), ast.ClassDef)
    return is_method and not definitions(source).calls.get(name) and bool(_CALLBACK.search(name))


def _trains(source: SourceFile, loop: ast.AST) -> bool:
    """Return True if a loop updates a model, directly or in functions that it calls."""
    if _TRAINS.search(ast.unparse(loop)):
        return True
    called = [definitions(source).functions.get(last_name(each.func)) for each in nodes_in(loop, ast.Call)]
    return any(function is not None and _TRAINS.search(ast.unparse(function)) for function in called)


def _reads(source: SourceFile, target: ast.Attribute, write: ast.stmt) -> list[ast.Attribute]:
    """Return the nodes that read a setting from a configuration, except those that only show it."""
    found = definitions(source).attributes.get(target.attr, [])
    reads = [each for each in found if isinstance(each.ctx, ast.Load) and not encloses(write, each)]
    own = [each for each in reads if _is_of_configuration(source, each, last_name(target.value))]
    return [each for each in own if not _is_shown(source, each)]


def _is_of_configuration(source: SourceFile, node: ast.Attribute, owner: str) -> bool:
    name = last_name(node.value)
    if name == "self":  # a method of the configuration itself
        around = source.parents.get(id(function_of(source, node)))
        fields = around.body if isinstance(around, ast.ClassDef) else []
        return any(last_name(getattr(each, "target", None)) == node.attr for each in fields)
    return name == owner or bool(_CONFIG.search(name)) or len(name) == 1 or isinstance(node.value, ast.Call)


def _is_shown(source: SourceFile, node: ast.AST) -> bool:
    """Return True if a value is only printed, logged or saved."""
    for each in enclosing_nodes(source, node):
        if isinstance(each, ast.JoinedStr):
            return True
        if isinstance(each, ast.Call):
            return bool(_SHOWING.search(last_name(each.func))) and not last_name(each.func)[:1].isupper()
        if isinstance(each, ast.stmt):
            return False
    return False


def _copy(source: SourceFile, read: ast.Attribute) -> ast.AST | None:
    """Return the constructor, or the call of one, that copies a setting outside of all loops; None if none does."""
    function = function_of(source, read)
    around: Any = source.parents.get(id(function))
    if any(enclosing_loops(source, read)) or _is_inside_lambda(source, read):
        return None
    if getattr(function, "name", "") == "__init__" and isinstance(around, ast.ClassDef):
        return function if definitions(source).calls.get(around.name) else None
    call: Any = source.parents.get(id(read))
    call = source.parents.get(id(call)) if isinstance(call, ast.keyword) else call
    if not isinstance(call, ast.Call) or not last_name(call.func)[:1].isupper():
        return None
    name = getattr(function, "name", "main")
    return call if name == "main" or definitions(source).calls.get(name) else None


def _is_optimizer(source: SourceFile, node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and source.qualified_name(node.func).startswith("torch.optim.")


def _is_inside_lambda(source: SourceFile, node: ast.AST) -> bool:
    return any(isinstance(each, ast.Lambda | ast.GeneratorExp) for each in enclosing_nodes(source, node))


def _is_visible(source: SourceFile, name: str) -> bool:
    """Return True if the program shows all code that may read a configuration of this name."""
    for each in source.nodes_of(ast.Name, ast.Attribute):
        if last_name(each) != name or not isinstance(each.ctx, ast.Load):
            continue
        parent: Any = source.parents.get(id(each))
        if isinstance(parent, ast.Attribute) and parent.attr in _DYNAMIC | {"get", "items", "values"}:
            return False
        call = source.parents.get(id(parent)) if isinstance(parent, ast.keyword) else parent
        if isinstance(parent, ast.Subscript | ast.Starred | ast.Dict) or (
            isinstance(parent, ast.keyword) and not parent.arg
        ):
            return False
        if isinstance(call, ast.Call) and call.func is not each:
            called = last_name(call.func)
            is_shown = _SHOWING.search(called) and called not in _DYNAMIC
            if not is_shown and (called in _DYNAMIC or called_function(source, call) is None):
                return False
    return not _has_property(source)


def _has_property(source: SourceFile) -> bool:
    """Return True if a class of the program computes attributes by a property, or passes changes on."""
    methods = source.nodes_of(ast.FunctionDef)
    decorators = [ast.unparse(each) for method in methods for each in method.decorator_list]
    return any(each.name == "__setattr__" for each in methods) or any(each.endswith(".setter") for each in decorators)


_WRITTEN: Final = re.compile(
    r"(?m)^[ \t]+[\w.]*(?i:conf\w*|cfg|args|settings?|hparams|options|opts?|hyper\w*)\.\w+ [-+*/]?= "
)


def _may_change(text: str) -> bool:
    """Return True for a text with a line that may change a setting or a number."""
    return bool(_WRITTEN.search(text) or CHANGE.search(text))


RULE = Rule(
    required_words=("torch", "for |def on_|while ", "def __init__|class ", _may_change),
    find=find,
    depends_on_users=True,
)

BAD = """
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    beta: float = 0.0
    lr: float = 0.01


class Objective:
    def __init__(self, config):
        self.beta = config.beta

    def __call__(self, output, x, code):
        return nn.functional.mse_loss(output, x) + self.beta * code.pow(2).mean()


torch.manual_seed(0)
config = Config()
encoder, decoder = nn.Linear(8, 3), nn.Linear(3, 8)
objective = Objective(config)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=config.lr)
x = torch.randn(128, 3) @ torch.randn(3, 8)
for step in range(100):
    config.beta = min(1.0, step / 50)
    code = encoder(x)
    loss = objective(decoder(code), x, code)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="ENV010",
    title="A setting is changed after it was copied",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"    config.beta = min": "    objective.beta = min"}),
    fix="Change the attribute of the object that has copied the setting, or read the configuration each time.",
    rule=RULE,
)
