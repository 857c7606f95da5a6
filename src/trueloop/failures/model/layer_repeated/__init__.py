"""``[layer] * n`` repeats one layer instead of creating n layers.

What you see
    The model learns worse than it should, because its twelve blocks are one block that is called twelve times. It has
    too few parameters, because a shared parameter counts only once.

Why it happens
    ``[Block()] * 12`` calls ``Block()`` once and creates a list with twelve references to the same block.
    ``ModuleList`` and ``Sequential`` accept the same module several times without an error. So do
    ``itertools.repeat(Block(), 12)`` and ``dict.fromkeys(names, Block())``, and ``copy.copy(block)`` makes a new module
    with the parameters of the old one.

Fix
    Create each layer in a list comprehension:

        self.blocks = nn.ModuleList([Block()] * 12)  # wrong
        self.blocks = nn.ModuleList([Block() for _ in range(12)])  # right

    The same holds for a layer in a variable: ``[block for _ in range(12)]`` and ``layers.append(block)`` in a loop
    contain one block, and a default ``block=Block()`` is created once for all calls. To share weights on purpose, say
    so in the name or a comment: ``[shared_block] * 12``.

When this is fine
    - The repeated layer has no weights, such as an activation.
    - You share the weights on purpose, as in ALBERT, and write ``[shared_block] * 12`` or call the layer in a loop.
    - A setting decides about it: ``if share: layers = [block] * 12``.
    - A recurrent network applies one cell for several rounds: ``[Cell()] * rounds``.
    - Several agents have one policy, or a siamese network calls one encoder for both inputs.

How it is detected
    The linter reports a list that contains the call that creates a layer with weights and is multiplied, in a
    ``ModuleList`` or ``Sequential``, or for a list whose entries each get an optimizer, as the members of an
    ensemble. It also reports ``repeat`` and ``dict.fromkeys`` with such a call, ``copy.copy`` of a layer for each
    entry of a container, and ``functools.lru_cache`` on a function that returns a new layer. Of a layer in a variable
    it reports a comprehension, product or loop that puts it into a ``ModuleList``, ``ModuleDict`` or ``Sequential``
    several times, also where a function returns it or gets it as an argument, one normalisation, attention or linear
    layer that is passed to each block of such a container, and a layer that is the default of a parameter. It accepts
    that under a condition, and where the class, function or comment says "shared", "tied", "reuse" or the like. In a
    run, the sanitizer reports a container with several entries of the same parameters, if the source of the program has
    such an expression for its class. Without one, a run cannot show whether the weights are shared by mistake or on
    purpose.

References
    deep-learning-with-pytorch/dlwpt-code#89, "ResBlock" objects are most likely identical, in a book's own code,
    https://github.com/deep-learning-with-pytorch/dlwpt-code/issues/89
    zalandoresearch/pytorch-vq-vae#2, "I think its a bug", https://github.com/zalandoresearch/pytorch-vq-vae/issues/2
    acids-ircam/ddsp_pytorch#37, "Do MLPs share weight by accident?", https://github.com/acids-ircam/ddsp_pytorch/issues/37
    yaoppeng/U-Net_v2#10, https://github.com/yaoppeng/U-Net_v2/issues/10
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.program_files import parse_files
from trueloop.analysis.queries.assignments import assigned_value
from trueloop.analysis.queries.unregistered_modules import has_weights
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.source_text import Fix, dotted_name, integer, nodes_in, read_source, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.failures.model.layer_repeated.one_instance import one_instance_entries
from trueloop.failures.model.target_not_copied import is_shallow_copy
from trueloop.tracing.events import ModelCalled
from trueloop.tracing.running_code import user_modules
from trueloop.tracing.weak_id_dict import WeakIdDict

CONTAINERS = ("torch.nn.ModuleList", "torch.nn.Sequential")


class _Repeated(NamedTuple):
    """Entries of a container with the same parameters."""

    entries: int
    is_shallow: bool
    """Whether they are shallow copies, not one object."""


class Detector(BaseDetector):
    """Reads the source of the program if a container of a model has several entries with the same parameters.

    Cost: 1 us for each module of a model, once.
    """

    def __init__(self) -> None:
        self._known = WeakIdDict[Any, bool]()
        self._reported: set[SourceLocation] = set()

    def on_model_called(self, event: ModelCalled) -> Iterator[Evidence] | None:
        """Return evidence at the first call of a model with repeated layers."""
        if self._known.get(event.live_module):
            return None
        self._known.put(event.live_module, True)
        return self._repeated(event, repeated) if (repeated := _repeated_entries(event.live_module)) else None

    def _repeated(self, event: ModelCalled, repeated: dict[str, _Repeated]) -> Iterator[Evidence]:
        location = event.location and event.location.source_location
        files = {*([location.path] if location else ()), *user_modules().values()}
        files = {each for each in files if _has_repetition(read_source(each))}
        trees = parse_files(files) or {}
        made = {
            each.name: {last_name(call.func) for call in nodes_in(each, ast.Call)}
            for tree in trees.values()
            for each in nodes_in(tree, ast.FunctionDef)
        }
        for file, tree in trees.items():
            for node, entries in _repetitions(tree):
                names = {last_name(each.func) for each in entries if isinstance(each, ast.Call)}
                names = names.union(*(made.get(name, ()) for name in names))
                is_shallow = is_shallow_copy(node)
                kind = next((each for each in repeated if repeated[each].is_shallow and is_shallow), None)
                kind = kind or next((each for each in repeated if each in names and not is_shallow), None)
                place = SourceLocation(file, node.lineno)
                if kind is not None and place not in self._reported:
                    self._reported.add(place)
                    yield Evidence(
                        message=f"`{ast.unparse(node)}` repeats one {kind}: {repeated[kind].entries} entries of a "
                        f"container of {event.model.name} share its weights.",
                        location=place,
                    )


def _repeated_entries(model: Any) -> dict[str, _Repeated]:
    """Return the classes of layers with parameters that are several entries of one container, or shallow copies."""
    from torch import nn

    found: dict[str, _Repeated] = {}
    for container in model.modules():
        if isinstance(container, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            entries: list[Any] = [each for each in vars(container)["_modules"].values() if each is not None]
            parts = [(id(vars(each)["_parameters"]), id(vars(each)["_modules"])) for each in entries]
            for entry, part in zip(entries, parts, strict=True):
                if parts.count(part) > 1 and any(True for _ in entry.parameters()):
                    objects = {id(each) for each, other in zip(entries, parts, strict=True) if other == part}
                    found[type(entry).__name__] = _Repeated(parts.count(part), len(objects) > 1)
    return found


def _repetitions(tree: ast.AST) -> Iterator[tuple[ast.expr, list[ast.expr]]]:
    """Yield the expressions that repeat the result of a call, with what they repeat, and shallow copies."""
    for node in nodes_in(tree, ast.BinOp, ast.Call):
        match node:
            case ast.BinOp(op=ast.Mult()):
                yield from ((node, repeated.elts) for product, repeated, _ in _products(node) if product is node)
            case ast.Call(func=function, args=[first, *_]) if last_name(function) in ("repeat", "cycle"):
                yield node, first.elts if isinstance(first, ast.List | ast.Tuple) else [first]
            case ast.Call(args=[_, value]) if dotted_name(node.func) == "dict.fromkeys":
                yield node, [value]
            case ast.Call() if is_shallow_copy(node):
                yield node, [node]
            case _:
                pass


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each multiplied list that creates a layer with weights, if its elements become layers of a model."""
    makers = _makers(source)
    reported = set[int]()
    for call in source.calls_of(*CONTAINERS):
        for argument in call.args:
            for product, repeated, times in _products(_resolve_name(source, call, argument)):
                layer = next((each for each in repeated.elts if id(each) in makers), None)
                is_single = integer(times) in (0, 1)
                if not isinstance(layer, ast.Call) or is_single or id(product) in reported:
                    continue
                reported.add(id(product))
                count = f"{times.value} times" if isinstance(times, ast.Constant) else "several times"
                yield Hit(
                    message=f"This list contains the same `{source.text.segment(layer.func)}` {count}, so all entries "
                    "share its weights.",
                    node=product,
                    fix=_to_comprehension(source, product, repeated, times),
                )
    yield from (each for each in _repeated_models(source, makers) if id(each.node) not in reported)
    yield from _repeated_by_calls(source, makers)
    yield from _cached_layers(source)
    for each in one_instance_entries(source, makers):
        layer, entry = source.text.segment(each.created.func), source.text.segment(each.entry)
        is_default = each.entry is each.created
        yield Hit(
            message=f"`{entry}` is created once, as the default of a parameter, so all calls of "
            f"`{getattr(each.repeated_by, 'name', '')}` share its weights."
            if is_default
            else f"`{entry}` is one `{layer}` in several entries, so all of them share its weights.",
            node=each.entry,
            related=() if is_default else ((each.created, "created once here"),),
        )


