"""Finds totals that are divided by the wrong count, in the source."""

import ast
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import (
    LOADER_WORDS,
    BatchLoop,
    assigned_in,
    batch_loops,
    compared_sides,
    created_loader,
    dataset_of,
    function_of,
    hand_made_batch_loops,
    has_batches_of_one,
    has_one_batch,
    is_label,
    is_loader,
    is_loss_call,
    single_assignments,
    without_conversions,
)
from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.queries.possible_values import computed_from, enclosing_expressions, origins
from trueloop.analysis.queries.trained_models import unwrapped
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, encloses, nodes_in, walk
from trueloop.failures.failure import Rule, Severity
from trueloop.failures.loss.epoch_mean_wrong.smaller_last_batch import (
    find_smaller_last_batches,
    is_batch_size,
    is_size_of_full_batches,
)

_REPORTING: Final = frozenset(("print", "info", "log", "write", "add_scalar", "format", "round", "float", "log_metric"))
_SIZE: Final = re.compile(r"\.size\(0\)|\.shape\[0\]|\blen\(|batch_?size|\bbs\b", re.IGNORECASE)
_OTHER_REDUCTION: Final = re.compile(r"reduction\s*=\s*[\"'](?:sum|none)|size_average\s*=\s*False|reduce\s*=\s*False")
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SPLITS: Final = {
    "train": frozenset(("train", "training", "tr", "trn", "trainloader", "trainset", "traindata")),
    "val": frozenset(("val", "valid", "validation", "dev", "valloader", "validloader", "valset", "validset")),
    "test": frozenset(("test", "testing", "testloader", "testset", "testdata")),
}


class Term(Enum):
    """What is added to a total in each iteration."""

    COUNT = "counts the right predictions of all samples"
    MEAN = "adds up one mean per batch"
    SUM = "adds up the losses of all samples"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each division of a total by the number of something else than its terms."""
    yield from find_smaller_last_batches(source)
    yield from _sums_next_to_means(source)
    for loop in (*batch_loops(source), *hand_made_batch_loops(source)):
        for statement, name, value in _additions(loop):
            yield from _shares_of_full_batches(source, loop, statement, value)
            yield from _means_of_means(source, loop, statement, value)
            term = _term(source, loop, value)
            if not name or term is None or _is_inner(loop, statement):
                continue
            for division, divisor in _divisions(source, loop, name):
                if _is_last_index(loop, division, divisor):
                    yield _one_too_few(loop, statement, division)
                elif _is_of_other_loader(source, loop, divisor) and _is_latest(loop, name, division):
                    yield _other_loader(source, loop, statement, term, division, divisor)
                else:
                    yield from _judge(source, loop, statement, term, division, divisor)


def _sums_next_to_means(source: SourceFile) -> Iterator[Hit]:
    """Yield each report of a sum of losses in a function that reports the mean of another loop's losses."""
    for loop in batch_loops(source):
        if has_one_batch(source, loop) or has_batches_of_one(source, loop):
            continue
        for statement, name in _sums_of_means(source, loop):
            reports = _reports(source, loop, name) if not list(_divisions(source, loop, name)) else []
            others = (each for each in batch_loops(source) if each.function is loop.function and each is not loop)
            divided = (
                division
                for other in (others if reports else ())
                for _, mean in _sums_of_means(source, other)
                for division, _ in _divisions(source, other, mean)
                if mean != name and ast.unparse(other.loader) != ast.unparse(loop.loader)
            )
            division = next(divided, None)
            if division is not None:
                yield Hit(
                    message=f"`{name}` is reported as a sum over the batches of `{ast.unparse(loop.loader)}`, but "
                    f"`{ast.unparse(division)}` is a mean: the two cannot be compared.",
                    node=reports[0],
                    related=((statement, "added up here"), (division, "the mean")),
                    severity=Severity.WARNING,
                )


