"""The result of an operation that does not work in place is discarded.

What you see
    A call of an activation, dropout, ``masked_fill``, ``clamp``, ``detach()`` or ``to(device)`` has no effect: two
    linear layers act as one, attention sees what its mask should hide, gradients are not clipped, or a batch stays on
    the CPU.

Why it happens
    ``F.relu(x)``, ``x.masked_fill(...)`` and ``x.to(device)`` return a new tensor and leave ``x`` unchanged, unlike
    ``module.to(device)``, which changes the module. ``model.state_dict(best)`` writes the current weights into
    ``best``, and loads nothing. Python raises no error for an unused result, such as that of ``==`` where ``=`` is
    meant.

Fix
    Assign the result, or remove the line:

        F.relu(x)  # wrong
        x = F.relu(x)  # right
        p.grad.data.clamp(-1, 1)  # wrong
        p.grad.data.clamp_(-1, 1)  # right
        model.state_dict(best)  # wrong: overwrites best
        model.load_state_dict(best)  # right
        torch.autograd.grad(loss, net.parameters())  # wrong: no .grad for the optimizer
        loss.backward()  # right
        group["lr"] == 0.1 * lr  # wrong: compares
        group["lr"] = 0.1 * lr  # right

When this is fine
    - The operation works in place: ``inplace=True``, ``F.relu_(x)``, ``x.relu_()``, ``out=``.
    - You call ``.to()`` on a module, or on a batch object that changes itself.
    - You move a batch to measure the time, or call a layer because of its hooks or statistics.
    - The call is the last line of a notebook cell.
    - You collect the states of several modules in a new dictionary with ``state_dict(destination=states)``.

How it is detected
    Only the linter finds it, from the source code. It reports two kinds of unused results: those of PyTorch's
    activations and dropouts in ``forward`` and the functions that it calls, and those of ``to``, ``detach`` and similar
    methods in a training loop. In a loop, the tensor must be computed by PyTorch or come from a ``DataLoader`` with the
    default ``collate_fn``. Calls inside ``try``, or inside ``with`` except autocast, are not checked. The program may
    not need the line, so this is a warning. It also reports a statement that only compares a variable with ``==``, one
    that calls ``torch.autograd.grad``, one that calls a method of a table such as ``df.drop(columns=...)``, and, as an
    error, one that passes a state to ``state_dict``.

References
    torch.nn.functional.relu, https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.relu.html
    torch.Tensor.to, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html
    evintunador/templateGPT#1, "Dropout is not applied", https://github.com/evintunador/templateGPT/issues/1
    huggingface/accelerate#2251, "``.to`` is not in-place", https://github.com/huggingface/accelerate/issues/2251
    Cadene/pretrained-models.pytorch#79, "the output of the Relu function is never used",
    https://github.com/Cadene/pretrained-models.pytorch/issues/79
"""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.batch_loops import BatchLoop, batch_loops
from trueloop.analysis.queries.loops import is_inside
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.queries.uncalled_methods import uncalled
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, dotted_name, encloses, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity

