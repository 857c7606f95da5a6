"""A mask of class ids is resized with interpolation, which makes up classes between two others.

What you see
    The segmentation is bad along all edges: between class 0 and class 4, the model predicts thin lines of the classes
    1, 2 and 3. The loss stays higher than with masks of the original size.

Why it happens
    Bilinear and bicubic interpolation compute means of neighbouring pixels. For an image that is right. The mean of
    the class ids 0 and 4 is 2, another class, and ``.long()`` cuts 3.9 off to 3. Interpolation is the default of
    ``resize`` in PIL, ``Resize`` in torchvision, ``cv2.resize`` and ``scipy.ndimage.zoom``.

Fix
    Take the nearest pixel:

        mask = F.interpolate(mask[:, None].float(), size, mode="nearest")[:, 0].long()
        mask = mask.resize(size, Image.NEAREST)
        mask = TF.resize(mask, size, InterpolationMode.NEAREST)
        mask = cv2.resize(mask, size, interpolation=cv2.INTER_NEAREST)

When this is fine
    - The values are no class ids: an image, logits, a depth map, a heatmap, or a soft mask for a loss such as BCE.
    - The mask is compared with a threshold after the resize.
    - The mask is an image with a palette (mode "P") of PIL, which always takes the nearest pixel.
    - The size is ``(h - 1) / 8 + 1`` with ``align_corners=True``, which takes every eighth pixel and mixes none.
    - One-hot masks, whose largest channel is taken after the resize.

How it is detected
    Only the linter finds it: the result of a resize with interpolation is converted to integers, also after it was
    returned by the dataset, and it is called a mask, a label or a segmentation, or is the target of a loss. So is what
    OpenCV, SciPy or scikit-image rotate or warp. An argument that is called a label is reported where a function warps
    it, or says by its name that it resizes labels, such as ``resize_label(label, size)``.

References
    torch.nn.functional.interpolate, https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.interpolate.html
    torchvision.transforms.Resize, https://docs.pytorch.org/vision/stable/generated/torchvision.transforms.Resize.html
"""

import ast
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of, is_loss_call, without_conversions
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import computed_from, parameters_of, possible_values
from trueloop.analysis.queries.request_handlers import imported_names, qualified_name
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_MASK: Final = frozenset((
    "mask", "masks", "msk", "label", "labels", "lbl", "lbls", "seg", "segs", "segmentation", "segmap", "target",
    "targets", "gt", "annotation", "annotations", "anno", "ann", "trimap", "labelmap", "semantic", "gts", "tgt",
))  # fmt: skip
_NO_CLASSES: Final = frozenset((
    "image", "images", "img", "imgs", "logits", "logit", "pred", "preds", "prob", "probs", "soft", "alpha", "matte",
    "depth", "heatmap", "heatmaps", "heat", "density", "flow", "attention", "attn", "weights", "binary", "edge",
    "saliency", "onehot", "hot",
))  # fmt: skip
_LABELS: Final = _MASK - {"mask", "masks", "msk", "target", "targets", "trimap"}
_RESIZING: Final = frozenset((
    "resize", "resized", "rescale", "scale", "scaled", "downsample", "upsample", "interp", "interpolate", "shrink",
    "downscale", "upscale", "zoom",
))  # fmt: skip
_MODES: Final = frozenset(("bilinear", "bicubic", "area", "linear", "trilinear"))
_INTERPOLATING: Final = frozenset((
    "BILINEAR", "BICUBIC", "LANCZOS", "ANTIALIAS", "HAMMING", "INTER_LINEAR", "INTER_CUBIC", "INTER_AREA",
    "INTER_LANCZOS4",
))  # fmt: skip
_VIEWS: Final = frozenset((
    "squeeze", "unsqueeze", "contiguous", "to", "cuda", "cpu", "clone", "detach", "view", "reshape", "permute",
    "transpose", "float", "copy", "numpy", "type", "flatten", "long", "int", "astype", "squeeze_", "convert", "double",
))  # fmt: skip
_COPIES: Final = frozenset((
    "from_numpy", "array", "asarray", "as_tensor", "tensor", "Tensor", "FloatTensor", "LongTensor", "pil_to_tensor",
    "to_tensor", "ToTensor", "PILToTensor", "ascontiguousarray",
))  # fmt: skip
_INTEGERS: Final = frozenset(("long", "int64", "int32", "int", "LongTensor", "IntTensor", "int_", "torch.LongTensor"))
_ARGUMENTS: Final = {
    "cv2.resize": ("interpolation", 5), "cv2.warpAffine": ("flags", 4), "cv2.warpPerspective": ("flags", 4),
    "cv2.remap": ("interpolation", 3), "scipy.ndimage.zoom": ("order", 3), "scipy.ndimage.rotate": ("order", 5),
    "scipy.ndimage.shift": ("order", 3), "scipy.ndimage.affine_transform": ("order", 5),
    "scipy.ndimage.map_coordinates": ("order", 3), "skimage.transform.resize": ("order", 2),
    "skimage.transform.rescale": ("order", 2), "skimage.transform.rotate": ("order", 4),
    "skimage.transform.warp": ("order", 4), "functional.resize": ("interpolation", 2),
    "functional.resized_crop": ("interpolation", 6), "functional.perspective": ("interpolation", 3),
}  # fmt: skip
"""Functions that interpolate by default -> name and position of the argument that decides."""
_FUNCTIONS: Final = frozenset(each.rpartition(".")[2] for each in _ARGUMENTS)
_MODULES: Final = {"cv": "cv2", "TF": "functional", "F": "functional", "TVF": "functional", "ndi": "scipy.ndimage"}
_PACKAGES: Final = {"torchvision": "functional", "ndimage": "scipy.ndimage"}
_WARPS: Final = frozenset(("warpAffine", "warpPerspective", "remap", "map_coordinates", "affine_transform"))
_ROUNDING: Final = frozenset(("round", "rint", "round_", "threshold", "isin"))
_PIXELS_BETWEEN: Final = re.compile(r"- 1\b.*\+ 1\b")
_DEPTH: Final = 10


