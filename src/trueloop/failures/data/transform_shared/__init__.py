"""A transform is set through one part of a split dataset and changes all of its parts.

What you see
    The training augmentation has no effect, because the evaluation transform has replaced it. Or the reverse: held-out
    samples are augmented, and the validation loss is noisy.

Why it happens
    ``random_split`` copies nothing. Each ``Subset`` holds indices and a reference to one dataset, so ``train.dataset``
    and ``val.dataset`` are the same object with one transform.

Fix
    Give each part its own dataset object.

        val.dataset = copy.copy(val.dataset)
        val.dataset.transform = plain

    Or build two datasets over the same files, one per transform, and use ``Subset(plain, val.indices)``.

When this is fine
    - A transform that both parts should have, even if it is set through one of them.
    - One part that is used alone.
    - A part that was given a copy of the dataset before.
    - Two datasets that share their files.
    - A transform that is set again before every phase, or after training.

How it is detected
    From the text only, because PyTorch does not see an attribute assignment. Right after the split, before any code
    reads a part, an attribute is set to one value through one part and to another through a second part; or it is set
    to another value than the argument of that name with which the dataset was built. Two parts are used afterwards. In
    both cases the first value is never used.

References
    growingnet/gromo#58, "when setting the augmentation for the validation set, it automatically sets the same
    augmentation for the training set", https://github.com/growingnet/gromo/pull/58
    yoshitomo-matsubara/torchdistill#209, transforms of train and val overwritten in one shared dataset,
    https://github.com/yoshitomo-matsubara/torchdistill/issues/209
    torch.utils.data.random_split and Subset, https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from trueloop.analysis.queries.assignments import FUNCTIONS, around, assigned, held
from trueloop.analysis.queries.request_handlers import imported, qualified
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Fix, dotted_name
from trueloop.failures.data.transform_shared.dataset_splits import Parts, splits, wanted
from trueloop.failures.failure import Failure, Rule, Severity

LOADERS: Final = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")


class _Setting(NamedTuple):
    """An attribute of the dataset that is set through a part: ``val.dataset.transform = plain``."""

    part: str
    word: str
    value: ast.expr
    node: ast.Assign


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield what is set last through one part, where another value was meant for another one."""
    for parts in splits(source):
        settings = _settings(source, parts)
        for word in dict.fromkeys(each.word for each in settings):
            ours = [each for each in settings if each.word == word]
            if not _set_elsewhere(source, word, ours) and len(_used(source, parts)) > 1:
                yield from _judge(source, parts, ours)


def _judge(source: SourceFile, parts: Parts, settings: Sequence[_Setting]) -> Iterator[Hit]:
    last = settings[-1]
    others = [each for each in settings if each.part != last.part and not _same(each.value, last.value)]
    if others:
        lost, where, words = others[-1].value, others[-1].node, "overwritten, before it is used"
    else:
        made = _made_with(source, parts, last.word)
        if made is None or _same(made, last.value) or len({each.part for each in settings}) == len(parts.names):
            return
        lost, where, words = made, made, "made with this, which is never used"
    names = " and ".join(f"{each}.dataset" for each in parts.names)
    yield Hit(
        message=f"{names} are one dataset: {last.word} becomes {_short(last.value)} for all of them, and "
        f"{_short(lost)} is used for none.",
        node=last.node,
        related=((parts.statement, "split here"), (where, words)),
        fix=_copied(source, parts, settings),
    )


def _same(one: ast.expr, other: ast.expr) -> bool:
    return ast.dump(one) == ast.dump(other)


def _short(value: ast.expr) -> str:
    text = ast.unparse(value)
    return text if len(text) < 40 else f"{text.split('(')[0]}(...)"


def _made_with(source: SourceFile, parts: Parts, word: str) -> ast.expr | None:
    """Return what the dataset was given as the argument of a name; None where it was none, or may have been of use."""
    made: ast.expr | None = parts.dataset
    if len(list(wanted(around(source, parts.statement, FUNCTIONS), {dotted_name(made)} - {""}))) > len(parts.made):
        return None
    if isinstance(made, ast.Name):
        made = assigned(source, made, made.id)
    elif isinstance(made, ast.Attribute):
        made = held(source, made, made.attr) if dotted_name(made) == f"self.{made.attr}" else None
    found = [each.value for each in made.keywords if each.arg == word] if isinstance(made, ast.Call) else []
    return found[0] if found and not isinstance(found[0], ast.Constant) else None


