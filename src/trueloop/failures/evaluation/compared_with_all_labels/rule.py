"""Finds comparisons of outputs (N, 1) with labels (N,), in the source; a loss of the program shows both shapes."""

import ast
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import FORWARD_RESULT, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.broadcast_pairs import is_in_total, pair_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.shuffled_loaders import Calls
from trueloop.analysis.queries.target_shapes import Shapes
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Rule

ELEMENTWISE: Final = frozenset((
    "sigmoid", "round", "detach", "cpu", "numpy", "clamp", "exp", "tanh", "abs", "gt", "ge", "lt", "le", "astype",
    "where", "logical_not", "type_as", "clone", "compare", "long", "int", "bool", "double", "half", "to", "type",
    "byte", "pow", "square", "contiguous", "logsigmoid", "float", "data",
))  # fmt: skip
_OF_COLUMNS: Final = frozenset((
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "BCELoss", "BCEWithLogitsLoss", "mse_loss", "MSELoss",
    "l1_loss", "L1Loss", "smooth_l1_loss", "SmoothL1Loss", "huber_loss", "HuberLoss",
))  # fmt: skip
_OF_CLASSES: Final = frozenset(("cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss"))
_REDUCTIONS: Final = frozenset(("sum", "mean"))
_JOINING: Final = frozenset(("torch.cat", "torch.concat", "torch.concatenate", "numpy.concatenate"))
_STATISTICS: Final = frozenset(("mean", "std", "var", "min", "max"))
_FLATTENING: Final = frozenset(("view", "reshape", "flatten", "ravel"))
_COMPARISONS: Final = ast.Eq | ast.NotEq
_INDICES: Final = {":, 0": "row", "..., 0": "row", ":, None": "column", "..., None": "column"}
MAX_DEPTH: Final = 40
MAX_CALLS: Final = 8  # of a function that compares its arguments


class Shaped(NamedTuple):
    """A tensor, without the operations that do not change which sample a value belongs to."""

    base: AbstractValue
    changes: tuple[str, ...]
    """Changes of the shape, the latest first: "column" = (N,) to (N, 1), "row" = (N, 1) to (N,), "class" = argmax."""


class Evidence(NamedTuple):
    """What a loss shows about the shapes of its inputs."""

    output: str
    """Shape of the model's output: "column" or "row"."""
    model: AbstractValue
    label: AbstractValue
    shown: Any
    """The argument of the loss that has another shape in the loss than elsewhere."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each sum or mean of a comparison in which an output meets the labels of all samples."""
    known = [each for loss in source.ops(OpKind.LOSS) if (each := _evidence(loss)) is not None]
    seen = set[int]()
    for reduced in source.ops(OpKind.TORCH_CALL) if known else ():
        is_total = reduced.name.rpartition(".")[2] in _REDUCTIONS and not _dimensions(reduced)
        compared = _compared(reduced.subject) if is_total else None
        if compared is None or id(compared.node) in seen:
            continue
        sides = [shaped(each) for each in compared.sources]
        for output, label in (sides, sides[::-1]):
            found = next((each for each in known if _is_broadcast(each, output, label)), None)
            if found is not None:
                seen.add(id(compared.node))
                yield _hit(source, compared, found, is_first=output is sides[0])
                break
    yield from _by_shapes(source, seen)