class _Resized(NamedTuple):
    """A resize with interpolation, and the names that its result has."""

    call: ast.Call
    names: frozenset[str]


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each resize with interpolation whose result is converted to integers."""
    reported: set[int] = set()
    for call, place, reason in chain(_before_conversions(source), _by_name(source)):
        if id(call) not in reported:
            reported.add(id(call))
            yield Hit(
                message=f"`{ast.unparse(call)}` interpolates between class ids: the mean of the classes 0 and 4 is "
                "class 2. Use the mode for the nearest pixel.",
                node=call,
                related=((place, reason),),
            )


def _before_conversions(source: SourceFile) -> Iterator[tuple[ast.Call, ast.AST, str]]:
    sinks = [(call, value) for call in source.all_calls if (value := _converted(call)) is not None]
    for call, value in sinks:
        for each in (*_resized(source, value), *_of_dataset(source, call, value)):
            names = each.names | _assigned_names(source, call)
            words = {word for name in names for word in name_words(name)}
            is_mask = (words & _MASK or _is_target(source, call)) and not words & _NO_CLASSES
            places = (function_of(source, place) for place in (call, each.call))
            if is_mask and not any(_is_thresholded(place, names) for place in places):
                yield each.call, call, "converted to integers here"


def _by_name(source: SourceFile) -> Iterator[tuple[ast.Call, ast.AST, str]]:
    """Yield each interpolation of an argument that is called a label, in a function that resizes labels by its name.

    A function that warps, and not only resizes, an argument called a label need not have a name that says so.
    """
    for function in source.nodes_of(ast.FunctionDef):
        words = set(name_words(function.name))
        is_named = bool(words & _RESIZING and words & _LABELS)
        parameters = {each.arg for each in parameters_of(function)}
        if words & _NO_CLASSES or not any(set(name_words(each)) & _LABELS for each in parameters):
            continue
        for call in nodes_in(function, ast.Call):
            is_candidate = is_named or last_name(call.func) in _WARPS
            subject = _interpolated(source, call) if is_candidate else None
            if subject is None or _is_binary(source, subject):
                continue
            names = {last_name(each) for each in computed_from(source, subject) if isinstance(each, ast.Name)}
            labels = {e for e in names & parameters if name_words(e) & _LABELS and not name_words(e) & _NO_CLASSES}
            if labels and not _is_thresholded(function, names):
                yield call, function, "the function resizes labels"


def _converted(call: ast.Call) -> ast.expr | None:
    """Return the value that a call converts to 32- or 64-bit integers; None for other calls."""
    name = last_name(call.func)
    kinds = [*call.args, *(each.value for each in call.keywords if each.arg == "dtype")]
    is_integer = any(
        last_name(each) in _INTEGERS or (isinstance(each, ast.Constant) and each.value in _INTEGERS) for each in kinds
    )
    is_method = isinstance(call.func, ast.Attribute)
    if is_method and ((name in ("long", "int") and not call.args) or (name in ("to", "type", "astype") and is_integer)):
        return call.func.value  # type: ignore[attr-defined]
    if call.args and (name == "LongTensor" or (name in _COPIES and is_integer)):
        return call.args[0]
    return None


def _resized(source: SourceFile, node: ast.expr, depth: int = _DEPTH) -> Iterator[_Resized]:
    """Yield the resizes with interpolation whose result a value has, apart from its shape and type."""
    if depth == 0:
        return
    if isinstance(node, ast.Call) and (subject := _interpolated(source, node)) is not None:
        if not _is_binary(source, subject):
            yield _Resized(node, frozenset(_names(subject)))
        return
    inner = _viewed(node)
    for each in [inner] if inner is not None else possible_values(source, node):
        for found in _resized(source, each, depth - 1):
            yield found._replace(names=found.names | set(_names(node)))


def _viewed(node: ast.expr) -> ast.expr | None:
    """Return the value whose pixels an expression has unchanged; None if it computes others or is a variable."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in _VIEWS and _is_object(value):
            return value
        case ast.Call(func=ast.Call(func=func) | func, args=[value, *_]) if last_name(func) in _COPIES:
            return value  # torch.tensor(mask), ToTensor()(mask)
        case ast.Subscript(value=value, slice=index) if not isinstance(index, ast.Constant | ast.Compare) or isinstance(
            value, ast.Call
        ):
            return value
        case ast.Attribute(value=value, attr="data"):
            return value
        case ast.BinOp(left=value, op=ast.Mult(), right=ast.Constant(value=255)):
            return value
        case _:
            return None