NEVER: Final = 99  # for functions without an argument ``inplace``
_POSITIONS: Final = {
    "relu": 1, "relu6": 1, "selu": 1, "silu": 1, "mish": 1, "hardswish": 1, "hardsigmoid": 1, "elu": 2, "celu": 2,
    "leaky_relu": 2, "dropout": 3, "dropout1d": 3, "dropout2d": 3, "dropout3d": 3, "alpha_dropout": 3,
    **dict.fromkeys(("gelu", "sigmoid", "tanh", "softmax", "log_softmax", "softplus", "logsigmoid"), NEVER),
}  # fmt: skip
FUNCTIONS: Final[Mapping[str, int]] = {
    **{f"torch.nn.functional.{name}": position for name, position in _POSITIONS.items()},
    **{f"{o}.{n}": NEVER for o in ("torch", "torch.Tensor") for n in ("relu", "sigmoid", "tanh", "softmax", "selu")},
    **dict.fromkeys(("torch.log_softmax", "torch.Tensor.log_softmax", "torch.dropout"), NEVER),
}
"""Function -> position of its argument ``inplace``."""
LAYERS: Final[Mapping[str, int]] = {
    **{f"torch.nn.{n}": 0 for n in ("ReLU", "ReLU6", "SELU", "SiLU", "Mish", "Hardswish", "Hardsigmoid")},
    **{f"torch.nn.{n}": 1 for n in ("ELU", "CELU", "LeakyReLU", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d")},
    "torch.nn.AlphaDropout": 1,
    **{f"torch.nn.{n}": NEVER for n in ("GELU", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Softplus", "LogSigmoid")},
}
MOVING: Final = frozenset(
    f"torch.Tensor.{word}" for word in ("to", "cuda", "float", "double", "half", "bfloat16", "detach")
)
CHANGING_METHODS: Final = frozenset((
    "masked_fill", "masked_scatter", "index_fill", "index_copy", "index_add", "scatter_add", "clamp", "clamp_min",
    "clamp_max",
))  # fmt: skip
"""Methods of tensors that return a changed copy; those that change the tensor itself end in ``_``."""
CHANGING_ARITHMETIC: Final = frozenset((
    "clip", "add", "sub", "mul", "div", "lerp", "addcmul", "addcdiv", "subtract", "multiply", "divide",
))  # fmt: skip
"""Further ones, which objects of other classes may have too."""
_METHODS_NAMED: Final = (
    "reset_parameters", "requires_grad_", "detach_", "zero_", "share_memory", "init_weights", "cuda",
)  # fmt: skip
"""Methods that other codes do not report where they are named without being called."""
_TABLE_METHODS: Final = frozenset((
    "dropna", "fillna", "reset_index", "set_index", "drop_duplicates", "sort_values", "sort_index", "interpolate",
))  # fmt: skip
"""Methods of tables that return a changed copy, unless ``inplace=True``."""
_TABLE_METHODS_WITH: Final = {
    "drop": frozenset(("axis", "columns", "index", "labels")),
    "rename": frozenset(("columns", "index")),
    "replace": frozenset(("to_replace", "value", "regex")),
}
"""Further ones, which objects of other classes may have too, with arguments that only tables have."""
_TABLE: Final = re.compile(r"(^|[_.])(df|data_?frame|pd|pandas)\d*($|[_.\[(])|read_csv|DataFrame", re.IGNORECASE)
COMPUTED: Final = ("torch.nn.functional.", "torch.Tensor.", "torch.nn.")
CREATED: Final = frozenset(
    f"torch.{word}"
    for word in ("zeros", "ones", "rand", "randn", "randint", "full", "tensor", "arange", "cat", "stack")
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the statements that discard the result of an operation that does not work in place."""
    yield from _states_not_loaded(source)
    reported = set[int]()
    for each in source.ops(OpKind.TORCH_CALL, OpKind.MODEL_CALL):
        statement = each.statement
        is_alone = isinstance(statement, ast.Expr) and statement.value is each.node and id(each.node) not in reported
        if (
            is_alone
            and isinstance(each.node, ast.Call)
            and (_is_activation(source, each) or _is_move(source, each) or _is_reshaped(source, each))
        ):
            reported.add(id(each.node))
            name = _input_name(each)
            yield Hit(
                message=f"The result of `{source.text.segment(each.node.func)}()` is discarded: the call does not "
                "change its input.",
                node=each.node,
                fix=_assign_result(source, statement, name) if name else None,
            )


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and statements of tensor methods that the text shows to have no effect."""
    yield from find(source)
    for method in _METHODS_NAMED:
        yield from uncalled(source, method, "nothing changes")
    yield from _comparisons(source)
    yield from _derivatives(source)
    yield from _tables(source)
    moved = {name: loop.node for loop in batch_loops(source) for name in _parts_of_batch(loop)}
    for statement in source.nodes_of(ast.Expr):
        call = statement.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        loop = moved.get(ast.unparse(call.func.value))
        is_moved = call.func.attr in ("to", "cuda") and loop is not None and encloses(loop, call)
        name = ast.unparse(call.func.value) if is_moved else _unchanged_input(call, call.func)
        if name and _is_certain(source, statement):
            yield Hit(
                message=f"The result of `{ast.unparse(call.func)}()` is discarded: the call does not change `{name}`.",
                node=call,
                fix=_assign_result(source, statement, name) if name.isidentifier() else None,
            )


def _derivatives(source: SourceFile) -> Iterator[Hit]:
    """Yield the calls of ``torch.autograd.grad`` that are statements, as if they were ``loss.backward()``."""
    for call in source.calls_of("torch.autograd.grad"):
        statement = source.parents.get(id(call))
        if isinstance(statement, ast.Expr) and call.args and _is_certain(source, statement):
            yield Hit(
                message="The result of `torch.autograd.grad()` is discarded: it returns the gradients and leaves "
                f"`.grad` of all parameters unchanged. Writing them there is `{ast.unparse(call.args[0])}.backward()`.",
                node=call,
            )


def _tables(source: SourceFile) -> Iterator[Hit]:
    """Yield the calls of ``df.drop(columns=...)`` and other methods of tables whose changed copy is discarded."""
    for statement in source.nodes_of(ast.Expr):
        match statement.value:
            case ast.Call(func=ast.Attribute(attr=method, value=table), args=args, keywords=keywords) as call:
                pass
            case _:
                continue
        words = {each.arg for each in keywords}
        is_table = method in _TABLE_METHODS or bool(words & _TABLE_METHODS_WITH.get(method, frozenset()))
        is_made = any(_TABLE.search(ast.unparse(each)) for each in origins(source, table, 2))
        shows = source.notebook and not _is_certain(source, statement)  # the last line of a cell shows its value
        if is_table and is_made and not shows and not words & {"inplace", None} and len(args) < 5:
            yield Hit(
                message=f"The result of `{ast.unparse(call.func)}()` is discarded: the call returns a changed copy "
                f"and does not change `{ast.unparse(table)}`.",
                node=call,
                fix=_assign_result(source, statement, table.id) if isinstance(table, ast.Name) else None,
            )


def _parts_of_batch(loop: BatchLoop) -> Iterator[str]:
    """Yield the variables into which a loop unpacks a batch that are called images, inputs or labels."""
    if any("time" in ast.unparse(each.func) for each in nodes_in(loop.node, ast.Call)):
        return  # the transfer may be measured
    target = loop.node.target
    if loop.counter and isinstance(target, ast.Tuple):
        target = target.elts[-1]
    for each in target.elts if isinstance(target, ast.Tuple) else ():
        if isinstance(each, ast.Name) and re.fullmatch(r"(images?|imgs?|inputs?|labels?|targets?|masks?)\d?", each.id):
            yield each.id


def _unchanged_input(call: ast.Call, function: ast.Attribute) -> str:
    """Return what a call reads and leaves unchanged, if it returns changed values of it; "" for other calls."""
    if any(each.arg in (None, "out", "inplace") for each in call.keywords):
        return ""
    owner, is_stored = function.value, _has_stored_values(function.value) and function.attr in CHANGING_ARITHMETIC
    if isinstance(owner, ast.Name) and owner.id in ("torch", "np", "numpy") and call.args:
        changing = CHANGING_METHODS | (CHANGING_ARITHMETIC if _has_stored_values(call.args[0]) else {"clip"})
        return ast.unparse(call.args[0]) if function.attr in changing and len(call.args) < 4 else ""
    if is_stored or (isinstance(owner, ast.Name) and _is_pure(function.attr, call)):
        return ast.unparse(owner)
    return ast.unparse(owner) if function.attr in CHANGING_METHODS and _has_stored_values(owner) else ""


def _has_stored_values(node: ast.expr) -> bool:
    """Return True for a gradient, a weight, or the data behind a parameter: ``p.grad.data``, ``layer.weight``."""
    *owner, last = dotted_name(node).split(".")
    if last == "data" and owner and owner[-1] not in ("grad", "weight", "bias"):
        return re.fullmatch(r"p|w|params?|parameters?", owner[-1]) is not None  # that of another object may be a set
    return bool(owner) and last in ("grad", "weight", "bias", "data")


def _is_pure(attr: str, call: ast.Call) -> bool:
    """Return True for a method that only tensors and arrays have, and that never changes them."""
    numbers = all(isinstance(each, ast.Constant | ast.UnaryOp | ast.Tuple | ast.Call) for each in call.args)
    if attr in CHANGING_METHODS:
        return len(call.args) + len(call.keywords) > 0
    sizes = {"view": 1, "reshape": 1, "permute": 2, "transpose": 2, "unsqueeze": 1}
    if attr in sizes:
        return len(call.args) >= sizes[attr] and numbers
    return attr in ("squeeze", "contiguous", "long") and numbers and len(call.args) < 2


def _is_certain(source: SourceFile, statement: ast.stmt) -> bool:
    """Return True unless the statement may be there to raise an error, to measure time, or to show a value."""
    parent: Any = source.parents.get(id(statement))
    in_function = False
    while parent is not None:
        if isinstance(parent, ast.Try | ast.TryStar):
            return False
        items = [ast.unparse(each) for each in parent.items] if isinstance(parent, ast.With) else []
        if not all("no_grad" in each or "autocast" in each for each in items):
            return False
        in_function |= isinstance(parent, ast.FunctionDef | ast.For | ast.While)
        parent = source.parents.get(id(parent))
    return in_function


def _states_not_loaded(source: SourceFile) -> Iterator[Hit]:
    """Yield the statements that pass a state to ``state_dict`` instead of ``load_state_dict``."""
    for statement in source.nodes_of(ast.Expr):
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="state_dict") as method, args=args, keywords=options)):
                pass
            case _:
                continue
        passed = [*args, *(each.value for each in options)]
        if len(passed) != 1 or any(each.arg != "destination" for each in options) or _is_new(source, passed[0]):
            continue
        start, end = source.text.span(method.value)[1], source.text.span(passed[0])
        owner, state = ast.unparse(method.value), ast.unparse(passed[0])
        edits = (Edit(start, source.text.span(method)[1], ".load_state_dict"),)
        edits += tuple(Edit(source.text.span(o)[0], end[0], "") for o in options)
        yield Hit(
            message=f"`{owner}.state_dict({state})` loads nothing: it writes the current weights of `{owner}` into "
            f"`{state}`. Loading is `{owner}.load_state_dict({state})`.",
            node=statement,
            fix=Fix(edits, safe=False, description="Call load_state_dict"),
            severity=Severity.ERROR,
        )


def _comparisons(source: SourceFile) -> Iterator[Hit]:
    """Yield the statements that compare a variable with ``==`` where an assignment is meant."""
    for statement in source.nodes_of(ast.Expr):
        match statement.value:
            case ast.Compare(left=ast.Name() | ast.Attribute() | ast.Subscript() as left, ops=[ast.Eq()]):
                pass
            case _:
                continue
        if last_name(left) not in ("shape", "dtype", "device", "ndim") and _is_certain(source, statement):
            start, end = source.text.span(left)[1], source.text.span(statement.value.comparators[0])[0]
            is_plain = source.text.content[start:end].strip() == b"=="
            yield Hit(
                message=f"`{source.text.segment(statement)}` compares and discards the result: `{ast.unparse(left)}` "
                "keeps its value.",
                node=statement,
                fix=Fix((Edit(start, end, " = "),), safe=False, description="Assign") if is_plain else None,
            )


def _is_new(source: SourceFile, state: ast.expr) -> bool:
    """Return True if a dictionary may have been created to collect states: it is a parameter, or starts empty."""
    name = dotted_name(state)
    if not name:
        return not isinstance(state, ast.Call) or not dotted_name(state.func).endswith("load")
    values: list[ast.expr | None] = []
    if "dest" in name and any(each.arg == name for each in source.nodes_of(ast.arg)):
        return True
    for each in source.nodes_of(ast.Assign, ast.AnnAssign):
        targets = each.targets if isinstance(each, ast.Assign) else [each.target]
        values += [each.value for target in targets if dotted_name(target) == name]
    empty = [v for v in values if isinstance(v, ast.Dict) and not v.keys]
    empty += [v for v in values if isinstance(v, ast.Call) and not v.args and dotted_name(v.func).endswith("ict")]
    return any("state_dict" not in ast.unparse(v) for v in empty) and len(empty) == len([v for v in values if v])


def _is_activation(source: SourceFile, call: Op) -> bool:
    """Return True for an activation or dropout in the ``forward`` of a module."""
    if call.kind is OpKind.TORCH_CALL:
        is_match = call.name in FUNCTIONS and not _in_place(call.node, FUNCTIONS[call.name])
    else:
        is_match = all(
            each.kind is ValueKind.MODEL and each.name in LAYERS and not _in_place(each.node, LAYERS[each.name])
            for each in call.subject.alternatives()
        ) and not any(getattr(each.func, "attr", "").endswith("_hook") for each in source.all_calls)
    return is_match and _in_forward(source, call)


def _in_place(call: Any, position: int) -> bool:
    """Return True if a function or layer may change its input or write to ``out``."""
    if not isinstance(call, ast.Call) or any(isinstance(each, ast.Starred) for each in call.args):
        return True
    inplace = [*call.args[position:], *(each.value for each in call.keywords if each.arg == "inplace")]
    is_false = all(isinstance(each, ast.Constant) and each.value is False for each in inplace)
    return not is_false or any(each.arg in ("out", None) for each in call.keywords)


def _in_forward(source: SourceFile, call: Op) -> bool:
    forward = next((each for each in call.functions if getattr(each, "name", "") == "forward"), None)
    inner = [each for each in call.functions if isinstance(each, ast.FunctionDef)]
    if forward is None or not inner:
        return False
    return _is_method(source, forward) and not _is_guarded(inner[-1], call.node, source)


def _is_method(source: SourceFile, function: Any) -> bool:
    classes = (each for each in source.nodes_of(ast.ClassDef) if each.bases)
    return any(function is statement for each in classes for statement in each.body)


def _is_guarded(function: Any, node: ast.Call, source: SourceFile) -> bool:
    """Return True for a call in ``try``, or in a ``with`` other than autocast."""
    for each in walk(function):
        guards = isinstance(each, ast.Try | ast.TryStar)
        if isinstance(each, ast.With | ast.AsyncWith):
            names = [
                source.qualified_name(item.context_expr.func)
                for item in each.items
                if isinstance(item.context_expr, ast.Call)
            ]
            guards = len(names) < len(each.items) or not all(name.endswith("autocast") for name in names)
        if guards and is_inside(node, each):
            return True
    return False


def _is_move(source: SourceFile, call: Op) -> bool:
    """Return True for a tensor that is moved, cast or detached in a loop that trains."""
    if call.name not in MOVING or not call.loops or _is_guarded(call.loops[0].node, call.node, source):
        return False
    trains = any(source.ops_in_loop(loop, OpKind.BACKWARD, root=call.entry_point) for loop in call.loops)
    return trains and all(_is_tensor(each) for each in call.subject.alternatives())


def _is_reshaped(source: SourceFile, call: Op) -> bool:
    """Return True for a new view of a computed tensor, in a function."""
    if call.name.removeprefix("torch.Tensor.") not in RESHAPING or not isinstance(call.function, ast.FunctionDef):
        return False
    return not _is_guarded(call.function, call.node, source) and all(map(_is_tensor, call.subject.alternatives()))


RESHAPING: Final = frozenset((
    "squeeze", "unsqueeze", "view", "reshape", "permute", "transpose", "flatten", "contiguous", "expand", "repeat",
))  # fmt: skip
"""Methods that return a new view or copy of a tensor."""


def _is_tensor(value: AbstractValue) -> bool:
    """Return True for a tensor that PyTorch computed, or that is part of a batch with the default collation."""
    if value.kind is not ValueKind.TENSOR:
        return False
    is_part = bool(value.sources) and value.sources[0].name == value.name and not isinstance(value.node, ast.Call)
    if value.name != "batch":
        creator = (value.sources[0] if is_part else value).origin()
        return creator is not None and (creator.name in CREATED or creator.name.startswith(COMPUTED))
    if not is_part:  # the batch may be an object that changes itself
        return False
    loaders = [each for each in value.ancestors() if each.kind is ValueKind.LOADER]
    return bool(loaders) and all(
        each.name == "torch.utils.data.DataLoader"
        and not {"collate_fn", "6", "**"} & each.arguments.keys()
        and not ("batch_size" in each.arguments and each.arguments["batch_size"].constant(0) is None)
        for each in loaders
    )


def _input_name(call: Op) -> str:
    """Return the name of the tensor that the operation is applied to; "" if it has none."""
    method = call.name.startswith("torch.Tensor.")
    tensor = call.node.func.value if method else call.node.args[0] if call.node.args else None
    return tensor.id if isinstance(tensor, ast.Name) else ""


def _assign_result(source: SourceFile, statement: Any, name: str) -> Fix:
    start = source.text.span(statement)[0]
    return Fix((Edit(start, start, f"{name} = "),), safe=False, description="Assign the result")


_ALONE: Final = re.compile(
    r"[\n;:][ \t]*(?!(?:return|yield|if|elif|while|for|assert|raise|with|del|await)\b)[^\n=#]*\("
)
"""The start of a statement that is a call."""
_PURE_CALL: Final = re.compile(
    r"(?:queeze|view|reshape|permute|transpose|contiguous|long|\.to|cuda|flatten|expand|repeat|state_dict|[ei]lu|dropout|igmoid"
    r"|tanh|oftmax|masked|index_|scatter_add|clamp|mish|swish|plus|detach|float|double|half|bfloat16|\bgrad"
    r"|\.drop|fillna|set_index|sort_values|sort_index|rename|replace|interpolate"
    r"|(?:grad|data|weight|bias|torch|np|numpy)\.(?:clip|add|sub|mul|div|lerp))\w*\("
)
_LAYER: Final = re.compile(r"[a-z]LU|ELU|Mish|Hardswish|Dropout|igmoid|Tanh|Softmax|Softplus")

_NAMED: Final = re.compile(rf"\.({'|'.join(_METHODS_NAMED)})[ \t]*(?:#[^\n]*)?\n")
_COMPARED: Final = re.compile(r"[\n;:][ \t]*[\w.]+(?:\[[^\]\n]*\])*[ \t]*==")


def _may_discard(text: str) -> bool:
    """Return True for a text with a layer, or with a statement that starts with such a call or with a comparison."""
    return bool(_LAYER.search(text) or _COMPARED.search(text) or _NAMED.search(text)) or any(
        map(_PURE_CALL.search, _ALONE.findall(f"\n{text}"))
    )


PURE = ".squeeze(|.unsqueeze(|.view(|.reshape(|.permute(|.transpose(|.contiguous(|.long(|.to(|.cuda("
_WORDS: Final = (
    f"{PURE}|queeze(|masked_|index_|scatter_add(|clamp|flatten(|.state_dict(|relu|ReLU|elu|LU(|dropout|Dropout|igmoid"
    "|tanh|Tanh|oftmax|.detach()|.float()|.half()|==|.clip(|.grad|import grad|.data.|.weight.|.bias."
    "|.reset_parameters|.init_weights|.zero_|.share_memory|.cuda\n|.drop|.fillna(|et_index(|.sort_|.rename(|.replace("
)
RULE = Rule(required_words=(_WORDS, _may_discard), find=find_all)

SCRIPT = """
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
        {activation}
        return self.last(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.abs().sum(1, keepdim=True)).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL009",
    title="The result of an operation is discarded",
    severity=Severity.WARNING,
    bad=SCRIPT.replace("{activation}", "F.relu(x)"),
    good=SCRIPT.replace("{activation}", "x = F.relu(x)"),
    fix="Assign the result, x = F.relu(x), or remove the line.",
    rule=RULE,
)