def _sums_of_means(source: SourceFile, loop: BatchLoop) -> Iterator[tuple[ast.stmt, str]]:
    """Yield each statement that adds the mean loss of a batch to a variable, with its name."""
    for statement, name, value in _additions(loop):
        is_loss = "loss" in name.lower() and not name.startswith("sum(") and not _is_inner(loop, statement)
        if is_loss and _term(source, loop, value) is Term.MEAN:
            yield statement, name


def _reports(source: SourceFile, loop: BatchLoop, name: str) -> list[ast.Call]:
    """Return the calls after a loop that print or log a variable; [] if anything else is computed from it."""
    found: list[ast.Call] = []
    for node in nodes_in(loop.function, ast.Name):
        if node.id != name or not isinstance(node.ctx, ast.Load):
            continue
        calls = [each for each in enclosing_expressions(source, node) if isinstance(each, ast.Call)]
        inner = any(isinstance(each, ast.BinOp) for each in enclosing_expressions(source, node))
        if inner or any(last_name(each.func) not in _REPORTING for each in calls):
            return []
        found += [each for each in calls[-1:] if each.lineno > (loop.node.end_lineno or 0)]
    return found


def _additions(loop: BatchLoop) -> Iterator[tuple[ast.stmt, str, ast.expr]]:
    """Yield each statement of a loop that adds to a total or a list, the text of the total, and the added value."""
    for each in nodes_in(loop.node, ast.AugAssign, ast.Assign, ast.Expr):
        match each:
            case ast.AugAssign(target=target, op=ast.Add(), value=value):
                yield each, dotted_name(target), value
            case ast.Assign(targets=[target], value=ast.BinOp(left=total, op=ast.Add(), right=value)):
                if ast.unparse(total) == ast.unparse(target):
                    yield each, dotted_name(target), value
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr="append"), args=[value])):
                yield each, f"sum({dotted_name(target)})", value
            case _:
                pass


def _shares_of_full_batches(source: SourceFile, loop: BatchLoop, statement: ast.stmt, value: ast.expr) -> Iterator[Hit]:
    """Yield the addition of ``(predicted == labels).sum() / batch_size``, which is too low for a smaller last batch."""
    share = _without_constant_factor(without_conversions(_assigned_once(loop.node, without_conversions(value))))
    match share:
        case ast.BinOp(op=ast.Div(), left=count, right=size) if is_size_of_full_batches(source, size, loop.node):
            count = _without_constant_factor(without_conversions(count))
            if _term(source, loop, count) is Term.COUNT and not _is_inner(loop, statement):
                yield Hit(
                    message=f"`{ast.unparse(share)}` divides by `{ast.unparse(size)}`, but the last batch of "
                    f"`{ast.unparse(loop.loader)}` may be smaller: its accuracy is too low.",
                    node=share,
                    related=((statement, "added up here"),) if share.lineno != statement.lineno else (),
                    severity=Severity.WARNING,
                )
        case _:
            pass


def _means_of_means(source: SourceFile, loop: BatchLoop, statement: ast.stmt, value: ast.expr) -> Iterator[Hit]:
    """Yield the addition of ``loss.item() / batch_size``, where PyTorch's loss already is a mean over the batch."""
    match _assigned_once(loop.node, without_conversions(value)):
        case ast.BinOp(op=ast.Div(), left=loss, right=size) as share if without_conversions(loss) is not loss:
            pass
        case _:
            return
    is_size = is_batch_size(source, size) or _is_size_of_batch(loop, size)
    if is_size and _is_mean_of_torch(source, loop, loss) and not _is_inner(loop, statement):
        yield Hit(
            message=f"`{ast.unparse(share)}` divides the loss by the batch size, but it already is the mean of the "
            "batch.",
            node=share,
            related=((statement, "added up here"),) if share.lineno != statement.lineno else (),
            severity=Severity.WARNING,
        )


def _is_size_of_batch(loop: BatchLoop, size: ast.expr) -> bool:
    """Return True for ``len(x)``, ``x.size(0)`` or ``x.shape[0]`` of a variable that the loop itself stores."""
    stored = {each.id for each in nodes_in(loop.node.target, ast.Name)} - {loop.counter}
    return any(each.id in stored for each in nodes_in(size, ast.Name)) and bool(_SIZE.search(ast.unparse(size)))


