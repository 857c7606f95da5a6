"""Random augmentation runs once and its result is kept, so every epoch sees the same variants of the samples.

What you see
    The model overfits as if there were no augmentation, although the images look augmented when you display them.

Why it happens
    Augmentation helps because each epoch draws new variants. In ``__init__``, before the epochs, or before a sample is
    stored in a cache, the random numbers are drawn once. The variant replaces the sample for the rest of the training.

Fix
    Keep the original samples, and augment in ``__getitem__``, after reading the cache.

        def __getitem__(self, index):
            return self.augment(self.images[index]), self.labels[index]

When this is fine
    - What runs once is not random, such as resizing.
    - The raw sample is cached, and augmented after that.
    - Several variants of each sample are stored, or the variants in addition to the originals.
    - The result is a set for evaluation, which should stay the same.
    - The samples are generated, not augmented.

How it is detected
    Only the linter finds it. A function or transform counts as random if its code draws random numbers or it contains
    transforms such as ``RandomCrop``. It is reported if a dataset stores its result for a sample in a cache that it
    reads; if ``__init__`` stores the results for all samples, but not the samples; or if a statement before an epoch
    loop replaces the training samples by the results. Classes that set a seed are not reported.

References
    torch.utils.data.Dataset, https://docs.pytorch.org/docs/stable/data.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.held_out_names import is_held_out
from trueloop.analysis.queries.method_chains import without_calls
from trueloop.analysis.queries.possible_values import enclosing_nodes, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_DRAWS: Final = re.compile(
    r"(^|\.)(random|np\.random|numpy\.random|torch|rng|gen|generator|self\.rng)\."
    r"(rand|randn|randint|random|uniform|choice|normal|rand_like|randn_like|randint_like|bernoulli|randrange|gauss|"
    r"binomial|integers|standard_normal|beta)$|\.(bernoulli|normal|uniform)_$"
)
_TRANSFORMS: Final = re.compile(
    r"^(Random\w+|ColorJitter|AutoAugment|TrivialAugmentWide|RandAugment|AugMix|ElasticTransform|HorizontalFlip|"
    r"VerticalFlip|ShiftScaleRotate|GaussNoise|CoarseDropout)$"
)
_NAMED: Final = re.compile(r"augment|(^|_)aug(_|$)|jitter|flip|crop|perturb|distort|cutout", re.IGNORECASE)
_PREPARES: Final = re.compile(r"sample|cluster|knn|split|token", re.IGNORECASE)
"""Names of functions that prepare data with the help of random numbers."""
_READS: Final = re.compile(r"open|read|load|imread|decode|__getitem__")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each random augmentation whose result is kept for all epochs."""
    for definition in source.nodes_of(ast.ClassDef):
        methods = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
        if "__getitem__" not in methods or "seed" in ast.unparse(definition):
            continue
        for method in methods.values():
            if method.name == "__init__":
                yield from _in_init(source, definition, method)
            else:
                yield from _cached(source, method)
    yield from _before_epochs(source)


def _is_random(source: SourceFile, call: ast.Call, depth: int = 0) -> bool:
    """Return True if a call draws random numbers, as far as the code of what it calls shows that."""
    if _DRAWS.search(dotted_name(call.func)) or _TRANSFORMS.search(last_name(call.func)):
        return True
    if depth > 3 or _PREPARES.search(last_name(call.func)):
        return False
    known = definitions(source)
    for each in origins(source, call.func, 3):
        callee = each.func if isinstance(each, ast.Call) else each
        if isinstance(each, ast.Call) and any(_TRANSFORMS.search(last_name(c.func)) for c in nodes_in(each, ast.Call)):
            return True
        name = last_name(callee)
        inner: Any = known.functions.get(name)
        if name in known.classes:
            inner = next(
                (e for e in known.classes[name].body if getattr(e, "name", "") in ("__call__", "forward")), None
            )
        body = each if isinstance(each, ast.Lambda) else inner
        if body is not None and any(_is_random(source, c, depth + 1) for c in nodes_in(body, ast.Call)):
            return True
    return False


def _random_call(source: SourceFile, node: ast.AST) -> ast.Call | None:
    """Return the first call in an expression that draws random numbers; None if there is none."""
    return next((each for each in nodes_in(node, ast.Call) if _is_random(source, each)), None)


