"""A Parameter is created with ``torch.Tensor(n)`` or ``torch.empty(n)`` and never gets values.

What you see
    Results differ from start to start although the seed is set. The loss may be NaN from the first batch.

Why it happens
    ``torch.Tensor(3, 4)`` and ``torch.empty(3, 4)`` reserve memory and do not write to it: the weight is what was there
    before. Only the layers of ``torch.nn`` call an initialisation of their own; a loop that asks for names with
    "weight" or "bias" leaves out others.

Fix
    Initialise the weight where it is created:

        self.scale = nn.Parameter(torch.ones(n))
        self.weight = nn.Parameter(torch.empty(n, m))
        nn.init.xavier_uniform_(self.weight)

When this is fine
    - The weight is initialised in ``reset_parameters``, by ``apply`` or in a loop over ``parameters()``.
    - It is loaded or assigned before it is used, has no elements, or is on the meta device.
    - ``torch.Tensor`` gets values: ``torch.Tensor([1.0])``.

How it is detected
    Only the linter finds it, from the source code: an attribute ``nn.Parameter(torch.empty(...))`` that its class reads
    and nothing initialises: not by name, and in no loop over all parameters, unless the loop only takes other names.

References
    torch.empty, "Returns a tensor filled with uninitialized data",
    https://docs.pytorch.org/docs/stable/generated/torch.empty.html
    torch.nn.init, https://docs.pytorch.org/docs/stable/nn.init.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, integer, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.model.weight_never_registered import SCRIPT

_EMPTY: Final = frozenset(("Tensor", "FloatTensor", "empty"))
_SIZE: Final = re.compile(
    r"^\d+$|dim|size|num|feature|channel|hidden|units|width|heads|classes|^n_?|^in_|^out_|_in$|_out$|len\("
)
_SETS: Final = re.compile(r"init|reset|load|set|build")
_PARAMETERS: Final = re.compile(r"param|weight|state_dict|_all_w")
_VISITS: Final = re.compile(
    r"(parameters|_parameters|state_dict|named_parameters)\(?\)?[^\n]*:(?:[^\n]*\n){1,8}?[^\n]*"
    r"(init|uniform|normal_|xavier|kaiming|zero_|zeros_|fill_|copy_|\.data\b)"
)
"""A loop over parameters that may initialise them."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each Parameter of reserved memory that nothing initialises."""
    for call in source.all_calls:
        created = _reserved(call)
        statement = source.statement_of(call) if created is not None else None
        target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is call else None
        if created is not None and isinstance(target, ast.Attribute) and _is_left_empty(source, target):
            yield Hit(
                message=f"`{ast.unparse(created)}` only reserves memory, and nothing initialises "
                f"`{ast.unparse(target)}`: the weight is whatever was in memory.",
                node=call,
            )


def _reserved(call: ast.Call) -> ast.Call | None:
    """Return ``torch.empty(n)`` of ``nn.Parameter(torch.empty(n))``; None for other calls and for values."""
    if last_name(call.func) != "Parameter" or len(call.args) != 1 or call.keywords:
        return None
    made = call.args[0]
    if not isinstance(made, ast.Call) or last_name(made.func) not in _EMPTY:
        return None
    sizes = made.args
    if any(each.arg in (None, "device", "out") for each in made.keywords) or any(integer(e) == 0 for e in sizes):
        return None
    are_sizes = len(sizes) > 1 or last_name(made.func) == "empty"
    return made if sizes and (are_sizes or _SIZE.search(ast.unparse(sizes[0]).removeprefix("self."))) else None


def _is_left_empty(source: SourceFile, target: ast.Attribute) -> bool:
    """Return True if the class only reads an attribute, and no loop over parameters or text may lead to it."""
    definition, name = enclosing_definition(source, target, ast.ClassDef), target.attr
    if not isinstance(definition, ast.ClassDef) or not all(last_name(each) == "Module" for each in definition.bases):
        return False
    uses = [each for each in definitions(source).attributes.get(name, ()) if each is not target]
    reads = [each for each in uses if _is_read_only(source, each, definition)]
    loops = [each for each in source.nodes_of(ast.For) if _PARAMETERS.search(ast.unparse(each.iter))]
    return (
        bool(reads)
        and all(each in reads or _is_alike(source, each, definition) for each in uses)
        and all(each.value != name for each in source.nodes_of(ast.Constant))  # getattr(self, "weight")
        and not any(_initialises(each, name) for each in loops)
        and not source.is_in_other_file(_VISITS)
    )


def _is_read_only(source: SourceFile, node: ast.Attribute, definition: ast.ClassDef) -> bool:
    """Return True for an attribute that enters a computation: it is not changed, and no initialiser gets it."""
    name, parent = getattr(function_of(source, node), "name", ""), source.parents.get(id(node))
    called = last_name(parent.func) if isinstance(parent, ast.Call) else getattr(parent, "attr", "")
    is_own = dotted_name(node.value) == "self" and enclosing_definition(source, node, ast.ClassDef) is definition
    is_read = isinstance(node.ctx, ast.Load) and not called.endswith("_") and called != "data"
    return is_own and is_read and not _SETS.search(name)


def _is_alike(source: SourceFile, node: ast.Attribute, definition: ast.ClassDef) -> bool:
    """Return True for an attribute of another class, or one that gets reserved memory in another branch."""
    value = getattr(source.statement_of(node), "value", None)
    is_empty = isinstance(node.ctx, ast.Store) and isinstance(value, ast.Call) and _reserved(value) is not None
    is_other = enclosing_definition(source, node, ast.ClassDef) is not definition
    return is_empty or (is_other and dotted_name(node.value) == "self")


def _initialises(loop: ast.For, name: str) -> bool:
    """Return True if a loop changes what it visits, unless it only does so for other names."""
    changes = [each for each in walk(loop) if _is_change(each)]
    tests = [each for each in nodes_in(loop, ast.If) if _words(each.test)]
    filtered = {
        id(part) for each in tests for part in walk(each) if not any(word in name for word in _words(each.test))
    }
    return any(id(each) not in filtered for each in changes)


def _is_change(node: ast.AST) -> bool:
    is_method = isinstance(node, ast.Call) and (last_name(node.func).endswith("_") or "init" in ast.unparse(node.func))
    return is_method or (isinstance(node, ast.Attribute) and node.attr == "data")


def _words(test: ast.expr) -> list[str]:
    """Return the texts that a test searches in a name: ``"weight" in name``."""
    return [each.value for each in nodes_in(test, ast.Constant) if isinstance(each.value, str)]


FAILURE = Failure(
    code="MDL044",
    title="A weight is never initialised",
    severity=Severity.WARNING,
    bad=SCRIPT.replace("{scale}", "nn.Parameter(torch.empty(1))").replace("* self.scale", "* torch.tanh(self.scale)"),
    good=SCRIPT.replace("{scale}", "nn.Parameter(torch.ones(1))"),
    fix="Initialise the weight with a function of torch.nn.init, torch.zeros, torch.ones or torch.randn.",
    rule=Rule(required_words=("Parameter(", "Tensor(|empty(", "Module", "def forward("), find=find),
)