def _settings(source: SourceFile, parts: Parts) -> list[_Setting]:
    """Return what is set through the parts before anything reads one of them."""
    found: list[_Setting] = []
    names_of = imported(source.tree)
    known = {*parts.names, dotted_name(parts.dataset)} - {""}
    for each in parts.block[max(parts.made) + 1 :]:
        setting = _setting(each, parts)
        if setting is not None:
            found.append(setting)
        elif any(wanted(each, known)) or not isinstance(each, ast.Assign | ast.Expr | ast.AnnAssign):
            call = each.value if isinstance(each, ast.Assign) else None
            if not isinstance(each, ast.Assign) or call is None or qualified(call, names_of) not in LOADERS:
                break
            known |= {dotted_name(target) for target in each.targets} - {""}
    return found


def _setting(statement: ast.stmt, parts: Parts) -> _Setting | None:
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Attribute) and target.value.attr == "dataset":
        part = dotted_name(target.value.value)
        return _Setting(part, target.attr, statement.value, statement) if part in parts.names else None
    return None


def _set_elsewhere(source: SourceFile, word: str, ours: Sequence[_Setting]) -> bool:
    """True where the attribute, or the dataset of a part, is set somewhere else as well."""
    known = {id(each.node.targets[0]) for each in ours}
    for each in source.nodes:
        if isinstance(each, ast.Attribute) and not isinstance(each.ctx, ast.Load) and id(each) not in known:
            own = isinstance(each.value, ast.Name) and each.value.id == "self"
            if not own and each.attr in ("dataset", word):
                return True
    return any(isinstance(each.func, ast.Name) and each.func.id in ("setattr", "vars") for each in source.all_calls)


def _used(source: SourceFile, parts: Parts) -> set[str]:
    """Return those of the parts, each bound once, that something but their length is wanted of."""
    inner = all("." not in each for each in parts.names)
    where = around(source, parts.statement, FUNCTIONS) if inner else source.tree
    bound = [dotted_name(each) for each in ast.walk(where) if isinstance(getattr(each, "ctx", None), ast.Store)]
    return {each for each in wanted(where, set(parts.names)) if bound.count(each) == 1}


def _copied(source: SourceFile, parts: Parts, settings: Sequence[_Setting]) -> Fix | None:
    """Return the fix, of two parts: the one that is set last gets a copy of the dataset before."""
    last = settings[-1].part
    first = next(each.node for each in settings if each.part == last)
    imports = [each for each in source.tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    top = next((each for each in imports if getattr(each, "module", "") != "__future__"), None)
    there = any(alias.name == "copy" and not alias.asname for each in imports for alias in each.names)
    taken = any(isinstance(each, ast.Name) and each.id == "copy" for each in source.nodes) and not there
    if len(parts.names) != 2 or top is None or taken:
        return None
    edits = [source.text.insert_before(first, f"{last}.dataset = copy.copy({last}.dataset)")]
    if not there:
        edits.append(source.text.insert_before(top, "import copy"))
    made = [each for each in edits if each is not None]
    return (
        Fix(tuple(made), safe=False, description=f"Give {last} a dataset of its own")
        if len(made) == len(edits)
        else None
    )


RULE = Rule(required_words=("random_split|Subset", ".dataset."), find=find)

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
    doc=__doc__ or "",
    bad=BAD,
    good=BAD.replace("import torch\nfrom", "import copy\nimport torch\nfrom", 1).replace(
        "held_out_set.dataset.transform", "held_out_set.dataset = copy.copy(dataset)\nheld_out_set.dataset.transform"
    ),
    fix="Give each part a dataset of its own: val.dataset = copy.copy(val.dataset), before its transform is set.",
    rule=RULE,
)