def _repeated_by_calls(source: SourceFile, makers: set[int]) -> Iterator[Hit]:
    """Yield ``repeat`` and ``dict.fromkeys`` of a new layer, and a shallow copy for each entry of a container."""
    for call in source.calls_of("itertools.repeat", "itertools.cycle", "builtins.dict.fromkeys"):
        for node, entries in _repetitions(call):
            layer = next((each for each in entries if id(each) in makers), None)
            if node is call and isinstance(layer, ast.Call):
                yield Hit(
                    message=f"`{source.text.segment(call)}` gives the same `{source.text.segment(layer.func)}` each "
                    "time, so all places share its weights.",
                    node=call,
                )
    for call in source.calls_of(*CONTAINERS):
        for comprehension in nodes_in(call, ast.ListComp, ast.GeneratorExp):
            if isinstance(comprehension.elt, ast.Call) and source.qualified_name(comprehension.elt.func) == "copy.copy":
                edit = source.text.replace(comprehension.elt.func, "copy.deepcopy")
                is_plain = dotted_name(comprehension.elt.func) == "copy.copy"
                yield Hit(
                    message=f"`{source.text.segment(comprehension.elt)}` makes a new module with the same parameters, "
                    "so all entries share their weights.",
                    node=comprehension.elt,
                    fix=Fix((edit,), safe=False, description="Copy the parameters too") if is_plain else None,
                )