def _by_shapes(source: SourceFile, seen: set[int]) -> Iterator[Hit]:
    """Yield each sum or mean of a comparison whose sides have these shapes by what creates them."""
    shapes = Shapes(source)
    for node in (*source.nodes_of(ast.Compare), *source.all_calls):
        sides = _equal_sides(node)
        if len(sides) != 2 or id(node) in seen or not is_in_total(source, node):
            continue
        name = getattr(function_of(source, node), "name", "")
        paths: list[Calls] = [(), *((call,) for call in definitions(source).calls.get(name, [])[:MAX_CALLS])]
        left, right = sides
        pair = next((e for path in paths if (e := pair_of(source, shapes, node, left, right, path))), None)
        if pair is None:
            continue
        text = source.text.segment(pair.column)
        is_plain = isinstance(pair.column, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        edit = source.text.replace(pair.column, f"{text}.squeeze(1)" if is_plain else f"({text}).squeeze(1)")
        yield Hit(
            message=f"`{ast.unparse(node)}` compares each output with the labels of all samples: "
            f"`{ast.unparse(pair.column)}` has the shape (N, 1) and `{ast.unparse(pair.row)}` the shape (N,).",
            node=node,
            fix=Fix((edit,), safe=False, description="Give both sides the same shape"),
        )


def _equal_sides(node: ast.Compare | ast.Call) -> Sequence[ast.expr]:
    match node:
        case ast.Compare(ops=[ast.Eq() | ast.NotEq()]):
            return _sides(node)
        case ast.Call(func=ast.Attribute(attr="eq" | "ne"), keywords=[]):
            return _sides(node)
        case _:
            return ()


def _hit(source: SourceFile, compared: AbstractValue, found: Evidence, *, is_first: bool) -> Hit:
    shapes = ("(N, 1)", "(N,)") if found.output == "column" else ("(N,)", "(N, 1)")
    sides = _sides(compared.node)
    edits = ()
    if len(sides) == 2:
        wide = sides[0] if is_first is (found.output == "column") else sides[1]
        text = source.text.segment(wide)
        is_plain = isinstance(wide, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        edits = (source.text.replace(wide, f"{text}.squeeze(1)" if is_plain else f"({text}).squeeze(1)"),)
    return Hit(
        message=f"`{ast.unparse(compared.node)}` compares each output with the labels of all samples: the outputs have "
        f"the shape {shapes[0]} and the labels {shapes[1]}, as the `{ast.unparse(found.shown)}` of the loss shows.",
        node=compared.node,
        related=((found.shown, "the loss gets equal shapes"),),
        fix=Fix(edits, safe=False, description="Give both sides the same shape") if edits else None,
    )


def _evidence(loss: Op) -> Evidence | None:
    """Return what a loss shows, if exactly one of its arguments changes its shape; None otherwise."""
    if len(loss.inputs) != 2:
        return None
    output, label = (shaped(each) for each in loss.inputs)
    model = _model(output)
    if model is None or label is None or output is None or _model(label) is not None:
        return None
    name, changes = loss.name.rpartition(".")[2], (output.changes, label.changes)
    if name in _OF_COLUMNS and changes in (((), ("column",)), (("row",), ())):
        shown = loss.inputs[1 if label.changes else 0].node
        return Evidence("column", model, label.base, shown) if _outputs(output.base) in (None, 1) else None
    if name in _OF_CLASSES and changes == ((), ("row",)) and not _is_flattened(loss.inputs[1].node):
        return Evidence("row", model, label.base, loss.inputs[1].node)
    return None


def _is_broadcast(known: Evidence, output: Shaped | None, label: Shaped | None) -> bool:
    """Return True if the sides of a comparison have the shapes (N, 1) and (N,)."""
    if output is None or label is None or label.changes:
        return False
    model = _model(output)
    expected = () if known.output == "column" else ("class",)
    is_label = label.base is known.label or (_is_batch_item(label.base) and _is_batch_item(known.label))
    return model is not None and model.may_alias(known.model) and output.changes == expected and is_label


def _is_batch_item(value: AbstractValue) -> bool:
    """Return True for a part of a batch of a loader, or of something unknown."""
    return value.name in ("batch", "") and value.kind in (ValueKind.TENSOR, ValueKind.UNKNOWN)


def _model(value: Shaped | None) -> AbstractValue | None:
    """Return the model whose output a tensor is; None for other tensors."""
    base = None if value is None else value.base
    is_output = base is not None and base.sources and base.sources[0].kind is ValueKind.MODEL
    return base.sources[0] if base is not None and is_output and isinstance(base.node, ast.Call) else None


def _outputs(output: AbstractValue) -> Any:
    """Return the number of outputs of the last layer of a model; None if it is unknown."""
    origin = output.origin()
    if origin is None or origin.name != "torch.nn.Linear":
        return None
    size = origin.arguments.get("out_features") or origin.arguments.get("1")
    return None if size is None else size.constant()


def _compared(value: AbstractValue) -> AbstractValue | None:
    """Return the comparison or difference of two tensors of which a value consists; None for other values."""
    for _ in range(MAX_DEPTH):
        operator = value.node.ops if isinstance(value.node, ast.Compare) else ()
        tensors = _tensors(value)
        last = value.name.rpartition(".")[2]
        if len(tensors) == 2 and (
            last in ("eq", "ne", "binary Sub") or all(isinstance(e, _COMPARISONS) for e in operator)
        ):
            is_pair = last in ("eq", "ne", "binary Sub", "compare") and not value.union
            return value if is_pair else None
        if len(tensors) != 1 or not _is_elementwise(value):
            return None
        value = tensors[0]
    return None


def _tensors(value: AbstractValue) -> list[AbstractValue]:
    """Return the operands of an operation that are not constants."""
    return [each for each in value.sources if each.kind not in (ValueKind.CONSTANT, ValueKind.NAME)]


def _sides(node: Any) -> Sequence[ast.expr]:
    match node:
        case ast.Compare(left=left, comparators=[right]) | ast.BinOp(left=left, right=right):
            return left, right
        case ast.Call(func=ast.Attribute(value=left), args=[right]) | ast.Call(args=[left, right]):
            return left, right
        case _:
            return ()


def _is_elementwise(value: AbstractValue) -> bool:
    return value.name.rpartition(".")[2] in ELEMENTWISE or value.name.startswith(("unary ", "binary "))


def _dimensions(operation: Op) -> bool:
    """Return True if a sum or mean is only over some dimensions."""
    own = () if operation.name.startswith("torch.Tensor.") else ("0", "input")
    return bool(set(operation.arguments) - {*own, "dtype"})


def shaped(value: AbstractValue) -> Shaped | None:
    """Return a tensor and the changes of its shape; None if they are not certain."""
    changes: list[str] = []
    for _ in range(MAX_DEPTH):
        if value.union or value.kind not in (ValueKind.TENSOR, ValueKind.UNKNOWN):
            break
        inner = value.attributes.get(FORWARD_RESULT)
        if inner is not None:
            within = shaped(inner) if inner.kind is ValueKind.TENSOR else Shaped(inner, ())
            return Shaped(value, (*changes, *within.changes)) if within else None
        items = _joined(value)
        if items is not None:
            value = items
            continue
        step, tensors = _shape_change(value), _unreduced(value)
        if step is None:
            return Shaped(value, tuple(changes))
        if step == "?" or len(tensors) != 1:
            break
        changes += [step] if step else []
        value = tensors[0]
    return None


def _joined(value: AbstractValue) -> AbstractValue | None:
    """Return what a loop collects in a list that ``torch.cat`` joins to one tensor; None for other values."""
    is_by_sample = all(each.constant() == 0 for each in value.sources[1:])
    items = value.sources[0] if value.name in _JOINING and value.sources and is_by_sample else None
    is_list = items is not None and items.kind is ValueKind.SEQUENCE and not items.union and len(items.sources) == 1
    return items.sources[0] if items is not None and is_list else None


def _unreduced(value: AbstractValue) -> list[AbstractValue]:
    """Return the operands of an operation, without the means and deviations by which values are scaled."""
    tensors = _tensors(value)
    if len(tensors) < 2 or not value.name.startswith("binary "):
        return tensors
    return [each for each in tensors if each.name.rpartition(".")[2] not in _STATISTICS]


def _shape_change(value: AbstractValue) -> str | None:
    """Return what an operation does to the shape: "" = nothing, "?" = unknown; None for values of no operation."""
    node, last = value.node, value.name.rpartition(".")[2]
    if last == "max":  # classes = outputs.max(1)[1]
        is_item = not isinstance(node, ast.Call)
        found = "class" if is_item and "[0]" not in ast.unparse(node) else "" if value.arguments else "?"
    elif isinstance(node, ast.Subscript):
        index = ast.unparse(node.slice).strip("()")
        found = _INDICES.get(index, "?") if isinstance(node.slice, ast.Tuple) else None
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and value.sources:
        found = "" if node.attr == "data" else None if value.kind is ValueKind.UNKNOWN else "?"
    elif value.name.startswith(("unary ", "binary ")) or last in ELEMENTWISE:
        found = ""
    elif last == "argmax":
        found = "class" if "keepdim" not in ast.unparse(node) else "?"
    else:
        is_operation = value.name.startswith("torch.") or last in ("eq", "ne")
        found = _reshaped(value, last) if is_operation else None
    return found


def _reshaped(value: AbstractValue, operation: str) -> str:
    arguments = [each.constant("?") for key, each in value.arguments.items() if key.isdigit() or key == "dim"]
    arguments = arguments if value.name.startswith("torch.Tensor.") else arguments[1:]
    if operation == "squeeze":
        return "row" if arguments in ([], [1], [-1]) else "?"
    if operation == "unsqueeze":
        return "column" if arguments in ([1], [-1]) else "?"
    if operation in _FLATTENING and arguments in ([-1], []):
        return "row"
    return "column" if operation in _FLATTENING and len(arguments) == 2 and arguments[1] == 1 else "?"


def _is_flattened(node: Any) -> bool:
    """Return True if an argument may be flattened as a precaution: ``labels.squeeze()``, ``labels.view(-1)``."""
    return any(
        isinstance(each.func, ast.Attribute)
        and (each.func.attr in _FLATTENING or (each.func.attr == "squeeze" and not each.args and not each.keywords))
        for each in nodes_in(node, ast.Call)
    )


RULE = Rule(
    required_words=(
        "squeeze|view(|reshape(|flatten(|None]|0]|Linear(",
        "==|eq(|!=| - ",
        "sum(|mean(",
        "oss|entropy|kl_div",
    ),
    find=find,
)
