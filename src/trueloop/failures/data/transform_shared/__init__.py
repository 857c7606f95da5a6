"""A transform is set through one part of a split dataset and changes all of its parts.

What you see
    Either the training augmentation has no effect, because the evaluation transform has replaced it, or the held-out
    samples are augmented, and the validation loss is noisy.

Why it happens
    ``random_split`` does not copy the dataset. Each ``Subset`` holds its indices and a reference to the dataset, so
    ``train.dataset`` and ``val.dataset`` are the same object with one transform.

Fix
    Give each part its own dataset object.

        val.dataset = copy.copy(val.dataset)
        val.dataset.transform = eval_transform

    Or create two datasets of the same files, one per transform, and use ``Subset(eval_dataset, val.indices)``.

When this is fine
    - Both parts should have this transform.
    - Only one of the parts is used.
    - The part has its own copy of the dataset before its transform is set.
    - Two datasets read the same files.
    - The transform is set again before every phase, or only after training.

How it is detected
    In a run, the sanitizer compares the switches and functions among the attributes of a dataset when it is split with
    those when its parts are loaded. It reports one that was set through a part, if two parts are loaded with the new
    value, and it has no other value in between. The linter reports an attribute that is set right after the split,
    before any part is read, if at least two parts are used later and one of these is true: a second part sets it to
    another value, or the dataset was created with another value.

References
    growingnet/gromo#58, "when setting the augmentation for the validation set, it automatically sets the same
    augmentation for the training set", https://github.com/growingnet/gromo/pull/58
    yoshitomo-matsubara/torchdistill#209, transforms of train and val overwritten in one shared dataset,
    https://github.com/yoshitomo-matsubara/torchdistill/issues/209
    torch.utils.data.random_split and Subset, https://docs.pytorch.org/docs/stable/data.html
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.assignments import FUNCTIONS, assigned_value, attribute_value, enclosing_definition
from trueloop.analysis.queries.request_handlers import imported_names, qualified_name
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.source_text import Fix, dotted_name, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.tracing.events import Event

SPLITS: Final = ("torch.utils.data.random_split", "torch.utils.data.dataset.random_split")
SUBSETS: Final = ("torch.utils.data.Subset", "torch.utils.data.dataset.Subset")
HARMLESS_FUNCTIONS: Final = ("len", "print")


@dataclass(slots=True, kw_only=True, eq=False)
class SharedAttributeSet(Event):
    """RARE. An attribute was set through one part of a split dataset, and two parts are loaded with the new value."""

    name: str
    set_at: SourceLocation
    target: str
    """The expression that was assigned: "val_set.dataset.transform"."""
    before: str
    after: str


class Detector(BaseDetector):
    """Reports each attribute that was set for one part and changes another one."""

    def on_shared_attribute_set(self, event: SharedAttributeSet) -> Evidence:
        """Return the evidence of one attribute."""
        part = event.target.removesuffix(f".dataset.{event.name}")
        return Evidence(
            message=f"`{event.target}` changes the dataset that all parts share: `{event.name}` was {event.before} "
            f"when "
            f"it was split, and is {event.after} now, not only for `{part}` but for the training and the held-out "
            f"part.",
            location=event.set_at,
            fix=f"Give `{part}` a dataset of its own before: `{part}.dataset = copy.copy({part}.dataset)`.",
        )

    def inconclusive(self) -> str:
        """Return a reason if no dataset was split."""
        return "no attribute of a split dataset was changed"


class Parts(NamedTuple):
    """Parts of one dataset, created in one block."""

    names: tuple[str, ...]
    """Names in the source: "train", "self.val"."""
    dataset: ast.expr
    block: Sequence[ast.stmt]
    positions: tuple[int, ...]
    """Indices in the block of the statements that create the parts."""

    @property
    def statement(self) -> ast.stmt:
        """The statement that creates the first part."""
        return self.block[self.positions[0]]


def find_splits(source: SourceFile) -> Iterator[Parts]:
    """Yield the parts that each block creates of one dataset, each under its own name."""
    import_names = imported_names(source.tree)  # `source` has no operations if the file only defines datasets
    blocks = [source.block(each) for each in source.nodes_of(ast.Assign)]
    for block in {id(each): each for each in blocks}.values():
        subsets: dict[str, list[tuple[int, str, ast.expr]]] = {}
        for index, each in enumerate(block):
            if not isinstance(each, ast.Assign) or not isinstance(each.value, ast.Call) or len(each.targets) != 1:
                continue
            name, target, dataset = qualified_name(each.value, import_names), each.targets[0], _dataset(each.value)
            if dataset is not None and name in SPLITS and isinstance(target, ast.Tuple | ast.List):
                yield Parts(tuple(filter(None, map(dotted_name, target.elts))), dataset, block, (index,))
            elif dataset is not None and name in SUBSETS and dotted_name(target) and dotted_name(dataset):
                subsets.setdefault(dotted_name(dataset), []).append((index, dotted_name(target), dataset))
        for subset_group in subsets.values():
            positions, names, datasets = zip(*subset_group, strict=True)
            yield Parts(names, datasets[0], block, positions)


def read_names(node: ast.AST, names: set[str]) -> Iterator[str]:
    """Yield a name each time that a node reads it for more than its length or an attribute."""
    for parent in walk(node):
        ignores_values = (
            isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id in HARMLESS_FUNCTIONS
        )
        if isinstance(parent, ast.Attribute) or ignores_values:
            continue
        for each in ast.iter_child_nodes(parent):
            if (
                isinstance(each, ast.Name | ast.Attribute)
                and isinstance(each.ctx, ast.Load)
                and dotted_name(each) in names
            ):
                yield dotted_name(each)


def _dataset(call: ast.Call) -> ast.expr | None:
    arguments = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "dataset")]
    return arguments[0] if len(arguments) == 1 and not isinstance(arguments[0], ast.Starred) else None


LOADERS: Final = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")


class _Setting(NamedTuple):
    """An attribute of the dataset that is set through a part, as in ``val.dataset.transform = plain``."""

    part: str
    attribute: str
    value: ast.expr
    node: ast.Assign


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the last assignment through one part, where another value was set for another part."""
    for parts in find_splits(source):
        settings = _settings(source, parts)
        for attribute in dict.fromkeys(each.attribute for each in settings):
            own_settings = [each for each in settings if each.attribute == attribute]
            if not _is_set_elsewhere(source, attribute, own_settings) and len(_used_parts(source, parts)) > 1:
                yield from _find_conflict(source, parts, own_settings)