def _cached_layers(source: SourceFile) -> Iterator[Hit]:
    """Yield each cache on a function that creates a layer for a model with several of them."""
    for function in source.nodes_of(ast.FunctionDef):
        caches = [
            each
            for each in function.decorator_list
            if last_name(each.func if isinstance(each, ast.Call) else each) in ("cache", "lru_cache", "memoize")
        ]
        returned = nodes_in(function, ast.Return) if caches else ()
        if any(_creates_layer(each.value) for each in returned if each.value is not None):
            yield Hit(
                message=f"`{function.name}` returns the same layer for the same arguments, because its results are "
                "cached: all places that call it share its weights.",
                node=caches[0],
            )


def _creates_layer(node: ast.expr) -> bool:
    """Return True for ``nn.BatchNorm1d(n)``, ``NORMS[kind](n)`` and ``find_layer(kind)(n)`` with a width."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    kind = node.func
    if isinstance(kind, ast.Subscript | ast.Call):
        return _LAYERS.search(ast.unparse(kind)) is not None
    is_known = dotted_name(kind).startswith(("nn.", "torch.nn.")) or _LAYERS.search(last_name(kind)) is not None
    return is_known and last_name(kind)[:1].isupper()


def _makers(source: SourceFile) -> set[int]:
    """Return the ids of the calls that create a layer or model with weights, directly or in the function they call."""
    creations = [
        each for each in source.ops(OpKind.CREATE) if each.subject.kind is ValueKind.MODEL and has_weights(each.subject)
    ]
    return {id(call) for each in creations for call in (each.node, *each.calls)}


def _repeated_models(source: SourceFile, makers: set[int]) -> Iterator[Hit]:
    """Yield each multiplied list of a call that creates a model, if each entry is to get its own optimizer."""
    containers = {id(each) for call in source.calls_of(*CONTAINERS) for each in walk(call)}
    for node in source.nodes_of(ast.Assign):
        if not isinstance(node.value, ast.BinOp) or id(node.value) in containers:
            continue
        for product, repeated, times in _products(node.value):
            created = [each for each in repeated.elts if id(each) in makers]
            is_single = isinstance(times, ast.Constant) and times.value in (0, 1)
            if created and not is_single and _are_optimized_separately(source, last_name(node.targets[0])):
                yield Hit(
                    message=f"This list contains the one model of `{source.text.segment(created[0])}` several times, "
                    "so all entries share its weights.",
                    node=product,
                    fix=_to_comprehension(source, product, repeated, times),
                )


def _are_optimized_separately(source: SourceFile, name: str) -> bool:
    """Return True if a loop over a list takes the parameters of one entry after the other, and none is replaced."""
    for node in source.nodes_of(ast.Subscript):
        match node:
            case ast.Subscript(value=value, ctx=ast.Store()) if last_name(value) == name:
                return False
            case _:
                pass
    return any(
        any(last_name(each) == name for each in nodes_in(iterable, ast.expr))
        and any(each.attr == "parameters" for each in nodes_in(loop, ast.Attribute))
        for loop, iterable in _loops(source)
    )


def _loops(source: SourceFile) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Yield the loops and comprehensions, each with what it iterates over."""
    for node in source.nodes_of(ast.For, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp):
        yield node, node.iter if isinstance(node, ast.For) else node.generators[0].iter


def _resolve_name(source: SourceFile, call: ast.Call, argument: ast.expr) -> ast.expr:
    """Return the value that was assigned to an argument's name; the argument itself if it is not a name."""
    name = argument.value if isinstance(argument, ast.Starred) else argument
    if not isinstance(name, ast.Name):
        return argument
    return assigned_value(source, call, name.id) or argument