def _is_mean_of_torch(source: SourceFile, loop: BatchLoop, loss: ast.expr) -> bool:
    """Return True for the result of a loss of PyTorch, of which every possible one has the default reduction."""
    if has_batches_of_one(source, loop) or not _is_mean_loss(source, loop, loss):
        return False
    inner = without_conversions(loss)
    called = assigned_in(loop.node, inner.id) if isinstance(inner, ast.Name) else [inner]
    names = [name for call in called if isinstance(call, ast.Call) for name in _called_names(source, call)]
    return any(name.startswith("torch.nn.") for name in names)


def _called_names(source: SourceFile, call: ast.Call) -> list[str]:
    """Return the full names of what a call may run, nearest first; of ``nn.MSELoss().to(device)`` that of the class."""
    made = map(unwrapped, origins(source, call.func))
    return [source.qualified_name(each.func if isinstance(each, ast.Call) else each) for each in made]


def _without_constant_factor(node: ast.expr) -> ast.expr:
    """Return ``x`` for ``100 * x`` and ``x * 100``."""
    match node:
        case ast.BinOp(op=ast.Mult(), left=ast.Constant(), right=other):
            return without_conversions(other)
        case ast.BinOp(op=ast.Mult(), left=other, right=ast.Constant()):
            return without_conversions(other)
        case _:
            return node


def _other_loader(
    source: SourceFile, loop: BatchLoop, statement: ast.stmt, term: Term, division: Any, divisor: ast.expr
) -> Hit:
    loader = ast.unparse(loop.loader)
    right = f"len({loader})" if term is Term.MEAN else f"len({loader}.dataset)"
    fix = Fix((source.text.replace(divisor, right),), safe=False, description=f"Divide by {right}")
    return Hit(
        message=f"`{ast.unparse(division)}` divides by the length of another loader or dataset: "
        f"`{ast.unparse(statement)}` {term.value} of `{loader}`.",
        node=division,
        related=((statement, "added up here"),),
        fix=fix,
        severity=Severity.WARNING,
    )


def _is_of_other_loader(source: SourceFile, loop: BatchLoop, divisor: ast.expr) -> bool:
    """Return True for the length of a loader, or of its dataset, that certainly is not the one of a loop."""
    match _assigned_once(source.tree, _resolved(loop, without_conversions(divisor))):
        case ast.Call(func=ast.Name(id="len"), args=[ast.Attribute(value=other, attr="dataset" | "sampler")]):
            pass
        case ast.Call(func=ast.Name(id="len"), args=[other]):
            pass
        case _:
            return False
    own = _names(source, loop.loader)
    datasets = {
        ast.unparse(each.args[0]) for each in source.all_calls if "Loader" in last_name(each.func) and each.args
    }
    if not is_loader(source, other) and ast.unparse(other) not in datasets:
        return False
    if any(last_name(other) in re.findall(r"\w+", each) for each in own):
        return False
    own_splits, splits = ({_split(each) for each in names} - {""} for names in (own, _names(source, other)))
    return len(own_splits) == len(splits) == 1 and own_splits != splits


def _names(source: SourceFile, loader: ast.expr) -> set[str]:
    """Return the text of a loader or dataset, and of what the program assigns to it or passes for it."""
    name, function = last_name(loader), function_of(source, loader)
    created = created_loader(source, loader)
    found = [loader, *(created.args[:1] if created is not None else ())]
    found += [each for each in assigned_in(source.tree, ast.unparse(loader)) if each is not created]
    arguments: Any = getattr(function, "args", None)
    parameters = [each.arg for each in arguments.args] if arguments is not None else []
    if isinstance(loader, ast.Name) and name in parameters:
        position = parameters.index(name) - (parameters[:1] == ["self"])
        calls = [each for each in source.all_calls if last_name(each.func) == function.name]
        found += [each.args[position] for each in calls if len(each.args) > position]
        found += [keyword.value for each in calls for keyword in each.keywords if keyword.arg == name]
    return {ast.unparse(each) for each in found}