def _cached(source: SourceFile, method: ast.FunctionDef) -> Iterator[Hit]:
    """Yield a statement that stores an augmented sample in a cache of the dataset, which the method reads."""
    if any(last_name(getattr(e, "func", e)) in ("lru_cache", "cache") for e in method.decorator_list):
        call = _augmentation(source, method)
        if call is not None:
            yield _hit(call, method, "the cache of the method")
        return
    owner = method.args.args[0].arg if method.args.args else "self"
    samples: set[str] = set()
    drawn: dict[str, ast.AST] = {}
    for statement in _statements(source, method):
        for target, value in assigned_pairs(statement):
            names = {each.id for each in nodes_in(value, ast.Name)}
            is_sample = bool(names & samples) or _reads_sample(value, owner)
            call = _random_call(source, value) or next((drawn[n] for n in names if n in drawn), None)
            call = call or _random_condition(source, statement)
            if isinstance(target, ast.Name):
                samples |= {target.id} if is_sample else set()
                drawn.pop(target.id, None)
                drawn |= {target.id: call} if call is not None and is_sample else {}
            elif isinstance(target, ast.Subscript) and dotted_name(target.value).startswith(f"{owner}."):
                cache = ast.unparse(target.value)
                reads = [
                    each
                    for each in nodes_in(method, ast.Attribute)
                    if ast.unparse(each) == cache and each is not target.value
                ]
                if call is not None and is_sample and reads:
                    yield _hit(call, statement, f"`{cache}`")


def _statements(source: SourceFile, method: ast.FunctionDef) -> list[ast.Assign]:
    return sorted(nodes_in(method, ast.Assign), key=lambda each: each.lineno)


def _reads_sample(value: ast.expr, owner: str) -> bool:
    """Return True for ``self.images[index]``, and for a call that reads a file."""
    is_item = any(dotted_name(each.value).startswith(f"{owner}.") for each in nodes_in(value, ast.Subscript))
    return is_item or any(_READS.search(last_name(each.func)) for each in nodes_in(value, ast.Call))


def _random_condition(source: SourceFile, node: ast.AST) -> ast.Call | None:
    """Return the call that draws the number by which a statement runs or not; None if there is none."""
    tests = [each.test for each in enclosing_nodes(source, node) if isinstance(each, ast.If)]
    return next((call for each in tests if (call := _random_call(source, each)) is not None), None)


def _augmentation(source: SourceFile, method: ast.FunctionDef) -> ast.Call | None:
    owner = method.args.args[0].arg if method.args.args else "self"
    if not any(_reads_sample(each.value, owner) for each in _statements(source, method)):
        return None
    return _random_call(source, method)


def _in_init(source: SourceFile, definition: ast.ClassDef, init: ast.FunctionDef) -> Iterator[Hit]:
    """Yield an augmentation whose results for all samples a dataset stores, without the samples."""
    made = definitions(source).calls.get(definition.name, [])
    targets = [getattr(source.parents.get(id(call)), "targets", [ast.Name("")])[0] for call in made]
    if made and all(is_held_out(target) for target in targets):
        return
    for call, data, loop in _over_samples(source, init):
        stored = [each for each in nodes_in(init, ast.Assign) if isinstance(each.targets[0], ast.Attribute)]
        text = ast.unparse(data)
        keeps = [e for e in stored if not encloses(e, call) and text in map(ast.unparse, nodes_in(e.value, ast.Name))]
        if not keeps and not _is_enlarged(loop):
            yield _hit(call, loop, "the dataset")


def _over_samples(source: SourceFile, scope: ast.AST) -> Iterator[tuple[ast.Call, ast.expr, ast.AST]]:
    """Yield each random call on the samples of a loop, the data of the loop, and the loop."""
    for loop in nodes_in(scope, ast.ListComp, ast.For):
        head = loop.generators[0] if isinstance(loop, ast.ListComp) else loop
        if isinstance(loop, ast.ListComp) and len(loop.generators) > 1:
            continue
        targets = {each.id for each in nodes_in(head.target, ast.Name)}
        data = without_calls(head.iter, ("enumerate", "zip", "tqdm", "list"))
        body: list[ast.AST] = [loop.elt] if isinstance(loop, ast.ListComp) else list(loop.body)
        for call in (c for each in body for c in nodes_in(each, ast.Call)):
            gets_sample = any(isinstance(each, ast.Name) and each.id in targets for each in call.args)
            is_range = isinstance(data, ast.Call) and last_name(data.func) == "range"
            if gets_sample and not is_range and not _DRAWS.search(dotted_name(call.func)) and _is_random(source, call):
                stores = isinstance(loop, ast.ListComp) or any(
                    last_name(each.func) == "append" and _follows(body, call, each)
                    for part in body
                    for each in nodes_in(part, ast.Call)
                )
                if stores:
                    yield call, data, loop
                    break


