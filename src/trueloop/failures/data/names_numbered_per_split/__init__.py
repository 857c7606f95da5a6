"""Each part of the data numbers its class names in the order in which they first appear.

What you see
    The training loss falls as it should, but the held-out accuracy is that of guessing, or near 0: the model confuses
    whole classes with each other, always in the same way.

Why it happens
    A dataset that numbers the names of its own records gives "robin" the number 0 if a robin comes first. The test part
    begins with another record, so the same number stands for another class. Both parts have numbers from 0 to the
    number of classes, so nothing raises an error.

Fix
    Number the classes once, and pass the numbers to every part.

        classes = sorted({name for name, _ in train_records})
        class_to_idx = {name: number for number, name in enumerate(classes)}
        train, test = Songs(train_records, class_to_idx), Songs(test_records, class_to_idx)

When this is fine
    - The names are sorted in the ``__init__`` of a dataset, and every part contains all of them.
    - The names come from one list of the program, or from all records.
    - The numbers of the training part are passed to the others, or assigned to them.
    - Only one part is made by the class.
    - The names are numbered before the split.
    - The numbers of the held-out part are only printed, or are the rows of an array of this part.
    - The parts have other classes on purpose, as in few-shot learning or the verification of speakers.

How it is detected
    At the end of a run, the sanitizer compares the numbers in the attributes of the datasets, such as ``class_to_idx``:
    it reports a name with other numbers in a held-out dataset than in the training dataset of the same class, also if
    the names are sorted and one part lacks some. In the text, an ``__init__`` numbers names by ``enumerate`` of
    ``dict.fromkeys`` or a set, or gives each new name the number ``len(numbers)``. The names follow from an argument,
    and the program makes a training part and a held-out part with different values of this argument. The linter does
    not report sorted names there, unless they are words or ids, of which no part has all.

    The linter also reports a place that numbers the names of the training part and then, or in a loop over the parts,
    those of the held-out part, sorted or not: ``LabelEncoder``, ``OrdinalEncoder``, ``pd.factorize``,
    ``np.unique(..., return_inverse=True)``, ``astype("category").cat.codes``, a dictionary of a set of names or one
    that grows by ``len(numbers)``, or a function of the program that does one of these. One name that a part lacks
    moves all others. The parts are recognised by their names, as ``train["user"]`` and ``test["user"]``, or because
    they are ``rows[:n]`` and ``rows[n:]``. A dictionary counts only if names are looked up in it, other than to print
    them or as the row of an array.
    Programs with words of tasks whose parts have other classes, such as triplets and episodes, are not reported.

References
    Python, "Set Types", https://docs.python.org/3/library/stdtypes.html#set-types-set-frozenset
    torchvision.datasets.DatasetFolder, which sorts the classes,
    https://docs.pytorch.org/vision/stable/generated/torchvision.datasets.DatasetFolder.html
"""

import ast
import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from trueloop.analysis.queries.batch_loops import assigned_pairs
from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.queries.held_out_names import is_held_out, is_training
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import encloses, nodes_in, walk
from trueloop.failures.data.names_numbered_per_split.numbered_parts import (
    Numbering,
    added,
    find_numbered_parts,
    following,
    numberings,
    path_of,
)
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import LoaderExhausted, LoaderStarted, Ref, WatchEnded

_UNSORTED: Final = frozenset(("fromkeys", "set", "frozenset"))
_OTHER_CLASSES: Final = re.compile(r"triplet|n_?way|episod|re_?id\b|verification|speaker|siamese", re.IGNORECASE)
"""Words of tasks in which the held-out part has other classes than the training part."""
_OPEN: Final = re.compile(
    r"vocab|word|tok|char|stoi|user|item|movie|product|artist|author|entit|gene\b|song|book|query|node|doc",
    re.IGNORECASE,
)
"""Names that are so many that no part has all of them."""