def _split(text: str) -> str:
    """Return "train", "val" or "test" for a loader or dataset that is named after its split; else ""."""
    words = {word.lower() for word in _WORD.findall(text)}
    found = [split for split, names in _SPLITS.items() if words & names]
    return found[0] if len(found) == 1 else ""


def _is_last_index(loop: BatchLoop, division: Any, divisor: ast.expr) -> bool:
    """Return True for the counter of ``enumerate``, after its loop, where it is the number of batches less 1."""
    is_counter = bool(loop.counter) and getattr(without_conversions(divisor), "id", "") == loop.counter
    if not is_counter or division.lineno <= (loop.node.end_lineno or 0) or not _is_latest(loop, loop.counter, division):
        return False
    starts = [e for e in nodes_in(loop.node.iter, ast.Call) if last_name(e.func) == "enumerate"]
    is_from_0 = bool(starts) and all(len(each.args) == 1 and not each.keywords for each in starts)
    around = [e for e in nodes_in(loop.function, ast.For, ast.While) if encloses(e, division) and e is not loop.node]
    changed = [
        name
        for each in nodes_in(loop.node, ast.AugAssign, ast.Assign)
        for name in nodes_in(each, ast.Name)
        if name.id == loop.counter and isinstance(name.ctx, ast.Store) and not nodes_in(each, ast.comprehension)
    ]
    return is_from_0 and not changed and all(encloses(each, loop.node) for each in around)


def _one_too_few(loop: BatchLoop, statement: ast.stmt, division: Any) -> Hit:
    return Hit(
        message=f"`{ast.unparse(division)}` divides by `{loop.counter}`, which after the loop over "
        f"`{ast.unparse(loop.loader)}` is the index of the last batch, one less than the number of batches.",
        node=division,
        related=((statement, "added up here"),),
        severity=Severity.WARNING,
    )


def _is_latest(loop: BatchLoop, name: str, division: Any) -> bool:
    """Return True if nothing else is stored in a variable between its loop and a division."""
    name = name.removeprefix("sum(").rstrip(")")
    return not any(
        isinstance(each.ctx, ast.Store)
        and dotted_name(each) == name
        and (loop.node.end_lineno or 0) < each.lineno < division.lineno
        for each in nodes_in(loop.function, ast.Name, ast.Attribute)
    )


def _judge(
    source: SourceFile, loop: BatchLoop, statement: ast.stmt, term: Term, division: Any, divisor: ast.expr
) -> Iterator[Hit]:
    batches, samples = _counts_batches(loop, divisor), _counts_samples(source, loop, divisor)
    if samples and term is not Term.MEAN:
        if isinstance(_resolved(loop, without_conversions(divisor)), ast.Call):  # and not a counter of what was drawn
            yield from _judge_part(source, loop, division, divisor)
        return
    if has_batches_of_one(source, loop) or not (samples if term is Term.MEAN else batches):
        return
    what = "samples" if samples else "batches"
    is_plain = loop.is_length(divisor)
    text = f"len({ast.unparse(loop.loader)}.dataset)" if term is not Term.MEAN else f"len({ast.unparse(loop.loader)})"
    fix = Fix((source.text.replace(divisor, text),), safe=False, description=f"Divide by {text}")
    yield Hit(
        message=f"`{ast.unparse(division)}` divides by the number of {what}, but `{ast.unparse(statement)}` "
        f"{term.value}.",
        node=division,
        related=((statement, "added up here"),),
        fix=fix if (is_plain or samples) and not isinstance(loop.loader, ast.Call) else None,
        severity=Severity.WARNING,
    )