def _find_conflict(source: SourceFile, parts: Parts, settings: Sequence[_Setting]) -> Iterator[Hit]:
    last = settings[-1]
    others = [each for each in settings if each.part != last.part and not _same(each.value, last.value)]
    if others:
        unused, unused_node, label = others[-1].value, others[-1].node, "overwritten before it is used"
    else:
        original = _constructor_argument(source, parts, last.attribute)
        if original is None or _same(original, last.value) or len({each.part for each in settings}) == len(parts.names):
            return
        unused, unused_node, label = original, original, "passed here, but never used"
    names = " and ".join(f"`{each}.dataset`" for each in parts.names)
    yield Hit(
        message=f"{names} are the same object: all parts get the {last.attribute} `{_short(last.value)}`, and "
        f"`{_short(unused)}` is never used.",
        node=last.node,
        related=((parts.statement, "split here"), (unused_node, label)),
        fix=_copy_dataset_fix(source, parts, settings),
    )


def _same(one: ast.expr, other: ast.expr) -> bool:
    return ast.dump(one) == ast.dump(other)


def _short(value: ast.expr) -> str:
    text = ast.unparse(value)
    return text if len(text) < 40 else f"{text.split('(')[0]}(...)"


def _constructor_argument(source: SourceFile, parts: Parts, attribute: str) -> ast.expr | None:
    """Return the argument that the dataset was built with for an attribute; None if there is none or it may be used."""
    dataset: ast.expr | None = parts.dataset
    scope = enclosing_definition(source, parts.statement, FUNCTIONS)
    if len(list(read_names(scope, {dotted_name(dataset)} - {""}))) > len(parts.positions):
        return None
    if isinstance(dataset, ast.Name):
        dataset = assigned_value(source, dataset, dataset.id)
    elif isinstance(dataset, ast.Attribute):
        is_own_attribute = dotted_name(dataset) == f"self.{dataset.attr}"
        dataset = attribute_value(source, dataset, dataset.attr) if is_own_attribute else None
    keywords = dataset.keywords if isinstance(dataset, ast.Call) else []
    argument = next((each.value for each in keywords if each.arg == attribute), None)
    return None if isinstance(argument, ast.Constant) else argument


def _settings(source: SourceFile, parts: Parts) -> list[_Setting]:
    """Return the attributes set through the parts before any code reads one of them."""
    settings: list[_Setting] = []
    import_names = imported_names(source.tree)
    names = {*parts.names, dotted_name(parts.dataset)} - {""}
    for each in parts.block[max(parts.positions) + 1 :]:
        setting = _setting(each, parts)
        if setting is not None:
            settings.append(setting)
        elif any(read_names(each, names)) or not isinstance(each, ast.Assign | ast.Expr | ast.AnnAssign):
            call = each.value if isinstance(each, ast.Assign) else None
            if not isinstance(each, ast.Assign) or call is None or qualified_name(call, import_names) not in LOADERS:
                break
            names |= {dotted_name(target) for target in each.targets} - {""}
    return settings


def _setting(statement: ast.stmt, parts: Parts) -> _Setting | None:
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Attribute) and target.value.attr == "dataset":
        part = dotted_name(target.value.value)
        return _Setting(part, target.attr, statement.value, statement) if part in parts.names else None
    return None


def _is_set_elsewhere(source: SourceFile, attribute: str, own_settings: Sequence[_Setting]) -> bool:
    """Return True if the attribute, or the dataset of a part, is also set somewhere else."""
    own_targets = {id(each.node.targets[0]) for each in own_settings}
    for each in source.nodes_of(ast.Attribute):
        if not isinstance(each.ctx, ast.Load) and id(each) not in own_targets:
            is_own_attribute = isinstance(each.value, ast.Name) and each.value.id == "self"
            if not is_own_attribute and each.attr in ("dataset", attribute):
                return True
    return any(isinstance(each.func, ast.Name) and each.func.id in ("setattr", "vars") for each in source.all_calls)