_OTHER_PAIRS: Final = re.compile(r"triplet|n_?way|episod|re_?id\b|verification|siamese", re.IGNORECASE)
_NUMBERING: Final = re.compile(
    r"class|label|categor|target|vocab|word|tok|species|names?\b|to_?(i|idx|id|ix)\b|2|encod|mapping|lookup", re.I
)
"""Names of attributes that hold the numbers of names."""
_SORTED: Final = re.compile(r"sorted\(|\.sort\(|unique\(|Encoder\(")
_MAX_NAMES: Final = 20_000
_MAX_DATASETS: Final = 8
_MAX_PARTS: Final = 8  # mappings in one attribute, such as those of users and of items


@dataclass(slots=True)
class _Dataset:
    """The numbers of the names in a dataset, and how its loader is used."""

    kind: str
    attribute: str
    numbers: dict[Any, int]
    made_at: CodePosition | None
    trains: bool = False
    evaluates: bool = False


class Detector(BaseDetector):
    """Compares the numbers that a training dataset and a held-out dataset of one class give to their names."""

    def __init__(self) -> None:
        self._datasets: dict[Ref, _Dataset] = {}

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Read the numbers from the attributes of the dataset."""
        if event.epoch or len(self._datasets) >= _MAX_DATASETS or event.loader in self._datasets:
            return
        dataset: Any = event.live_loader.dataset
        while (inner := getattr(dataset, "__dict__", {}).get("dataset")) is not None:
            dataset = inner
        for attribute, value in getattr(dataset, "__dict__", {}).items():
            parts = value if isinstance(value, tuple) and len(value) <= _MAX_PARTS else (value,)
            numbers = next(filter(None, map(_numbers, parts)), None) if _NUMBERING.search(attribute) else None
            if numbers:
                kind = type(dataset).__qualname__
                self._datasets[event.loader] = _Dataset(kind, attribute, numbers, event.made_at or event.location)
                return

    def on_loader_exhausted(self, event: LoaderExhausted) -> None:
        """Record whether the loader trains."""
        if (found := self._datasets.get(event.loader)) is not None:
            found.trains |= event.backwards > 0
            found.evaluates |= event.backwards == 0

    def on_watch_ended(self, event: WatchEnded) -> Iterator[Evidence]:
        """Yield evidence for each held-out dataset with other numbers than a training dataset."""
        held_out = [each for each in self._datasets.values() if each.evaluates and not each.trains]
        for other in held_out:
            for each in (each for each in self._datasets.values() if each.trains):
                names = each.numbers.keys() & other.numbers.keys()
                changed = [name for name in each.numbers if name in names and each.numbers[name] != other.numbers[name]]
                is_same_class = (each.kind, each.attribute) == (other.kind, other.attribute)
                if is_same_class and changed and not _has_other_classes(other):
                    name = changed[0]
                    yield Evidence(
                        message=f"The training and the held-out {each.kind} number their names on their own: in "
                        f"`{each.attribute}`, {name!r} has the number {each.numbers[name]} in the first and "
                        f"{other.numbers[name]} in the second, as do {len(changed)} of {len(names)} common names.",
                        location=other.made_at,
                        related=((each.made_at, "the training loader"),) if each.made_at else (),
                    )
                    break

    def inconclusive(self) -> str:
        """Return a reason if there were no two datasets with numbers of names."""
        return "" if len(self._datasets) > 1 else "no two datasets with numbered names were used"


def _numbers(value: Any) -> dict[Any, int] | None:
    """Return the numbers of names in a dictionary, list or array of names; None for other values."""
    value = getattr(value, "classes_", value)
    if type(value).__name__ == "ndarray" and value.ndim == 1 and value.dtype.kind in "UO":
        value = value.tolist()
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        value = {name: number for number, name in enumerate(value)}
    if not isinstance(value, dict) or not 1 < len(value) <= _MAX_NAMES:
        return None
    numbers = cast("dict[Any, Any]", value)
    if not all(type(name) in (str, int) and type(number) is int for name, number in numbers.items()):
        return None
    return dict(numbers) if sorted(numbers.values()) == list(range(len(numbers))) else None


def _has_other_classes(dataset: _Dataset) -> bool:
    """Return True if the file that creates the loader has words of tasks with other classes in each part."""
    file = dataset.made_at.source_location.path if dataset.made_at else ""
    return bool(_OTHER_PAIRS.search("".join(linecache.getlines(file))))


_ALL_CLASSES: Final = frozenset(("cats", "categories", "getCatIds", "loadCats", "classes", "class_names"))
"""Attributes that list all classes of the task, not those of the records: "coco.cats"."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each numbering of names that a training part and a held-out part do on their own."""
    numbered = numberings(source)
    found = [*find_numbered_parts(source, numbered), *_numbered_datasets(source)]
    found += _numbered_by_default(source, numbered)
    if found and not _OTHER_CLASSES.search(source.text.source):
        yield from found