def _judge_part(source: SourceFile, loop: BatchLoop, division: Any, divisor: ast.expr) -> Iterator[Hit]:
    """Yield a division by all samples of a dataset of which a sampler draws only some."""
    call, loader = created_loader(source, loop.loader), ast.unparse(loop.loader)
    samplers = [each.value for each in call.keywords if each.arg == "sampler"] if call is not None else []
    values = assigned_in(loop.function, samplers[0].id) if samplers and isinstance(samplers[0], ast.Name) else samplers
    if any(isinstance(each, ast.Call) and last_name(each.func) == "SubsetRandomSampler" for each in values):
        is_plain = isinstance(divisor, ast.Call)
        fix = Fix(
            (source.text.replace(divisor, f"len({loader}.sampler)"),), safe=False, description="Count the sampler"
        )
        yield Hit(
            message=f"`{ast.unparse(division)}` divides by all samples of the dataset, but the sampler of `{loader}` "
            f"draws only some of them: their number is `len({loader}.sampler)`.",
            node=division,
            related=((samplers[0], "the sampler"),),
            fix=fix if is_plain else None,
            severity=Severity.WARNING,
        )


def _term(source: SourceFile, loop: BatchLoop, value: ast.expr) -> Term | None:
    """Return what kind of number is added; None if it is unknown."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        for one, other in ((value.left, value.right), (value.right, value.left)):
            sizes = assigned_in(loop.node, other.id) if isinstance(other, ast.Name) else []
            if any(_SIZE.search(ast.unparse(each)) for each in (other, *sizes[:1])) and _is_mean_loss(
                source, loop, one
            ):
                return Term.SUM
        return None
    inner = without_conversions(value)
    if _is_mean_loss(source, loop, value):
        return Term.MEAN
    match without_conversions(_assigned_once(loop.node, inner)):
        case ast.Call(func=ast.Attribute(attr="sum" | "mean" as how, value=of), args=args):
            compared = args[0] if dotted_name(of) in ("torch", "np", "numpy") and args else of
        case _:
            return None
    if not _is_check(loop, compared):
        return None
    return Term.COUNT if how == "sum" else Term.MEAN


def _is_check(loop: BatchLoop, node: ast.expr) -> bool:
    """Return True for a comparison of predictions with labels: ``predicted == labels``."""
    node = _assigned_once(loop.node, without_conversions(node))
    sides = compared_sides(without_conversions(node))
    is_prediction = any("pred" in ast.unparse(each) or is_label(each) or _is_class(loop, each) for each in sides)
    return is_prediction and not any(map(_is_constant, sides))


def _is_class(loop: BatchLoop, node: ast.expr) -> bool:
    """Return True for the class with the highest score: ``outputs.argmax(1)``, ``torch.max(outputs, 1)[1]``."""
    node = without_conversions(node)
    if isinstance(node, ast.Name):
        pairs = single_assignments(loop.node)
        values = [value for target, value in pairs if node.id in {each.id for each in nodes_in(target, ast.Name)}]
        node = without_conversions(values[0]) if len(values) == 1 else node
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return isinstance(node, ast.Call) and last_name(node.func) in ("argmax", "max", "topk")


def _is_mean_loss(source: SourceFile, loop: BatchLoop, value: ast.expr) -> bool:
    """Return True for a number that a loss function with the default reduction computes in the loop."""
    inner = _without_reduction(source, loop, without_conversions(value))
    if isinstance(inner, ast.Name):
        scaled = any(dotted_name(each.target) == inner.id for each in nodes_in(loop.node, ast.AugAssign))
        assigned = [] if scaled else [without_conversions(each) for each in assigned_in(loop.node, inner.id)]
        values = [_without_reduction(source, loop, each) for each in assigned]
    else:
        values = [inner]
    is_loss = bool(values) and all(is_loss_call(source, each) or _is_loss_of_batch(each) for each in values)
    # One of several losses, `losses[1](outputs, y)`, may be there because it has another reduction.
    is_loss = is_loss and not any(isinstance(getattr(each, "func", None), ast.Subscript) for each in values)
    is_loss = is_loss or (isinstance(inner, ast.Name) and _is_sum_of_means(source, loop, inner))
    functions = [called_function(source, each) for each in values if isinstance(each, ast.Call)] if is_loss else []
    adds_up = any(".sum(" in ast.unparse(each) for each in functions if each is not None)
    return is_loss and not adds_up and not _OTHER_REDUCTION.search(source.text.source)


def _is_sum_of_means(source: SourceFile, loop: BatchLoop, loss: ast.Name) -> bool:
    """Return True for a variable with a backward pass that is computed from means, and from no sums."""
    owners = [
        getattr(each.func, "value", None)
        for each in nodes_in(loop.node, ast.Call)
        if last_name(each.func) == "backward"
    ]
    if loss.id not in [getattr(each, "id", "") for each in owners]:
        return False
    called = {last_name(each.func) for each in computed_from(source, loss) if isinstance(each, ast.Call)}
    return "mean" in called and not called & {"sum", "len", "logsumexp"}


def _without_reduction(source: SourceFile, loop: BatchLoop, node: ast.expr) -> ast.expr:
    """Return the loss in ``loss.mean()``, and in ``loss.sum()`` if the loss is PyTorch's: it already is one number."""
    match node:
        case ast.Call(func=ast.Attribute(attr="mean" | "sum" as how, value=inner), args=[], keywords=[]):
            inner = without_conversions(inner)
        case _:
            return node
    values = assigned_in(loop.node, inner.id) if isinstance(inner, ast.Name) else [inner]
    names = [name for each in values if isinstance(each, ast.Call) for name in _called_names(source, each)]
    is_number = bool(names) and names[-1].startswith("torch.nn.") and len(values) == 1
    return inner if how == "mean" or is_number else node