def _used_parts(source: SourceFile, parts: Parts) -> set[str]:
    """Return the parts that are bound once and read for more than their length."""
    is_local = all("." not in each for each in parts.names)
    scope = enclosing_definition(source, parts.statement, FUNCTIONS) if is_local else source.tree
    bound_names = [dotted_name(each) for each in walk(scope) if isinstance(getattr(each, "ctx", None), ast.Store)]
    return {each for each in read_names(scope, set(parts.names)) if bound_names.count(each) == 1}


def _copy_dataset_fix(source: SourceFile, parts: Parts, settings: Sequence[_Setting]) -> Fix | None:
    """Return the fix for two parts that first gives the part set last a copy of the dataset."""
    last = settings[-1].part
    first = next(each.node for each in settings if each.part == last)
    imports = [each for each in source.tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    top = next((each for each in imports if getattr(each, "module", "") != "__future__"), None)
    imported_copy = any(alias.name == "copy" and not alias.asname for each in imports for alias in each.names)
    name_in_use = any(each.id == "copy" for each in source.nodes_of(ast.Name)) and not imported_copy
    if len(parts.names) != 2 or top is None or name_in_use:
        return None
    edits = [source.text.insert_before(first, f"{last}.dataset = copy.copy({last}.dataset)")]
    if not imported_copy:
        edits.append(source.text.insert_before(top, "import copy"))
    valid = tuple(each for each in edits if each is not None)
    return Fix(valid, safe=False, description=f"Give {last} its own dataset") if len(valid) == len(edits) else None


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and settings through a held-out part that the training part gets too."""
    reported = set[int]()
    for hit in find(source):
        reported.add(id(hit.node))
        yield hit
    changes = source.ops(OpKind.SET_ATTRIBUTE)
    for change in changes:
        target, dataset = change.node, change.subject
        name = dotted_name(target.value.value) if _is_setting(target) else ""
        if not _HELD_OUT.search(name) or id(change.statement) in reported or not _trains_on_part(source, change):
            continue
        before = [each for each in changes if each.subject is dataset and each.name == change.name]
        values = [value.constant() for each in before for value in each.inputs]
        differs = any(isinstance(each, bool) and each is not values[-1] for each in values)
        if before[-1] is change and differs and all("__init__" in _function_name(each) for each in before[:-1]):
            yield Hit(
                message=f"`{ast.unparse(target)}` is the {change.name} of the training samples too: all parts have the "
                "same dataset.",
                node=change.statement or target,
                related=((before[0].node, "the value that is lost"),),
            )


_HELD_OUT: Final = re.compile(r"(^|_|\.)(val|valid|validation|test|dev|eval|held_?out|holdout)(_|\d|$)", re.IGNORECASE)


def _is_setting(target: Any) -> bool:
    """Return True for ``part.dataset.attribute``."""
    return (
        isinstance(target, ast.Attribute) and isinstance(target.value, ast.Attribute) and target.value.attr == "dataset"
    )


def _function_name(operation: Op) -> str:
    return getattr(operation.function, "name", "")


def _trains_on_part(source: SourceFile, change: Op) -> bool:
    """Return True if an optimizer steps in a loop over a part of the dataset that is changed."""
    for step in source.ops(OpKind.STEP):
        for loop in step.loops if step.index > change.index else ():
            loader = loop.iterable
            for each in loader.ancestors() if loader is not None else ():
                if each.name.endswith("Subset") and any(part is change.subject for part in each.sources):
                    return True
    return False


RULE = Rule(required_words=("random_split|Subset", ".dataset."), find=find_all)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

class Series(Dataset):
    def __init__(self, x, y, transform):
        self.x, self.y, self.transform = x, y, transform
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.transform(self.x[i]), self.y[i]

def noisy(x):
    return x + 0.1 * torch.randn_like(x)

def plain(x):
    return x

x = torch.randn(160, 6)
dataset = Series(x, x.sum(1, keepdim=True), transform=noisy)
train_set, held_out_set = random_split(dataset, [128, 32])
held_out_set.dataset.transform = plain
train = DataLoader(train_set, batch_size=16, shuffle=True)
held_out = DataLoader(held_out_set, batch_size=16)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for epoch in range(2):
    model.train()
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(torch.cat([model(a) - b for a, b in held_out]).square().mean().item())
"""

FAILURE = Failure(
    code="DAT008",
    title="Subsets of one dataset share its transform",
    severity=Severity.WARNING,
    bad=BAD,
    good=BAD.replace("import torch\nfrom", "import copy\nimport torch\nfrom", 1).replace(
        "held_out_set.dataset.transform", "held_out_set.dataset = copy.copy(dataset)\nheld_out_set.dataset.transform"
    ),
    fix="Give each part a dataset of its own: val.dataset = copy.copy(val.dataset), before its transform is set.",
    rule=RULE,
    detector=Detector,
)