def _is_binary(source: SourceFile, node: ast.expr, depth: int = _DEPTH) -> bool:
    """Return True for a mask that results from a comparison."""
    inner = _viewed(node)
    is_choice = isinstance(node, ast.Call) and last_name(node.func) in ("where", "isin", "zeros_like", "logical_or")
    values = [inner] if inner is not None else possible_values(source, node) if depth else []
    return isinstance(node, ast.Compare) or is_choice or any(_is_binary(source, e, depth - 1) for e in values if depth)


def _is_object(node: ast.expr) -> bool:
    return not (isinstance(node, ast.Name) and node.id in ("torch", "np", "numpy", "F", "TF", "cv2"))


def _interpolated(source: SourceFile, call: ast.Call) -> ast.expr | None:
    """Return what a call resizes with interpolation; None for other calls."""
    name = last_name(call.func)
    first = call.args[0] if call.args else next((e.value for e in call.keywords if e.arg in ("input", "img")), None)
    if name in ("interpolate", "upsample"):
        return first if _is_blurring_call(source, call) else None
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    argument = _ARGUMENTS.get(_qualified(source, call))
    if argument is not None:
        interpolates = _mode(source, call, *argument)
        return None if interpolates is False or (name == "resize" and _has_own_masks(source)) else first
    if owner is not None and last_name(owner) != "self" and name in ("resize", "rotate", "transform"):
        return _resized_image(source, call, owner)
    if name == "Resize" or first is None or not call.args:
        return None
    made = [each for each in (call.func, *possible_values(source, call.func)) if isinstance(each, ast.Call)]
    if any(map(_is_blurring_layer, made)):
        return first
    is_resized = any(_is_blurring_resize(part) for each in made for part in nodes_in(each, ast.Call))
    return first if is_resized and not _has_own_masks(source) else None


def _is_blurring_call(source: SourceFile, call: ast.Call) -> bool:
    """Return True for ``interpolate(x, size, mode="bilinear")`` of torch, if it computes means."""
    mode = argument_node(call, "mode", 3)
    mode = _single(source, mode) if isinstance(mode, ast.Name | ast.Attribute) else mode
    is_blurring = isinstance(mode, ast.Constant) and mode.value in _MODES
    return is_blurring and not _takes_every_nth_pixel(source, call)