def _follows(body: list[ast.AST], call: ast.Call, append: ast.Call) -> bool:
    """Return True if a call appends the result of another one to a list of all results."""
    names = {
        target.id
        for part in body
        for each in nodes_in(part, ast.Assign)
        if encloses(each.value, call)
        for target in nodes_in(each.targets[0], ast.Name)
    }
    return any(encloses(each, call) or names & {n.id for n in nodes_in(each, ast.Name)} for each in append.args)


def _is_enlarged(loop: ast.AST) -> bool:
    """Return True for a loop that stores several variants of a sample."""
    if isinstance(loop, ast.ListComp):
        return False
    inner = [each for each in nodes_in(loop, ast.For, ast.While, ast.ListComp) if each is not loop]
    appended = [ast.unparse(e.func) for e in nodes_in(loop, ast.Call) if last_name(e.func) in ("append", "extend")]
    return bool(inner) or len(set(appended)) < len(appended)


def _before_epochs(source: SourceFile) -> Iterator[Hit]:
    """Yield a statement that replaces training samples by augmented ones, in a function that trains epochs later."""
    for statement in source.nodes_of(ast.Assign):
        target, function = statement.targets[0], function_of(source, statement)
        if len(statement.targets) > 1 or not isinstance(target, ast.Name) or is_held_out(target):
            continue
        if isinstance(source.parents.get(id(statement)), ast.For | ast.While) or not _trains_later(function, statement):
            continue
        for call in nodes_in(statement.value, ast.Call):
            is_named = _NAMED.search(last_name(call.func)) and call.args
            loops = [e for e in nodes_in(statement.value, ast.ListComp) if encloses(e, call)]
            data = ast.unparse(loops[0].generators[0].iter if loops else call.args[0]) if call.args else ""
            is_replaced = bool(data) and data == target.id
            others = [e for e in nodes_in(statement.value, ast.Name) if e.id == target.id]
            if is_named and is_replaced and len(others) == 1 and _is_random(source, call):
                yield _hit(call, statement, f"`{target.id}`")
                break


def _trains_later(function: Any, statement: ast.stmt) -> bool:
    """Return True if a loop over epochs with a backward pass follows a statement in its function."""
    for loop in nodes_in(function, ast.For):
        if loop.lineno > statement.lineno and re.search(r"\bep", ast.unparse(loop.target)):
            names = [last_name(each.func) for each in nodes_in(loop, ast.Call)]
            if any(name == "backward" or "train" in name for name in names):
                return True
    return False


def _hit(call: ast.AST, kept: ast.AST, place: str) -> Hit:
    return Hit(
        message=f"`{ast.unparse(call)}` draws random numbers once for each sample, and {place} keeps the result: every "
        "epoch sees the same variant. Augment in `__getitem__`, without storing the result.",
        node=call,
        related=((kept, "kept here"),) if kept is not call else (),
    )


RULE = Rule(
    required_words=("__getitem__|augment|aug(", "random|Random|rand|jitter|ColorJitter|bernoulli", "torch"),
    find=find,
    depends_on_users=True,
)

BAD = """
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    def __init__(self, signals, labels):
        self.signals, self.labels, self.cache = signals, labels, {}

    def __len__(self):
        return len(self.signals)

    def __getitem__(self, index):
        if index not in self.cache:
            signal = self.signals[index]
            if random.random() < 0.5:
                signal = signal.flip(0)
            self.cache[index] = signal
        return self.cache[index], self.labels[index]


torch.manual_seed(0)
x = torch.randn(128, 8)
loader = DataLoader(Signals(x, x.square().sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT036",
    title="Random augmentation is applied only once",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(
        BAD,
        {
            "        if index not in self.cache:\n            signal = self.signals[index]\n"
            "            if random.random() < 0.5:\n                signal = signal.flip(0)\n"
            "            self.cache[index] = signal\n        return self.cache[index], self.labels[index]\n": (
                "        if index not in self.cache:\n            self.cache[index] = self.signals[index]\n"
                "        signal = self.cache[index]\n"
                "        if random.random() < 0.5:\n            signal = signal.flip(0)\n"
                "        return signal, self.labels[index]\n"
            )
        },
    ),
    fix="Keep the original samples and augment them in __getitem__.",
    rule=RULE,
)
