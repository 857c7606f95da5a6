"""A layer or a Parameter is created in the forward pass, with new values in every call.

What you see
    The model gives different outputs for the same input, also in eval mode. The loss falls little, because the other
    layers learn to ignore the random layer. A saved model does not contain its weights. A dropout layer that is
    created in the forward pass drops values in eval mode too.

Why it happens
    PyTorch allows you to create and call a layer anywhere. After each update the layer is deleted together with its
    gradients. If it is assigned to ``self`` in every call, the optimizer does not contain the new layer. The same is
    true of an ``nn.Parameter``. A new dropout layer is in train mode: ``model.eval()`` reached only layers that
    existed when it was called.

Fix
    Create the layer in ``__init__`` and call it in ``forward``:

        x = nn.Linear(8, 16)(x)  # wrong, in forward
        self.body = nn.Linear(8, 16)  # right, in __init__
        x = self.body(x)  # right, in forward

    If a size is known in ``forward`` only, use ``nn.LazyLinear`` or ``nn.LazyConv2d``.

When this is fine
    - The layer is a loss, an activation, a pooling or a normalisation layer, which has no random weights.
    - A condition creates the layer only once, or the layer is frozen, stored, passed on or created under ``no_grad``.
    - You set the weights afterwards, such as those of a Sobel filter.
    - The mode of a new dropout layer is set, ``nn.Dropout(0.5).train(self.training)``, or its rate is 0.
    - The Parameter has ``requires_grad=False``, or ``forward`` itself optimises it, such as an adversarial change.

How it is detected
    Only the linter finds it, from the source code: a dropout layer or one with random weights, also of a class of the
    program, that ``forward``, or a function that it calls, creates and uses in no other way than to call it. A layer
    that becomes an attribute has to be created without a condition. Or an ``nn.Parameter`` in a ``forward`` that
    computes no gradients itself. Random weights may be intended as an augmentation, so this is a warning. A run cannot
    show it, because meta-learning copies models in a similar way.

References
    wangyida/softpool#11, "I've been debugging for more than 3 days", https://github.com/wangyida/softpool/issues/11
    pytorch/pytorch#1291, https://github.com/pytorch/pytorch/issues/1291
    Project-MONAI/MONAI#8578, an output layer set in the forward method,
    https://github.com/Project-MONAI/MONAI/pull/8578
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity

RANDOM: Final = frozenset((
    *(f"torch.nn.{name}{n}d" for name in ("Conv", "ConvTranspose", "LazyConv", "LazyConvTranspose") for n in (1, 2, 3)),
    *(f"torch.nn.{name}" for name in (
        "Linear", "LazyLinear", "Bilinear", "Embedding", "EmbeddingBag", "LSTM", "GRU", "RNN", "LSTMCell", "GRUCell",
        "RNNCell", "MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer",
    )),
))  # fmt: skip
"""Layers with random initial weights; a new normalisation layer always has the same weights, 1 and 0."""
DROPOUT: Final = frozenset(
    f"torch.nn.{name}" for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout")
)
MOVES: Final = frozenset(("to", "cuda", "cpu", "float", "double", "half", "bfloat16"))
PARAMETER: Final = frozenset(("torch.nn.Parameter", "torch.nn.parameter.Parameter"))
_OWN_GRADIENTS: Final = re.compile(r"\bbackward\(|\boptim|\bgrad\(|no_grad|\.step\(")
"""Signs of a forward pass that optimises something itself, or that only wraps values."""
_SET_WEIGHTS: Final = re.compile(
    r"requires_grad|no_grad|\.data\b|copy_\(|constant_\(|fill_\(|zeros_\(|ones_\(|eye_\(|load"
    r"|torch\.(ones|zeros|eye)\(|detach"
)
"""Signs of a layer whose weights are set, frozen or loaded where it is created."""
_AUGMENTS: Final = re.compile(r"training|rand|prob|\bp\b")
"""Signs of a condition that is true in train mode only, or at random."""
_DEFERRED: Final = (ast.Lambda, ast.IfExp, ast.BoolOp)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the layers and parameters that a module's forward, or a function that it calls, creates in every call."""
    own = _own_layers(source)
    created = [
        call
        for call in source.all_calls
        if source.qualified_name(call.func) in RANDOM | DROPOUT | PARAMETER
        or (isinstance(call.func, ast.Name) and call.func.id in own)
    ]
    for method, in_every_call in _run_by_forward(source) if created else ():
        in_method = {id(call) for call in created if method.lineno <= call.lineno <= (method.end_lineno or 0)}
        creator = "`forward`" if method.name == "forward" else f"`{method.name}`, which `forward` calls,"
        for statement, is_certain in _statements(method.body) if in_method else ():
            for call in _created(statement, in_method):
                effect = _effect(source, method, statement, call, is_certain=is_certain and in_every_call)
                if effect:
                    name = source.text.segment(call.func)
                    yield Hit(message=f"{creator} creates a new `{name}` in every call: {effect}.", node=call)


def _own_layers(source: SourceFile) -> set[str]:
    """Return the classes of the program that create random weights, and do not set or freeze them."""
    found = set[str]()
    for name, definition in definitions(source).classes.items():
        init = next((e for e in definition.body if isinstance(e, ast.FunctionDef) and e.name == "__init__"), None)
        bases = [last_name(each) for each in definition.bases]
        if (
            init is None
            or not any(each.endswith("Module") for each in bases)
            or "forward" not in ast.unparse(definition)
        ):
            continue
        has_weights = any(source.qualified_name(each.func) in RANDOM | PARAMETER for each in nodes_in(init, ast.Call))
        if has_weights and not _SET_WEIGHTS.search(ast.unparse(definition)):
            found.add(name)
    return found


