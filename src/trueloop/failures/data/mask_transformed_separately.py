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
    - The items of the loop are separate samples, such as the images of a batch.

How it is detected
    Only the linter finds it: a function calls a transform that contains a random flip, crop, rotation or the like once
    with an image and once with something called a mask or a segmentation, and sets no seed. Or it flips each of them
    under a condition with a random number of its own. Or a loop over the arrays of one sample, such as the arguments of
    a joint transform, flips, rotates or crops each one by a number that it draws inside; the program has to pass an
    image and its mask, target or the like there. Or it flips an image at random and returns it with boxes, keypoints
    or other coordinates that it does not change.

References
    torchvision.transforms.v2, "Getting started", https://docs.pytorch.org/vision/stable/transforms.html
    pytorch/vision#9, "Random transforms for both input and target", https://github.com/pytorch/vision/issues/9
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.loops import assigned_names
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in, unparse
from trueloop.failures.failure import Failure, Rule, Severity, changed

_RANDOM: Final = frozenset((
    "ElasticTransform", "RandomAffine", "RandomCrop", "RandomHorizontalFlip", "RandomPerspective", "RandomResizedCrop",
    "RandomRotation", "RandomVerticalFlip", "RandomZoomOut",
))  # fmt: skip
_MASK: Final = frozenset((
    "mask", "masks", "msk", "seg", "segmentation", "label", "labels", "gt", "truth", "depth", "depths", "disparity",
    "heatmap", "heatmaps",
))  # fmt: skip
_IMAGE: Final = frozenset(("image", "images", "img", "imgs", "input", "inputs", "x", "frame", "picture", "photo", "im"))
_COORDINATES: Final = frozenset((
    "box", "boxes", "bbox", "bboxes", "keypoint", "keypoints", "kpt", "kpts", "landmark", "landmarks", "coords",
    "coordinates", "center", "centre", "centers", "joints", "corners", "points", "polygon",
))  # fmt: skip
_FLIPS: Final = frozenset(("flip", "fliplr", "flipud", "hflip", "vflip", "rot90"))
_SEEDS: Final = frozenset(("manual_seed", "seed", "set_rng_state", "setstate", "set_state", "fork_rng"))
_GENERATORS: Final = frozenset(("default_rng", "RandomState", "Random", "deepcopy"))
_MOVES: Final = frozenset(("flip", "fliplr", "flipud", "rot90", "roll", "rotate", "hflip", "vflip", "crop", "affine"))
_DRAWS: Final = re.compile(
    r"\brand(om|int|n|range)?\(|\brandom\.(?!default_rng)|\buniform\(|\bbernoulli\(|\bintegers\(|\bchoice\("
)
_PICTURE: Final = _IMAGE | {"rgb", "scan", "volume", "noisy", "lr", "blurred"}
_PAIRED: Final = _MASK | {"target", "targets", "flow", "clean", "hr", "sharp", "y"}
"""Words for an array that belongs to an image, pixel by pixel."""
_COMPREHENSIONS: Final = (ast.ListComp, ast.GeneratorExp, ast.DictComp)
_WRAPPERS: Final = frozenset(("enumerate", "list", "tuple", "items", "values", "keys"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each second call of a random transform in a function."""
    randomised: set[str] | None = None
    for function in source.nodes_of(ast.FunctionDef):
        calls = list(nodes_in(function, ast.Call))
        if any(last_name(each.func) in _SEEDS for each in calls) or _makes_generator(calls):
            continue
        counts = Counter(last_name(each.func) for each in calls)
        repeated = [each for each in calls if each.args and counts[last_name(each.func)] > 1]
        masks = [each for each in repeated if _is_about(each.args[:1], _MASK)]
        images = [each for each in repeated if _is_about(each.args[:1], _IMAGE)] if masks else []
        for call in masks:
            other = next((each for each in images if _same_transform(each, call)), None)
            if other is None:
                continue
            randomised = _random_transforms(source) if randomised is None else randomised
            if last_name(call.func) in randomised:
                yield _hit(call, other, f"`{ast.unparse(call)}` draws its own random numbers")
        yield from _separate_conditions(function)
        yield from _flips_without_coordinates(function)
    yield from _drawn_for_each_array(source)


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


def _moves_at_random(function: ast.FunctionDef | ast.Lambda) -> bool:
    """Return True for a function that draws a number in each call, from no seed that it gets, and moves its pixels."""
    calls = nodes_in(function, ast.Call)
    moves = any(last_name(each.func) in _MOVES for each in calls) or _reverses(function) or _crops(function)
    text = unparse(function) if moves else ""
    return bool(_DRAWS.search(text)) and " is None" not in text and not _makes_generator(calls)


def _crops(function: ast.AST) -> bool:
    """Return True if a function takes a slice that begins or ends at a position that it draws."""
    limits = {name.id for each in nodes_in(function, ast.Slice) for name in nodes_in(each, ast.Name)}
    return bool(limits) and any(
        not limits.isdisjoint(assigned_names(each)) and _DRAWS.search(unparse(each.value))
        for each in nodes_in(function, ast.Assign)
    )


def _makes_generator(calls: Sequence[ast.Call]) -> bool:
    """Return True if one of some calls creates a random generator from a seed, or copies one."""
    return any(last_name(each.func) in _GENERATORS and each.args for each in calls)


def _random_transforms(source: SourceFile) -> set[str]:
    """Return the names of functions, variables and attributes that contain a random change of position."""
    defined = _defined_transforms(source)
    return _holders(source, _RANDOM | defined, {each.name for each in source.nodes_of(ast.FunctionDef)} & defined)


def _holders(source: SourceFile, classes: Set[str], functions: Set[str]) -> set[str]:
    """Return the names of variables, parameters and attributes that hold an instance of a class, or a function."""
    names = set(functions)

    def contains_random(node: ast.expr) -> bool:
        called = any(last_name(each.func) in classes for each in nodes_in(node, ast.Call))
        return called or any(each.id in functions for each in nodes_in(node, ast.Name) if each is not node)

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
    names |= {last_name(each.target) for each in source.nodes_of(ast.For) if last_name(each.iter) in names - {""}}
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
    names = [last_name(each) for each in nodes_in(nodes[0], ast.Name, ast.Attribute)]
    names += [each.value for each in nodes_in(nodes[0], ast.Constant) if isinstance(each.value, str)]
    found = {word for each in names for word in name_words(each)}
    return bool(found & words) and not found & ((_MASK | _IMAGE) - words)


def _separate_conditions(function: ast.FunctionDef) -> Iterator[Hit]:
    """Yield each ``if random(): mask = f(mask)`` that follows an ``if random(): image = f(image)``, and the like."""
    changes = list(_random_changes(function))
    for condition, call in changes if len(changes) > 1 else ():
        for other, other_call in changes:
            if other is condition or not last_name(call.func) == last_name(other_call.func) != "":
                continue
            if _is_about([_subject(call)], _MASK) and _is_about([_subject(other_call)], _IMAGE):
                drawn = ast.unparse(getattr(condition, "test", condition))
                yield _hit(condition, other, f"`{drawn}` draws a random number for the mask alone")


def _random_changes(function: ast.FunctionDef) -> Iterator[tuple[Any, ast.Call]]:
    """Yield each call under a random condition, or with a random argument, that moves pixels, with that condition."""
    for each in nodes_in(function, ast.If, ast.IfExp, ast.Call):
        match each:
            case ast.If(test=test, body=[ast.Assign(value=ast.Call() as call)], orelse=[]):
                pass
            case ast.IfExp(test=test, body=ast.Call() as call) | ast.IfExp(test=test, orelse=ast.Call() as call):
                pass
            case ast.Call(func=func, args=[_, *_]) if last_name(func) in _MOVES and _subject(each) is not each.args[-1]:
                test, call = each.args[-1], each
            case _:
                continue
        if _DRAWS.search(unparse(test)):
            yield each, call


def _drawn_for_each_array(source: SourceFile) -> Iterator[Hit]:
    """Yield each random move in a loop over the arrays of one sample, an image and what belongs to its pixels."""
    helpers = _moving_functions(source)
    for call in source.all_calls:
        is_map = last_name(call.func) == "map" and len(call.args) == 2 and last_name(call.args[0]) in helpers
        if is_map and any(map(_is_pair, origins(source, call.args[1], 3))):
            yield Hit(
                message=f"`{ast.unparse(call)}` draws a random number for each array: the mask is not flipped, rotated "
                "or cropped where the image is.",
                node=call,
            )
    for loop in source.nodes_of(ast.For, *_COMPREHENSIONS):
        if not isinstance(loop, ast.For) and len(loop.generators) > 1:
            continue
        clause = loop if isinstance(loop, ast.For) else loop.generators[0]
        move = _random_move(loop, assigned_names(clause.target), helpers)
        if move is None or not _is_one_sample(source, clause.iter):
            continue
        yield Hit(
            message=f"The loop over `{ast.unparse(clause.iter)}` draws a random number for each array: the mask is not "
            "flipped, rotated or cropped where the image is.",
            node=move,
            related=((loop, "the loop over the arrays of a sample"),) if loop.lineno != move.lineno else (),
        )


def _moving_functions(source: SourceFile) -> set[str]:
    """Return the functions of the program, also lambdas, that move the pixels of their argument at random."""
    found = {each.name for each in source.nodes_of(ast.FunctionDef) if _moves_at_random(each)}
    for each in source.nodes_of(ast.Assign):
        if isinstance(each.value, ast.Lambda) and _moves_at_random(each.value):
            found |= {last_name(target) for target in each.targets}
    return found


def _random_move(
    loop: ast.For | ast.ListComp | ast.GeneratorExp | ast.DictComp, items: set[str], helpers: set[str]
) -> Any:
    """Return the part of a loop that moves an item by a number that the loop draws; None if there is none."""
    body: list[ast.AST] = [*loop.body] if isinstance(loop, ast.For) else []
    if isinstance(loop, ast.DictComp):
        body = [loop.value]
    elif isinstance(loop, ast.ListComp | ast.GeneratorExp):
        body = [loop.elt]
    if any(last_name(call.func) in _SEEDS for part in body for call in nodes_in(part, ast.Call)):
        return None
    drawn = {
        name
        for part in body
        for each in nodes_in(part, ast.Assign)
        if _DRAWS.search(unparse(each.value))
        for name in assigned_names(each)
    } - items

    def is_random(node: ast.AST) -> bool:
        return bool(_DRAWS.search(unparse(node))) or any(e.id in drawn for e in nodes_in(node, ast.Name))

    for part in body:
        for each in nodes_in(part, ast.IfExp, ast.If, ast.Call, ast.Subscript):
            if any(e.id in items for e in nodes_in(each, ast.Name)) and _moves_by(each, is_random, helpers):
                return each
    return None


def _moves_by(node: ast.expr | ast.stmt, is_random: Callable[[ast.AST], bool], helpers: set[str]) -> bool:
    """Return True for a move under a random condition, or by a random amount, or in a function of the program."""
    match node:
        case ast.IfExp(test=test):
            return is_random(test) and _moves(node.body, node.orelse)
        case ast.If(test=test, body=body, orelse=orelse):
            return is_random(test) and _moves(*body, *orelse)
        case ast.Call(func=func, args=args):
            arguments = [*args, *(each.value for each in node.keywords)]
            return last_name(func) in helpers or (last_name(func) in _MOVES and any(map(is_random, arguments)))
        case ast.Subscript(slice=index):
            return any(is_random(each) for each in nodes_in(index, ast.Slice))
        case _:
            return False


def _moves(*nodes: ast.AST) -> bool:
    calls = [call for each in nodes for call in nodes_in(each, ast.Call)]
    return any(last_name(each.func) in _MOVES for each in calls) or any(map(_reverses, nodes))


def _is_one_sample(source: SourceFile, iterable: ast.expr) -> bool:
    """Return True if the items of a loop are an image and an array that belongs to it."""
    is_mapping = False
    while isinstance(iterable, ast.Call) and last_name(iterable.func) in _WRAPPERS:
        is_mapping = is_mapping or last_name(iterable.func) in ("items", "values", "keys")
        iterable = iterable.args[0] if iterable.args else getattr(iterable.func, "value", iterable.func)
    if any(_is_pair(each) for each in origins(source, iterable, 3)):
        return True
    function = function_of(source, iterable)
    parameters = getattr(function, "args", None)
    if parameters is None or not isinstance(iterable, ast.Name):
        return False
    if is_mapping or iterable.id not in [each.arg for each in (parameters.vararg, *parameters.args) if each]:
        return is_mapping and any(map(_is_pair, source.nodes_of(ast.Dict)))
    around = source.parents.get(id(function))
    is_instance = isinstance(around, ast.ClassDef) and function.name in ("__call__", "forward")
    own = {around.name if isinstance(around, ast.ClassDef) and is_instance else function.name}
    holders = _holders(source, own if is_instance else set(), set() if is_instance else own)
    is_variadic = parameters.vararg is not None and parameters.vararg.arg == iterable.id
    calls = [each for each in source.all_calls if last_name(each.func) in holders or _calls_instance(each, own)]
    if is_variadic:
        return any(_is_pair(ast.Tuple(each.args)) for each in calls)
    return any(len(each.args) == 1 and _is_pair(each.args[0]) for each in calls)


def _calls_instance(call: ast.Call, classes: set[str]) -> bool:
    """Return True for ``Flip()(image, mask)``."""
    return isinstance(call.func, ast.Call) and last_name(call.func.func) in classes


def _is_pair(node: ast.expr) -> bool:
    """Return True for a list, tuple or dictionary of an image and a mask, or of their keys."""
    items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", ())
    words = [
        name_words(str(getattr(each, "value", "")) if _is_text(each) else last_name(each))
        for each in items
        if each is not None
    ]
    images = [each for each in words if each & _PICTURE and not each & _PAIRED]
    return bool(images) and any(each & _PAIRED for each in words)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


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


RULE = Rule(
    required_words=("mask|seg|flip|::-1|rot90|depth", "Random|ElasticTransform|rand|uniform(|bernoulli("), find=find
)

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