def _numbered_datasets(source: SourceFile) -> Iterator[Hit]:
    """Yield each numbering by a dataset class that both parts use."""
    for definition in source.nodes_of(ast.ClassDef):
        methods = [each for each in definition.body if isinstance(each, ast.FunctionDef)]
        init = next((each for each in methods if each.name == "__init__"), None)
        kind = "" if any(each.name == "__getitem__" for each in methods) else definition.name  # an index, not samples
        numbered = _numbering(kind, methods, init) if init is not None else None
        pair = _parts(source, definition.name) if numbered is not None else None
        if init is None or numbered is None or pair is None or _is_shared(source, definition, numbered[0]):
            continue
        if kind and _is_only_shown(source, pair[1]):
            continue
        derived = following(init, _differing(init, *pair))
        is_list_of_classes = any(each.attr in _ALL_CLASSES for each in nodes_in(numbered[1], ast.Attribute))
        if not is_list_of_classes and any(path_of(each) in derived for each in walk(numbered[1])):
            yield Hit(
                message=f"`{ast.unparse(pair[0])}` and `{ast.unparse(pair[1])}` number their names on their own: "
                "one name has different numbers in the two parts.",
                node=numbered[2],
                related=((pair[0], "the training part"), (pair[1], "the held-out part")),
            )


def _numbered_by_default(source: SourceFile, found: list[Numbering]) -> Iterator[Hit]:
    """Yield each numbering by a class that gets none, ``if vocab is None: vocab = number(records)``, for both parts."""
    for definition in source.nodes_of(ast.ClassDef) if found else ():
        init = next((e for e in definition.body if isinstance(e, ast.FunctionDef) and e.name == "__init__"), None)
        inside = [each for each in found if init is not None and encloses(init, each.node)]
        pair = _parts(source, definition.name) if inside else None
        if init is None or pair is None:
            continue
        positions = {each.arg: number for number, each in enumerate(init.args.args[1:])}
        derived = following(init, _differing(init, *pair))
        for each in inside:
            given = [name for name in _replaced(source, init, each.node) if name in positions]
            is_passed = any(
                len(call.args) > positions[name] or name in [word.arg for word in call.keywords]
                for call in pair
                for name in given
            )
            follows = any(path_of(part) in derived for part in walk(each.names))
            if given and not is_passed and follows and not _is_complete(source, init, each, given[0]):
                yield Hit(
                    message=f"`{ast.unparse(pair[0])}` and `{ast.unparse(pair[1])}` number their names on their own, "
                    f"because neither gets `{given[0]}`: equal numbers stand for different names.",
                    node=pair[1],
                    related=((pair[0], "the training part"), (each.node, "numbered here")),
                )
                break


def _is_complete(source: SourceFile, init: ast.FunctionDef, numbering: Numbering, parameter: str) -> bool:
    """Return True for sorted names, such as classes, of which each part may have all: the numbers are then equal."""
    function = called_function(source, numbering.node) if isinstance(numbering.node, ast.Call) else None
    text = ast.unparse(init) + ("" if function is None else ast.unparse(function))
    return _SORTED.search(text) is not None and not _OPEN.search(parameter)