def _products(node: ast.expr) -> Iterator[tuple[ast.BinOp, ast.List | ast.Tuple, ast.expr]]:
    """Yield the products in a sum of lists, each with its list and its factor."""
    if isinstance(node, ast.Starred):
        yield from _products(node.value)
    elif isinstance(node, ast.List | ast.Tuple):
        yield from (inner for each in node.elts if isinstance(each, ast.Starred) for inner in _products(each))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from (*_products(node.left), *_products(node.right))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for factor, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(factor, ast.List | ast.Tuple) and not _UNROLLED.search(last_name(other)):
                yield node, factor, other


_UNROLLED: Final = re.compile(r"(?i)rounds?$|iter(ation)?s?$|hops?$|recur|unroll|(^|_)n_?rounds")
"""Names of the number of times that a recurrent network applies one cell."""


def _to_comprehension(source: SourceFile, product: ast.BinOp, repeated: Any, times: ast.expr) -> Fix | None:
    """Return the fix that replaces the list by a comprehension; None if it has several layers or a comment."""
    product_text = source.text.segment(product)
    if len(repeated.elts) != 1 or isinstance(repeated.elts[0], ast.Starred) or "#" in product_text:
        return None
    text = f"[{source.text.segment(repeated.elts[0])} for _ in range({source.text.segment(times)})]"
    return Fix((source.text.replace(product, text),), safe=False, description="Create a new layer for each entry")


_LAYERS: Final = re.compile(r"norm|conv|layer|block|linear|module", re.IGNORECASE)
_PRODUCTS: Final = tuple(
    map(re.compile, (r"\]\s*\*[^*]", r"\*(?<=[^*]\*)\s*\[", r"\*(?<=[^*]\*)\s*\([^()]*(?:\([^()]*\)[^()]*)?,"))
)
"""A list times a number, or a number times a list or tuple."""
_PLACES: Final = tuple(
    map(
        re.compile,
        (
            r"ModuleList\((?<!\wModuleList\()", r"ModuleDict\((?<!\wModuleDict\()", r"Sequential\((?<!\wSequential\()",
            r"add_module\((?<!\wadd_module\()", r"register_module\((?<!\wregister_module\()",
            r"setattr\((?<!\wsetattr\()", r"def (?<!\wdef )[^()]*\([^()]*=\s*(?:\w+\.)*[A-Z]\w*\(",
        ),
    )
)  # fmt: skip
"""What may contain a layer several times, and a parameter with an object as its default."""
_FACTOR: Final = re.compile(r"\)(?=\s*\*[^*])")


def _has_product(text: str) -> bool:
    return any(each.search(text) for each in _PRODUCTS) or any(
        _ends_tuple(text, factor.start()) for factor in _FACTOR.finditer(text)
    )


def _ends_tuple(text: str, end: int) -> bool:
    """Return True if a closing parenthesis ends a tuple; only its last item may contain parentheses."""
    closed = _last_parenthesis(text, end)
    if "," in text[closed + 1 : end]:
        return True
    if closed < 0 or text[closed] == "(" or text[closed + 1 : end].strip():
        return False
    opened = _last_parenthesis(text, closed)
    return opened >= 0 and text[opened] == "(" and "," in text[_last_parenthesis(text, opened) + 1 : opened]


def _last_parenthesis(text: str, end: int) -> int:
    return max(text.rfind("(", 0, end), text.rfind(")", 0, end))


def _has_repetition(text: str) -> bool:
    is_repeated = "itertools" in text and ("repeat(" in text or "cycle(" in text)
    return is_repeated or "fromkeys(" in text or "copy.copy(" in text or _has_product(text)


def _has_repetition_or_cache(text: str) -> bool:
    return "cache" in text or any(each.search(text) for each in _PLACES) or _has_repetition(text)


RULE = Rule(required_words=("ModuleList|Sequential|nn", _has_repetition_or_cache), find=find)

SCRIPT = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=16, depth=3):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.blocks = nn.ModuleList({blocks})
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.last(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
print(sum(parameter.numel() for parameter in model.parameters()), "parameters")
"""

FAILURE = Failure(
    code="MDL004",
    title="ModuleList([layer] * n) repeats one layer",
    severity=Severity.WARNING,
    bad=SCRIPT.replace("{blocks}", "[nn.Linear(width, width)] * depth"),
    good=SCRIPT.replace("{blocks}", "[nn.Linear(width, width) for _ in range(depth)]"),
    fix="Create a new layer for each entry: [Block() for _ in range(12)].",
    rule=RULE,
    detector=Detector,
)
