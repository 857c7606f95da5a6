"""Random flips, crops or rotations are drawn separately for an image and its mask, or leave out its boxes.

What you see
    The segmentation never becomes sharp: the training loss stays high, and overfitting a few samples fails. Without
    augmentation the same model learns.

Why it happens
    Each call of a random transform draws new numbers. ``transform(image)`` and ``transform(mask)`` flip the image in
    half of the samples, and the mask in another half, so that in every second sample they do not fit. A flip of the
    image alone leaves the coordinates of its boxes and keypoints where they were.

Fix
    Draw once and apply the same change to both: transform them together, or stacked as channels.

        both = transform(torch.cat([image, mask]))
        image, mask = both[:3], both[3:]

    ``torchvision.transforms.v2`` and albumentations take both in one call, also with boxes. By hand, mirror the
    coordinates under the same condition:

        if torch.rand(1) < 0.5:
            image, box[0] = image.flip(-1), 1 - box[0]

When this is fine
    - The transform of the image changes only its colours, or nothing at random.
    - The random generator is set to the same seed before both calls.
    - Two views of one image are augmented separately, as in contrastive learning.

How it is detected
    Only the linter finds it: a function calls a transform that contains a random flip, crop, rotation or the like once
    with an image and once with something called a mask or a segmentation, and sets no seed. Or it flips each of them
    under a condition with a random number of its own. Or it flips an image at random and returns it with boxes,
    keypoints or other coordinates that it does not change.

References
    torchvision.transforms.v2, "Getting started", https://docs.pytorch.org/vision/stable/transforms.html
    pytorch/vision#9, "Random transforms for both input and target", https://github.com/pytorch/vision/issues/9
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_RANDOM: Final = frozenset((
    "ElasticTransform", "RandomAffine", "RandomCrop", "RandomHorizontalFlip", "RandomPerspective", "RandomResizedCrop",
    "RandomRotation", "RandomVerticalFlip", "RandomZoomOut",
))  # fmt: skip
_MASK: Final = frozenset(("mask", "masks", "msk", "seg", "segmentation"))
_IMAGE: Final = frozenset(("image", "images", "img", "imgs", "input", "inputs", "x", "frame", "picture", "photo", "im"))
_COORDINATES: Final = frozenset((
    "box", "boxes", "bbox", "bboxes", "keypoint", "keypoints", "kpt", "kpts", "landmark", "landmarks", "coords",
    "coordinates", "center", "centre", "centers", "joints", "corners", "points", "polygon",
))  # fmt: skip
_FLIPS: Final = frozenset(("flip", "fliplr", "flipud", "hflip", "vflip", "rot90"))
_SEEDS: Final = frozenset(("manual_seed", "seed", "set_rng_state", "setstate", "set_state", "fork_rng"))
_MOVES: Final = frozenset(("flip", "fliplr", "flipud", "rot90", "roll", "rotate", "hflip", "vflip", "crop", "affine"))
_DRAWS: Final = re.compile(r"\brand(om|int|n)?\(|\brandom\.|\buniform\(|\bbernoulli\(")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each second call of a random transform in a function."""
    randomised: set[str] | None = None
    for function in source.nodes_of(ast.FunctionDef):
        calls = list(nodes_in(function, ast.Call))
        if any(last_name(each.func) in _SEEDS for each in calls):
            continue
        single = [each for each in calls if len(each.args) == 1 and not each.keywords]
        counts = Counter(last_name(each.func) for each in single)
        single = [each for each in single if counts[last_name(each.func)] > 1]
        masks = [each for each in single if _is_about(each.args, _MASK)]
        images = [each for each in single if _is_about(each.args, _IMAGE)] if masks else []
        for call in masks:
            other = next((each for each in images if _same_transform(each, call)), None)
            if other is None:
                continue
            randomised = _random_transforms(source) if randomised is None else randomised
            if last_name(call.func) in randomised:
                yield _hit(call, other, f"`{ast.unparse(call)}` draws its own random numbers")
        yield from _separate_conditions(function)
        yield from _flips_without_coordinates(function)