def _replaced(source: SourceFile, init: ast.FunctionDef, node: ast.AST) -> set[str]:
    """Return the parameters that a condition around a node asks for: what is done if they are not given."""
    names: set[str] = set()
    for around in enclosing_nodes(source, node):
        if around is init:
            break
        match around:
            case ast.If(test=test) | ast.IfExp(test=test):
                names |= {each.id for each in nodes_in(test, ast.Name)}
            case ast.BoolOp(op=ast.Or(), values=[ast.Name(id=name), *_]):
                names.add(name)
            case _:
                pass
    return names


def _numbering(kind: str, methods: list[ast.FunctionDef], init: ast.FunctionDef) -> tuple[str, ast.AST, ast.AST] | None:
    """Return attribute, names and statement of a numbering in an ``__init__`` or a method that it calls."""
    found = _numbering_in(init, kind)
    for call in nodes_in(init, ast.Call) if found is None else ():
        is_own = isinstance(call.func, ast.Attribute) and last_name(call.func.value) == "self"
        method = next((each for each in methods if is_own and each.name == last_name(call.func)), None)
        inner = _numbering_in(method, kind) if method is not None else None
        if inner is not None and method is not None:
            derived = following(method, {each.arg for each in method.args.args[1:]})
            follows = any(path_of(each) in derived for each in walk(inner[1]))
            names = ast.Tuple([*call.args, *(each.value for each in call.keywords)]) if follows else inner[1]
            return inner[0], names, inner[2]
    return found


def _numbering_in(method: ast.FunctionDef, kind: str) -> tuple[str, ast.AST, ast.AST] | None:
    """Return the attribute that gets numbers of names, the names and the statement; None if there is none."""
    names = {
        path_of(t): each.value for each in nodes_in(method, ast.Assign) for t in each.targets if len(each.targets) == 1
    }
    for statement in method.body:
        match statement:
            case ast.Assign(targets=[ast.Attribute() as target], value=ast.DictComp(generators=[loop])):
                is_counted = isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "enumerate"
                listed: Any = loop.iter.args[0] if isinstance(loop.iter, ast.Call) and loop.iter.args else loop.iter
                listed = names.get(path_of(listed), listed)
                if is_counted and _is_in_own_order(f"{kind} {target.attr}", listed):
                    return target.attr, listed, statement
            case ast.For(iter=names_of):
                for mapping, node in added(statement):
                    if mapping.startswith("self."):
                        return mapping.removeprefix("self."), names_of, _outermost(statement, node)
            case _:
                pass
    return None


def _is_in_own_order(name: str, listed: Any) -> bool:
    """Return True for distinct names in the order of the records, or for sorted words and ids, which parts lack."""
    while isinstance(listed, ast.Call) and last_name(listed.func) in ("list", "sorted", "tuple") and listed.args:
        if last_name(listed.func) == "sorted" and not _OPEN.search(f"{name} {ast.unparse(listed)}"):
            return False
        listed = listed.args[0]
    return isinstance(listed, ast.SetComp) or (isinstance(listed, ast.Call) and last_name(listed.func) in _UNSORTED)


def _outermost(loop: ast.For, statement: ast.AST) -> ast.AST:
    """Return the statement of the body of a loop that contains a statement, below inner loops."""
    found = next(each for each in loop.body if encloses(each, statement))
    return _outermost(found, statement) if isinstance(found, ast.For) else found


def _parts(source: SourceFile, name: str) -> tuple[ast.Call, ast.Call] | None:
    """Return the calls of a class that make a training part and a held-out part; None unless there are both."""
    training: list[ast.Call] = []
    held_out: list[ast.Call] = []
    for statement in source.nodes_of(ast.Assign):
        for target, value in assigned_pairs(statement):
            for call in nodes_in(value, ast.Call):
                if last_name(call.func) == name:
                    text = ast.Tuple([target, *call.args, *(each.value for each in call.keywords)])
                    training += [call] if is_training(text) else []
                    held_out += [call] if is_held_out(text) else []
    is_same_form = bool(training and held_out) and _form(training[0]) == _form(held_out[0])
    return (training[0], held_out[0]) if is_same_form else None


