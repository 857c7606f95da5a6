"""An operation is called for what it returns, and nobody takes that.

What you see
    An activation, a dropout or a detaching that stands in the program does nothing: two linear layers behave as one,
    a network overfits in spite of its dropout, the graph of a recurrent state grows, a batch stays on the CPU.

Why it happens
    ``F.relu(x)`` and ``x.to(device)`` make a new tensor and leave ``x`` as it is, other than ``module.to(device)``,
    which changes the module. Python lets the value of any expression go.

Fix
    Keep the result: ``x = F.relu(x)``, ``hidden = hidden.detach()``; or take the line out.

When this is fine
    ``inplace=True``, ``F.relu_(x)``, ``x.relu_()``, ``out=``; ``.to()`` of modules, and of batches of a class that
    moves itself; moving a batch to measure how long that takes; the last line of a notebook's cell; a layer that is
    called for its hooks or statistics; what stands in ``try``, or in a ``with`` that is none of autocast. Found in the
    text only: torch's activations and dropouts, as functions, methods of what torch has computed, or modules made in
    the same file without ``inplace``, in a ``forward`` or what it calls; and a tensor that is moved, cast or detached
    in a loop that runs backward, if it comes from an operation or layer of torch's, or is a part of a batch that a
    plain ``DataLoader`` has collated itself. A warning, since a line without effect may not be missed by anybody.

References
    torch.nn.functional.relu, https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.relu.html
    torch.Tensor.to, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html
    evintunador/templateGPT#1, "Dropout is not applied", https://github.com/evintunador/templateGPT/issues/1
    huggingface/accelerate#2251, "`.to` is not in-place", https://github.com/huggingface/accelerate/issues/2251
    Cadene/pretrained-models.pytorch#79, "the output of the Relu function is never used",
    https://github.com/Cadene/pretrained-models.pytorch/issues/79
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue, Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.loops import stands_in
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.failure import Failure, Rule, Severity

NEVER: Final = 99  # no place among arguments
_AT: Final = {
    "relu": 1, "relu6": 1, "selu": 1, "silu": 1, "mish": 1, "hardswish": 1, "hardsigmoid": 1, "elu": 2, "celu": 2,
    "leaky_relu": 2, "dropout": 3, "dropout1d": 3, "dropout2d": 3, "dropout3d": 3, "alpha_dropout": 3,
    **dict.fromkeys(("gelu", "sigmoid", "tanh", "softmax", "log_softmax", "softplus", "logsigmoid"), NEVER),
}  # fmt: skip
FUNCTIONS: Final[Mapping[str, int]] = {
    **{f"torch.nn.functional.{name}": place for name, place in _AT.items()},
    **{f"{o}.{n}": NEVER for o in ("torch", "torch.Tensor") for n in ("relu", "sigmoid", "tanh", "softmax", "selu")},
    **dict.fromkeys(("torch.log_softmax", "torch.Tensor.log_softmax", "torch.dropout"), NEVER),
}
"""Where in the arguments of each ``inplace`` stands."""
LAYERS: Final[Mapping[str, int]] = {
    **{f"torch.nn.{n}": 0 for n in ("ReLU", "ReLU6", "SELU", "SiLU", "Mish", "Hardswish", "Hardsigmoid")},
    **{f"torch.nn.{n}": 1 for n in ("ELU", "CELU", "LeakyReLU", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d")},
    "torch.nn.AlphaDropout": 1,
    **{f"torch.nn.{n}": NEVER for n in ("GELU", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Softplus", "LogSigmoid")},
}
MOVING: Final = frozenset(
    f"torch.Tensor.{word}" for word in ("to", "cuda", "float", "double", "half", "bfloat16", "detach")
)

COMPUTED: Final = ("torch.nn.functional.", "torch.Tensor.", "torch.nn.")
CREATED: Final = frozenset(
    f"torch.{word}"
    for word in ("zeros", "ones", "rand", "randn", "randint", "full", "tensor", "arange", "cat", "stack")
)


def find(source: Source) -> Iterator[Hit]:
    """Yield the statements that are nothing but such a call."""
    told = set[int]()
    for each in source.acts(OpKind.TORCH, OpKind.CALLED):
        statement = each.statement
        bare = isinstance(statement, ast.Expr) and statement.value is each.node and id(each.node) not in told
        if bare and isinstance(each.node, ast.Call) and (_computes(source, each) or _moves(source, each)):
            told.add(id(each.node))
            name = _changed(each)
            yield Hit(
                message=f"What {source.text.of(each.node.func)} returns is thrown away, and the tensor that it is "
                "given stays as it is.",
                node=each.node,
                fix=_kept(source, statement, name) if name else None,
            )


def _computes(source: Source, call: Op) -> bool:
    """Return True for an activation or dropout in a module's forward."""
    if call.act is OpKind.TORCH:
        makes = call.word in FUNCTIONS and not _in_place(call.node, FUNCTIONS[call.word])
    else:
        makes = all(
            each.kind is Kind.MODEL and each.name in LAYERS and not _in_place(each.node, LAYERS[each.name])
            for each in call.subject.alternatives()
        ) and not any(getattr(each.func, "attr", "").endswith("_hook") for each in source.all_calls)
    return makes and _in_forward(source, call)