def _hit(node: Any, other: Any, what: str) -> Hit:
    return Hit(
        message=f"{what}: the mask is not flipped or cropped where the image is.",
        node=node,
        related=((other, "the image is transformed here"),),
    )


def _defined_transforms(source: SourceFile) -> set[str]:
    """Return the classes and functions of the program that flip, rotate or crop their argument at random."""
    found: set[str] = set()
    for each in source.nodes_of(ast.FunctionDef, ast.ClassDef):
        if isinstance(each, ast.FunctionDef) and _moves_at_random(each):
            found.add(each.name)
        elif isinstance(each, ast.ClassDef):
            methods = [m for m in each.body if isinstance(m, ast.FunctionDef) and m.name in ("__call__", "forward")]
            found |= {each.name} if any(map(_moves_at_random, methods)) else set()
    return found


def _moves_at_random(function: ast.FunctionDef) -> bool:
    moves = any(last_name(each.func) in _MOVES for each in nodes_in(function, ast.Call))
    return (moves or _reverses(function)) and _DRAWS.search(ast.unparse(function)) is not None


def _random_transforms(source: SourceFile) -> set[str]:
    """Return the names of functions, variables and attributes that contain a random change of position."""
    defined = _defined_transforms(source)
    random = _RANDOM | defined
    names = {each.name for each in source.nodes_of(ast.FunctionDef)} & defined

    def contains_random(node: ast.expr) -> bool:
        return any(last_name(each.func) in random for each in nodes_in(node, ast.Call))

    for each in source.nodes_of(ast.Assign):
        if contains_random(each.value):
            names |= {last_name(target) for target in each.targets}
    parameters = _constructor_parameters(source)
    for call in source.all_calls:  # Data(transform=train_transform), Data(train_transform)
        given = [(each.arg, each.value) for each in call.keywords if each.arg]
        given += zip(parameters.get(last_name(call.func), ()), call.args, strict=False)
        names |= {name for name, value in given if last_name(value) in names or contains_random(value)}
    for each in source.nodes_of(ast.Assign):  # self.transform = transform
        if isinstance(each.value, ast.Name) and each.value.id in names:
            names |= {last_name(target) for target in each.targets}
    return names - {""}