def _is_blurring_layer(call: ast.Call) -> bool:
    """Return True for ``nn.UpsamplingBilinear2d(2)`` and ``nn.Upsample(size, mode="bilinear")``."""
    mode = argument_node(call, "mode", 2) if last_name(call.func) == "Upsample" else None
    is_blurring = isinstance(mode, ast.Constant) and mode.value in _MODES
    return is_blurring or last_name(call.func) == "UpsamplingBilinear2d"


def _takes_every_nth_pixel(source: SourceFile, call: ast.Call) -> bool:
    """Return True for ``align_corners=True`` and the size ``(h - 1) / 8 + 1``, which only takes every eighth pixel."""
    aligned, size = argument_node(call, "align_corners", 4), argument_node(call, "size", 1)
    if not (isinstance(aligned, ast.Constant) and aligned.value is True) or size is None:
        return False
    values = [each for part in getattr(size, "elts", [size]) for each in (part, *possible_values(source, part))]
    return any(_PIXELS_BETWEEN.search(ast.unparse(each)) for each in values)


def _qualified(source: SourceFile, call: ast.Call) -> str:
    """Return the qualified name of a function of OpenCV, SciPy or torchvision, also under the usual short names."""
    module, _, name = source.qualified_name(call.func).rpartition(".")
    if not module and isinstance(call.func, ast.Attribute):
        module, name = last_name(call.func.value), call.func.attr
    elif not module and last_name(call.func) in _FUNCTIONS:
        module, _, name = qualified_name(call.func, imported_names(source.tree)).rpartition(".")
    package = next((known for word, known in _PACKAGES.items() if word in module), _MODULES.get(module, module))
    return f"{package}.{name}"


def _resized_image(source: SourceFile, call: ast.Call, owner: ast.expr) -> ast.expr | None:
    """Return the image of PIL that a method resizes or turns with interpolation."""
    explicit = _mode(source, call, "resample", 3 if last_name(call.func) == "transform" else 1)
    if explicit is False or len(call.args) > 4 or not call.args or _has_palette(source):
        return None
    return owner if explicit or (last_name(call.func) == "resize" and _is_pil(source, owner)) else None


def _mode(source: SourceFile, call: ast.Call, name: str, position: int) -> bool | None:
    """Return whether a function interpolates by its argument; None if that is missing, so the default applies."""
    mode = argument_node(call, name, position)
    if isinstance(mode, ast.Name):
        mode = _single(source, mode) or mode
    if mode is None:
        return None
    is_order = name == "order" and isinstance(mode, ast.Constant)
    return mode.value not in (0, None) if is_order else last_name(mode) in _INTERPOLATING  # type: ignore[union-attr]


def _is_blurring_resize(call: ast.Call) -> bool:
    """Return True for ``Resize(size)`` of torchvision without the mode for the nearest pixel."""
    position = 1 if last_name(call.func) == "Resize" else 3
    is_resize = last_name(call.func) in ("Resize", "RandomResizedCrop")
    mode = argument_node(call, "interpolation", position)
    return is_resize and (mode is None or last_name(mode) in _INTERPOLATING)


def _is_pil(source: SourceFile, node: ast.expr, depth: int = 6) -> bool:
    """Return True for an image of PIL, by ``Image.open`` or ``Image.fromarray``."""
    if isinstance(node, ast.Call) and last_name(node.func) in ("open", "fromarray", "to_pil_image"):
        return last_name(node.func) != "open" or isinstance(node.func, ast.Attribute)
    inner = _viewed(node)
    values = [inner] if inner is not None else possible_values(source, node)
    return depth > 0 and any(_is_pil(source, each, depth - 1) for each in values)


def _has_palette(source: SourceFile) -> bool:
    """Return True if the file has masks with a palette, as those of PASCAL VOC."""
    text = source.text.source
    return any(word in text for word in ('"P"', "'P'", "palette", "VOC", "voc"))


def _has_own_masks(source: SourceFile) -> bool:
    """Return True if the program marks its masks, so that transforms.v2 take the nearest pixel."""
    return any(word in source.text.source for word in ("tv_tensors", "datapoints", "features.Mask")) or _has_palette(
        source
    )


def _single(source: SourceFile, node: ast.expr) -> ast.expr | None:
    values = possible_values(source, node)
    return values[0] if len(values) == 1 else None