def _is_loss_of_batch(node: ast.expr) -> bool:
    """Return True for a loss that gets an unpacked batch: ``model.calc_loss(*batch)``."""
    match node:
        case ast.Call(func=func, args=[ast.Starred()]):
            return re.search(r"(^|_)loss$", last_name(func)) is not None
        case _:
            return False


def _is_inner(loop: BatchLoop, statement: ast.AST) -> bool:
    """Return True if an inner loop runs the statement several times per batch."""
    inner = [each for each in nodes_in(loop.node, ast.For, ast.While) if each is not loop.node]
    return any(encloses(each, statement) for each in inner)


def _divisions(source: SourceFile, loop: BatchLoop, name: str) -> Iterator[tuple[Any, ast.expr]]:
    """Yield each division of a variable after its loop or in it, with the divisor."""
    for node in walk(loop.function):
        if getattr(node, "lineno", 0) < loop.node.lineno:
            continue
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div) and dotted_name(node.target) == name:
            yield node, node.value
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _is_only_factor(node.left, name):
            parent = source.parents.get(id(node))
            is_rest = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div | ast.Mult)
            sides = (parent.left, parent.right) if isinstance(parent, ast.BinOp) else ()
            if not is_rest or all(each is node or _is_constant(each) for each in sides):
                yield node, node.right