def _constructor_parameters(source: SourceFile) -> dict[str, list[str]]:
    """Return the parameters of the constructor of each class of the program, by the name of the class."""
    found: dict[str, list[str]] = {}
    for each in source.nodes_of(ast.ClassDef):
        if each.name not in found:
            inits = [n for n in each.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
            found[each.name] = [parameter.arg for parameter in inits[0].args.args[1:]] if inits else []
    return found


def _same_transform(first: ast.Call, second: ast.Call) -> bool:
    return ast.unparse(first.func) == ast.unparse(second.func) and first is not second


def _is_about(nodes: list[ast.expr], words: frozenset[str]) -> bool:
    """Return True if the only argument is named by one of some words, and not by one of the other kind."""
    if len(nodes) != 1:
        return False
    found = {word for each in nodes_in(nodes[0], ast.Name, ast.Attribute) for word in name_words(last_name(each))}
    return bool(found & words) and not found & ((_MASK | _IMAGE) - words)


def _separate_conditions(function: ast.FunctionDef) -> Iterator[Hit]:
    """Yield each ``if random(): mask = f(mask)`` that follows an ``if random(): image = f(image)``."""
    changes = [
        (each, statement.value)
        for each in nodes_in(function, ast.If)
        if not each.orelse and len(each.body) == 1
        for statement in each.body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
    ]
    changes = [each for each in changes if _DRAWS.search(ast.unparse(each[0].test))] if len(changes) > 1 else []
    for condition, call in changes:
        for other, other_call in changes:
            if other is condition or not _same_operation(call, other_call):
                continue
            if _is_about([_subject(call)], _MASK) and _is_about([_subject(other_call)], _IMAGE):
                yield _hit(
                    condition, other, f"`{ast.unparse(condition.test)}` draws a random number for the mask alone"
                )


def _flips_without_coordinates(function: ast.FunctionDef) -> Iterator[Hit]:
    """Yield each random flip of an image in a function that returns its boxes or keypoints, and never changes them."""
    returned = [each.value for each in nodes_in(function, ast.Return) if isinstance(each.value, ast.Tuple | ast.Dict)]
    names = {name.id for value in returned for name in nodes_in(value, ast.Name)}
    coordinates = sorted(name for name in names if set(name_words(name)) & _COORDINATES)
    for condition in nodes_in(function, ast.If) if coordinates else ():
        flips = [
            statement
            for statement in condition.body
            if isinstance(statement, ast.Assign) and _is_flip(statement) and last_name(statement.targets[0]) in names
        ]
        if not flips or not _DRAWS.search(ast.unparse(condition.test)):
            continue
        left = [name for name in coordinates if not _changes_after(function, name, condition)]
        if left == coordinates:
            yield Hit(
                message=f"`{ast.unparse(flips[0])}` mirrors the image, but `{left[0]}` does not change: its "
                "coordinates are wrong for every flipped image.",
                node=flips[0],
            )


def _is_flip(statement: ast.Assign) -> bool:
    """Return True for ``image = image.flip(-1)`` and the like; the array is the only thing that is assigned."""
    value = statement.value
    is_image = bool(set(name_words(last_name(statement.targets[0]))) & _IMAGE)
    return is_image and (_reverses(value) or any(last_name(each.func) in _FLIPS for each in nodes_in(value, ast.Call)))


def _reverses(code: ast.AST) -> bool:
    """Return True if code contains a slice such as ``image[..., ::-1]``."""
    steps = [each.step for each in nodes_in(code, ast.Slice) if each.step is not None]
    return any(ast.unparse(step) == "-1" for step in steps)


def _changes_after(function: ast.FunctionDef, name: str, condition: ast.If) -> bool:
    """Return True if a function assigns a variable, or an item of it, or calls its method, at or after a flip."""
    for each in nodes_in(function, ast.Name):
        if each.id == name and isinstance(each.ctx, ast.Store) and each.lineno >= condition.lineno:
            return True
    for each in nodes_in(function, ast.Subscript, ast.Attribute):
        is_own = isinstance(each.value, ast.Name) and each.value.id == name
        if is_own and each.lineno >= condition.lineno:
            return True
    return False


def _subject(call: ast.Call) -> ast.expr:
    """Return what an operation changes: its first argument, or the object whose method is called."""
    is_method = isinstance(call.func, ast.Attribute) and not (
        isinstance(call.func.value, ast.Name) and call.func.value.id in ("torch", "np", "TF", "F", "cv2", "functional")
    )
    if is_method or not call.args:
        return call.func.value if isinstance(call.func, ast.Attribute) else call.func
    return call.args[0]


def _same_operation(first: ast.Call, second: ast.Call) -> bool:
    return last_name(first.func) == last_name(second.func) != ""


RULE = Rule(required_words=("mask|seg|flip|::-1|rot90", "Random|ElasticTransform|rand|uniform(|bernoulli("), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class RandomHorizontalFlip:
    def __call__(self, x):
        return x.flip(-1) if torch.rand(1) < 0.5 else x


class Shapes(Dataset):
    def __init__(self, count, transform):
        self.images = torch.randn(count, 3, 8, 8)
        self.masks = (self.images.sum(1, keepdim=True) > 1).float()
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image, mask = self.images[index], self.masks[index]
        image = self.transform(image)
        mask = self.transform(mask)
        return image, mask


torch.manual_seed(0)
loader = DataLoader(Shapes(64, RandomHorizontalFlip()), batch_size=16, shuffle=True)
model = nn.Conv2d(3, 1, 3, padding=1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(2):
    for images, masks in loader:
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(images), masks).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT019",
    title="Image and mask or boxes are augmented separately",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "image = self.transform(image)": "both = self.transform(torch.cat([image, mask]))",
            "mask = self.transform(mask)": "image, mask = both[:3], both[3:]",
        },
    ),
    fix="Transform image and mask together, with the same random numbers.",
    rule=RULE,
)