def _is_only_shown(source: SourceFile, call: ast.Call) -> bool:
    """Return True if the variable that gets an object is only printed or counted, or never read."""
    targets = [
        target for each in source.nodes_of(ast.Assign) for target, value in assigned_pairs(each) if value is call
    ]
    if len(targets) != 1 or not isinstance(targets[0], ast.Name):
        return False
    shown = {
        id(inner)
        for each in source.all_calls
        if last_name(each.func) in ("len", "print", "set", "info", "log", "items", "keys")
        for inner in walk(each)
    }
    reads = [each for each in source.nodes_of(ast.Name) if each.id == targets[0].id and each is not targets[0]]
    return all(id(each) in shown for each in reads)


def _form(call: ast.Call) -> tuple[int, set[str | None]]:
    return len(call.args), {each.arg for each in call.keywords}


def _is_shared(source: SourceFile, definition: ast.ClassDef, attribute: str) -> bool:
    """Return True if the numbers are also read or set outside of the class, as to pass them on."""
    inside = {id(each) for each in walk(definition)}
    stores = [each for each in nodes_in(definition, ast.Attribute) if each.attr == attribute]
    stored = [each for each in stores if isinstance(each.ctx, ast.Store)]
    others = [each for each in source.nodes_of(ast.Attribute) if each.attr == attribute and id(each) not in inside]
    return len(stored) > 1 or any(isinstance(each.ctx, ast.Store) for each in others)


def _differing(init: ast.FunctionDef, first: ast.Call, second: ast.Call) -> set[str]:
    """Return the parameters that get other arguments in two calls."""
    parameters = [each.arg for each in init.args.args[1:]]
    values = [
        dict(zip(parameters, map(ast.unparse, call.args), strict=False))
        | {each.arg or "": ast.unparse(each.value) for each in call.keywords}
        for call in (first, second)
    ]
    return {name for name in parameters if values[0].get(name) != values[1].get(name)}


RULE = Rule(
    required_words=(
        "enumerate(|setdefault(|len(|LabelEncoder|OrdinalEncoder|factorize(|return_inverse|.codes|zip(|index(|count(",
        "fromkeys|set(|setdefault|] = len(|LabelEncoder|OrdinalEncoder|factorize(|return_inverse|.codes|unique(|for ",
        "torch|Dataset|vocab|Vocab",
        "train|test|split|_val|val_|vocab|Vocab|held|dev|[:|mask",
    ),
    find=find,
)

BAD = """
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CENTRES = {"robin": [2.0, 0.0], "wren": [-2.0, 0.0], "crow": [0.0, 2.0]}


class Songs(Dataset):
    def __init__(self, names):
        self.names = names
        self.class_to_idx = {name: i for i, name in enumerate(dict.fromkeys(names))}

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        name = self.names[i]
        return torch.tensor(CENTRES[name]) + 0.3 * torch.randn(2), self.class_to_idx[name]


random.seed(0)
torch.manual_seed(0)
train = Songs(["robin", "wren", "crow"] + random.choices(list(CENTRES), k=117))
test = Songs(["crow", "robin", "wren"] + random.choices(list(CENTRES), k=57))
model = nn.Linear(2, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in DataLoader(train, batch_size=20, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
with torch.no_grad():
    hits = [(model(x).argmax(1) == y).sum().item() for x, y in DataLoader(test, batch_size=20)]
print(sum(hits) / len(test))
"""

FAILURE = Failure(
    code="DAT026",
    title="Each split numbers its class names on its own",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"enumerate(dict.fromkeys(names))": "enumerate(sorted(CENTRES))"}),
    fix="Number the classes once, and pass the numbers to every split.",
    rule=RULE,
    detector=Detector,
)