def _in_place(call: Any, place: int) -> bool:
    """Return True where what is called, or made, may change what it is given, or write elsewhere."""
    if not isinstance(call, ast.Call) or any(isinstance(each, ast.Starred) for each in call.args):
        return True
    given = [*call.args[place:], *(each.value for each in call.keywords if each.arg == "inplace")]
    plain = all(isinstance(each, ast.Constant) and each.value is False for each in given)
    return not plain or any(each.arg in ("out", None) for each in call.keywords)


def _in_forward(source: Source, call: Op) -> bool:
    forward = next((each for each in call.functions if getattr(each, "name", "") == "forward"), None)
    inner = [each for each in call.functions if isinstance(each, ast.FunctionDef)]
    return (
        forward is not None and bool(inner) and _is_method(source, forward) and not _tried(inner[-1], call.node, source)
    )


def _is_method(source: Source, function: Any) -> bool:
    classes = (each for each in source.nodes if isinstance(each, ast.ClassDef) and each.bases)
    return any(function is one for each in classes for one in each.body)


def _tried(function: Any, node: ast.Call, source: Source) -> bool:
    """Return True where a call stands in ``try``, or in ``with`` something else than autocast."""
    for each in ast.walk(function):
        tried = isinstance(each, ast.Try | ast.TryStar)
        if isinstance(each, ast.With | ast.AsyncWith):
            names = [
                source.name(item.context_expr.func) for item in each.items if isinstance(item.context_expr, ast.Call)
            ]
            tried = len(names) < len(each.items) or not all(name.endswith("autocast") for name in names)
        if tried and stands_in(node, each):
            return True
    return False


def _moves(source: Source, call: Op) -> bool:
    """Return True for a tensor that is moved, cast or detached in a loop that trains."""
    if call.word not in MOVING or not call.loops or _tried(call.loops[0].node, call.node, source):
        return False
    trains = any(source.within(loop, OpKind.BACKWARD, root=call.root) for loop in call.loops)
    return trains and all(_is_tensor(each) for each in call.subject.alternatives())


def _is_tensor(thing: AbstractValue) -> bool:
    """Return True for what torch computed, and for a part of a batch that torch collated."""
    if thing.kind is not Kind.TENSOR:
        return False
    part = bool(thing.of) and thing.of[0].name == thing.name and not isinstance(thing.node, ast.Call)
    if thing.name != "batch":
        made = (thing.of[0] if part else thing).origin()
        return made is not None and (made.name in CREATED or made.name.startswith(COMPUTED))
    if not part:  # a whole batch may be of a class that moves itself
        return False
    loaders = [each for each in thing.lineage() if each.kind is Kind.LOADER]
    return bool(loaders) and all(
        each.name == "torch.utils.data.DataLoader"
        and not {"collate_fn", "6", "**"} & each.options.keys()
        and not ("batch_size" in each.options and each.options["batch_size"].constant(0) is None)
        for each in loaders
    )


def _changed(call: Op) -> str:
    """Return the name of the tensor that was to be changed; "" where it has none."""
    method = call.word.startswith("torch.Tensor.")
    given = call.node.func.value if method else call.node.args[0] if call.node.args else None
    return given.id if isinstance(given, ast.Name) else ""


def _kept(source: Source, statement: Any, name: str) -> Fix:
    start = source.text.span(statement)[0]
    return Fix((Edit(start, start, f"{name} = "),), safe=False, words="Keep the result")


RULE = Rule(
    words=(
        "relu|ReLU|elu|LU(|dropout|Dropout|igmoid|tanh|Tanh|oftmax|.detach()|.to(|.cuda(|.float()|.half()",
        "def forward(|backward(",
        "__init__|backward(",
        "Module|DataLoader",
    ),
    find=find,
)

FAILURE = Failure(
    code="MDL009",
    title="The result of an operation is thrown away",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 1)

    def forward(self, x):
        x = self.first(x)
        F.relu(x)
        return self.last(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.abs().sum(1, keepdim=True)).backward()
    optimizer.step()
""",
    good="""
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 1)

    def forward(self, x):
        x = self.first(x)
        x = F.relu(x)
        return self.last(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.abs().sum(1, keepdim=True)).backward()
    optimizer.step()
""",
    fix="Keep the result, x = F.relu(x), or take the line out.",
    rule=RULE,
)