def _of_dataset(source: SourceFile, call: ast.Call, value: ast.expr) -> Iterator[_Resized]:
    """Yield the masks that a dataset resizes with interpolation, for a conversion of a variable of a batch."""
    name = last_name(without_conversions(value))
    is_batch = any(
        name in {last_name(each) for each in nodes_in(loop.target, ast.Name)}
        for loop in source.nodes_of(ast.For)
        if encloses(loop, call)
    )
    if not is_batch or not name:
        return
    for function in source.nodes_of(ast.FunctionDef):
        for each in nodes_in(function, ast.Return) if function.name == "__getitem__" else ():
            parts = each.value.elts if isinstance(each.value, ast.Tuple) else [each.value]
            parts = parts if not isinstance(each.value, ast.Dict) else each.value.values
            for part in parts:
                for found in _resized(source, part) if part is not None else ():
                    if {word for e in found.names for word in name_words(e)} & _MASK:
                        yield found
    for other in source.all_calls:
        given = next((e.value for e in other.keywords if e.arg in ("target_transform", "mask_transform")), None)
        for each in [given, *possible_values(source, given)] if given is not None else ():
            resizes = [e for e in nodes_in(each, ast.Call) if _is_blurring_resize(e)]
            if resizes and not _has_own_masks(source):
                yield _Resized(resizes[0], frozenset((name,)))


def _names(node: ast.expr) -> list[str]:
    """Return the name and the key of the value that an expression views: ["batch", "mask"]."""
    inner = node
    while inner is not None:
        node, inner = inner, _viewed(inner)
    key = node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None
    return [last_name(node), *([key] if isinstance(key, str) else [])]


def _assigned_names(source: SourceFile, call: ast.Call) -> set[str]:
    """Return the variables that the statement around a conversion assigns; no more than one value is unpacked."""
    statement = source.statement_of(call)
    if not isinstance(statement, ast.Assign) or isinstance(statement.targets[0], ast.Tuple):
        return set()
    return {last_name(each) for each in statement.targets}


def _is_target(source: SourceFile, call: ast.Call) -> bool:
    """Return True if a conversion, or the variable that it is assigned to, is the target of a loss."""
    names = _assigned_names(source, call)
    for loss in nodes_in(function_of(source, call), ast.Call):
        if len(loss.args) > 1 and is_loss_call(source, loss):
            target = loss.args[1]
            if any(each is call for each in nodes_in(target, ast.Call)) or last_name(target) in names:
                return True
    return False


def _is_thresholded(function: Any, names: frozenset[str] | set[str]) -> bool:
    """Return True if a function compares a mask with a threshold, rounds it, or sets pixels of it to 0 or 1."""
    for each in nodes_in(function, ast.Compare):
        ordering = isinstance(each.ops[0], ast.Gt | ast.GtE | ast.Lt | ast.LtE | ast.NotEq)
        if ordering and last_name(without_conversions(each.left)) in names - {""}:
            return True
    rounding = [e for e in nodes_in(function, ast.Call) if last_name(e.func) in _ROUNDING]
    if names & {last_name(part) for each in rounding for part in nodes_in(each, ast.Name, ast.Attribute)} - {""}:
        return True
    return any(
        isinstance(target, ast.Subscript) and last_name(target) in names
        for each in nodes_in(function, ast.Assign)
        for target in each.targets
        if isinstance(each.value, ast.Constant) and each.value.value in (0, 1, 0.0, 1.0)
    )


RULE = Rule(
    required_words=(
        "interpolate(|upsample(|resize(|Resize(|zoom(|Upsampl|warp|rotate(|map_coordinates(|remap(|affine|rescale(",
        ".long()|.int()|torch.long|int64|int32|LongTensor|astype(int|label|seg|_gt|anno",
    ),
    find=find,
)

BAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
images = torch.randn(32, 3, 16, 16)
masks = 2 * (images[:, 0] > 0) + 2 * (images[:, 1] > 0)
model = nn.Conv2d(3, 5, 3, padding=1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for rows in torch.randperm(32).split(8):
        small = F.interpolate(images[rows], size=(8, 8), mode="bilinear")
        mask = F.interpolate(masks[rows, None].float(), size=(8, 8), mode="bilinear")
        optimizer.zero_grad()
        loss = F.cross_entropy(model(small), mask.squeeze(1).long())
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT029",
    title="A mask of class ids is interpolated",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            'masks[rows, None].float(), size=(8, 8), mode="bilinear"': (
                'masks[rows, None].float(), size=(8, 8), mode="nearest"'
            )
        },
    ),
    fix="Resize masks of class ids with the nearest pixel.",
    rule=RULE,
)