def _effect(
    source: SourceFile, method: ast.FunctionDef, statement: ast.stmt, call: ast.Call, *, is_certain: bool
) -> str:
    """Return what is wrong with a layer or parameter that a statement creates; "" if nothing is."""
    kind = source.qualified_name(call.func)
    if kind in PARAMETER:
        is_own = not is_certain or _OWN_GRADIENTS.search(source.text.segment(method))
        return "" if is_own or not _is_trainable(call) else "no optimizer contains it, so it is never trained"
    if not _only_called(method, statement, call, only_local=not is_certain):
        return ""
    if kind not in DROPOUT:
        return "its weights are random and never trained"
    is_off = getattr(argument_node(call, "p", 0), "value", None) == 0
    return "" if is_off else "it is in train mode, also after `eval()`"


def _is_trainable(parameter: ast.Call) -> bool:
    return len(parameter.args) == 1 and all(each.arg == "data" for each in parameter.keywords)


def _run_by_forward(source: SourceFile) -> Iterator[tuple[ast.FunctionDef, bool]]:
    """Yield the ``forward`` methods, and the functions that they call, with whether every forward pass calls them."""
    seen = set[int]()
    for definition in source.nodes_of(ast.ClassDef):
        methods = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
        queue = [(methods.get("forward"), True)] if definition.bases else []
        while queue:
            function, in_every_call = queue.pop(0)
            if function is None or function.decorator_list or id(function) in seen:
                continue
            seen.add(id(function))
            yield function, in_every_call
            for statement, is_certain in _statements(function.body):
                for call in nodes_in(statement, ast.Call):
                    is_own = isinstance(call.func, ast.Attribute) and dotted_name(call.func.value) == "self"
                    known = methods if is_own else definitions(source).functions
                    called = known.get(last_name(call.func)) if is_own or isinstance(call.func, ast.Name) else None
                    queue.append((called, in_every_call and is_certain))


def _statements(block: list[ast.stmt], *, is_certain: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield the simple statements outside of context managers, with whether every call runs them.

    Those that only run in train mode or at random are left out.
    """
    for statement in block:
        if isinstance(statement, ast.For):
            yield from _statements(statement.body, is_certain=is_certain)
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr):
            yield statement, is_certain
        elif isinstance(statement, ast.If):
            if not _AUGMENTS.search(ast.unparse(statement.test)):
                yield from _statements(statement.body, is_certain=False)
                yield from _statements(statement.orelse, is_certain=False)
            elif any(isinstance(each, ast.Return) for each in statement.body):
                return
            is_certain &= not any(isinstance(each, ast.Return) for each in statement.body)


def _created(statement: ast.AST, created: set[int]) -> Iterator[ast.Call]:
    """Yield the layers and parameters that a statement creates; of a Sequential only the first layer."""
    queue: list[ast.AST] = [statement]
    while queue:
        node = queue.pop(0)
        if id(node) in created and isinstance(node, ast.Call):
            yield node
        elif not isinstance(node, _DEFERRED):
            queue.extend(ast.iter_child_nodes(node))


def _only_called(method: ast.FunctionDef, statement: ast.stmt, layer: ast.Call, *, only_local: bool) -> bool:
    """Return True if a layer, or the Sequential around it, is called and not used in any other way.

    ``only_local`` leaves out layers that the model keeps: a condition may create them only once.
    """
    nodes = list(walk(statement))
    module = _outermost_module(nodes, layer)
    if any(isinstance(each, ast.Call) and each.func is module for each in nodes):
        return True
    if not isinstance(statement, ast.Assign) or statement.value is not module or len(statement.targets) != 1:
        return False
    target = ast.unparse(statement.targets[0])
    if only_local and not isinstance(statement.targets[0], ast.Name):
        return False
    names = list(nodes_in(method, ast.Name, ast.Attribute))
    reads = {id(each) for each in names if isinstance(each.ctx, ast.Load) and ast.unparse(each) == target}
    called = {id(each.func) for each in nodes_in(method, ast.Call)}
    return bool(reads) and reads <= called


def _outermost_module(nodes: list[ast.AST], layer: ast.Call) -> ast.expr:
    """Return the layer or the Sequential around it, including a call that moves either to a device."""
    module: ast.expr = layer
    for each in reversed(nodes):  # from the inside out
        if not isinstance(each, ast.Call):
            continue
        is_moved = isinstance(each.func, ast.Attribute) and each.func.value is module and each.func.attr in MOVES
        if is_moved or (module in each.args and ast.unparse(each.func).endswith("Sequential")):
            module = each
    return module


SCRIPT = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__(){init}
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        x = torch.relu({layer}(x))
        return self.head(x)


x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL012",
    title="A layer or Parameter is created in every forward call",
    severity=Severity.WARNING,
    bad=SCRIPT.replace("{init}", "").replace("{layer}", "nn.Linear(8, 16)"),
    good=SCRIPT.replace("{init}", "\n        self.body = nn.Linear(8, 16)").replace("{layer}", "self.body"),
    fix="Create the layer or Parameter in __init__, and use it in forward.",
    rule=Rule(required_words=("torch", "def forward(", "Module", "__init__"), find=find),
)