def _is_only_factor(node: ast.expr, name: str) -> bool:
    """Return True for the variable, perhaps converted and times a constant."""
    node = without_conversions(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = (node.left, node.right)
        return any(_is_only_factor(one, name) and _is_constant(other) for one, other in (sides, sides[::-1]))
    return ast.unparse(node) == name


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def _counts_batches(loop: BatchLoop, divisor: ast.expr) -> bool:
    divisor = _resolved(loop, without_conversions(divisor))
    if isinstance(divisor, ast.BinOp) and isinstance(divisor.op, ast.Add) and _is_constant(divisor.right):
        return bool(loop.counter) and getattr(divisor.left, "id", "") == loop.counter  # i + 1
    added = [value for each, name, value in _additions(loop) if name == _counted(divisor) and not _is_inner(loop, each)]
    is_one = len(added) == 1 and isinstance(divisor, ast.Name) and ast.unparse(added[0]) == "1"
    is_list = len(added) == 1 and isinstance(divisor, ast.Call) and not _is_joined(loop, _counted(divisor))
    return loop.is_length(divisor) or is_one or is_list


def _is_joined(loop: BatchLoop, counted: str) -> bool:
    """Return True if a list of batches is replaced later: ``targets = np.concatenate(targets)``."""
    stores = [each for each in nodes_in(loop.function, ast.Name) if isinstance(each.ctx, ast.Store)]
    return sum(f"sum({each.id})" == counted for each in stores) > 1


def _counted(divisor: ast.expr) -> str:
    """Return the name that `_additions` yields for a counter, or for the length of a list."""
    match divisor:
        case ast.Call(func=ast.Name(id="len"), args=[of]):
            return f"sum({dotted_name(of)})"
        case _:
            return dotted_name(divisor)


def _counts_samples(source: SourceFile, loop: BatchLoop, divisor: ast.expr) -> bool:
    number = _number_of_rows(loop) if isinstance(loop.loader, ast.Call) else None
    if number is not None:
        return bool(_count_texts(loop, number) & _count_texts(loop, divisor))
    divisor = _resolved(loop, without_conversions(divisor))
    match divisor:
        case ast.Call(func=ast.Name(id="len"), args=[ast.Attribute(value=of, attr="dataset")]):
            return ast.unparse(of) == ast.unparse(loop.loader)
        case ast.Call(func=ast.Name(id="len"), args=[ast.Name() as of]):
            dataset = dataset_of(source, loop.loader)
            return dataset is not None and ast.unparse(dataset) == of.id
        case ast.Name(id=counter):
            added = [value for _, name, value in _additions(loop) if name == counter]
            return len(added) == 1 and bool(_SIZE.search(ast.unparse(added[0])))
        case _:
            return False


def _number_of_rows(loop: BatchLoop) -> ast.expr | None:
    """Return the number of rows that a loop cuts by hand: ``n`` of ``range(0, n, 32)``; None if unknown."""
    match loop.loader:
        case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=0), stop, step]):
            return None if _is_constant(step) and step.value == 1 else stop  # type: ignore[attr-defined]
        case ast.Call(func=ast.Name(id="range"), args=[stop]):
            counted = _resolved(loop, without_conversions(stop))
            if not isinstance(counted, ast.BinOp) or not isinstance(counted.op, ast.FloorDiv | ast.Div):
                return None
            rows = counted.left  # n or n - 1
            return rows.left if isinstance(rows, ast.BinOp) and _is_constant(rows.right) else rows
        case ast.Call(func=ast.Attribute(value=ast.Call(args=[rows, *_]) as order)) if (
            last_name(order.func) == "randperm"
        ):
            return rows
        case _:
            return None


def _count_texts(loop: BatchLoop, number: ast.expr) -> set[str]:
    """Return the text of a number and of what is assigned to it, with ``x.shape[0]`` as ``len(x)``."""
    texts = map(ast.unparse, (number, _resolved(loop, without_conversions(number))))
    return {re.sub(r"([\w.]+)(\.shape\[0\]|\.size\(0\)|\.size\(\)\[0\])", r"len(\1)", each) for each in texts}


def _resolved(loop: BatchLoop, node: ast.expr) -> ast.expr:
    """Return the value of a variable that the function assigns once, or the node itself."""
    value = _assigned_once(loop.function, node)
    return node if _is_constant(value) else value


def _assigned_once(scope: ast.AST, node: ast.expr) -> ast.expr:
    """Return the value of a variable that a loop or function assigns once, or the node itself."""
    values = assigned_in(scope, node.id) if isinstance(node, ast.Name) else []
    return values[0] if len(values) == 1 else node


_COUNTS: Final = "len(|enumerate(|.size(0)|.shape[0]|+= 1|+=1|batch_size"
_TOTALS: Final = "oss|riterion(|acc|correct|total|metric|err|argmax|max(|.sum(|.mean("
RULE = Rule(required_words=("+|append(", _COUNTS, f"{LOADER_WORDS}|range(|split(", "/", _TOTALS), find=find)
