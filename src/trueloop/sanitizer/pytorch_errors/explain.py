"""An error that has ended the program, to its explanation: what kind it is, what is known of it, what to say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from trueloop.core.findings import ExplainedError, SourceLocation
from trueloop.failures.pytorch_error import KnownError, RaisedError, TensorDescription
from trueloop.sanitizer.pytorch_errors.bindings import changes
from trueloop.sanitizer.pytorch_errors.frames import Frame, held, look, operands, stack, torch_file
from trueloop.sanitizer.pytorch_errors.recent_calls import RecentCalls
from trueloop.sanitizer.pytorch_errors.tensors import Describer, modules
from trueloop.tracing.graph_leaves import find_freed_part, graph_leaves
from trueloop.tracing.user_location import is_user_code

LONG: Final = 160  # characters of torch's message, which is in the traceback as a whole
LONGEST: Final = 300  # of its first sentence; some name every tensor there is
CHAIN: Final = 10  # errors raised from one another that are looked at


class Context(NamedTuple):
    """What the run knows beside the error itself."""

    models: Sequence[nn.Module]
    """That were called."""
    recent: RecentCalls
    update: int
    found: frozenset[str]


def explain(error: BaseException, known: Mapping[str, KnownError], context: Context) -> ExplainedError | None:
    """Explain an error that ended the program, or the one it was raised from; None where it is none of torch's.

    Args:
        error: with its traceback.
        known: every kind of error that can be explained, by its name.
        context: of the run.

    Cost: nothing before an error; some milliseconds after it.
    """
    for each in _causes(error):
        told = _explain(each, known, context)
        if told is not None:
            return told
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Follow ``raise ... from ...`` only: what was being handled when another error came is not why it came."""
    for _ in range(CHAIN):
        yield error
        if error.__cause__ is None:
            return
        error = error.__cause__


def _explain(error: BaseException, known: Mapping[str, KnownError], context: Context) -> ExplainedError | None:
    kind = type(error)
    if kind.__module__.partition(".")[0] not in ("builtins", "torch", "_pickle", "pickle"):
        return None
    message = str(error)
    matches = [
        (name, entry, match)
        for name, entry in known.items()
        if kind.__name__ in entry.exception_types
        for match in (entry.match(message),)
        if match is not None
    ]
    frames = stack(error) if matches else []
    if not frames or (not torch_file(frames[-1]) and frames[-1].raises):
        return None  # said by somebody else, in torch's words
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        raised = _read(frames, error, message, context)
    for name, entry, match in matches:
        words = entry.explain(raised, match)
        if words is not None:
            made = words.tensor
            return ExplainedError(
                kind=name, type=kind.__name__, title=entry.title, message=_short(message), location=raised.location,
                meaning=words.meaning, fix=words.fix, other_locations=words.related, update=context.update,
                origin=made.created_at if made else None, origin_message=_made(made) if made else "",
            )  # fmt: skip
    return None


def _short(message: str) -> str:
    """Keep whole sentences, as long as they fit, or the beginning of the first."""
    kept = ""
    for part in re.split(r"(?<=[.!]) (?=[A-Z])", " ".join(message.split())):
        if kept and len(kept) + len(part) > LONG:
            break
        kept += f" {part}" if kept else part
    return kept if len(kept) <= LONGEST else f"{kept[: LONGEST - 3]}..."


def _made(tensor: TensorDescription) -> str:
    how = "comes from" if tensor.created_by == "for" else "is made"
    return f"{tensor.display_name} {how} here"


# Facts -----------------------------------------------------------------------------------------------------------


def _read(frames: Sequence[Frame], error: BaseException, message: str, context: Context) -> RaisedError:
    causes = [str(each) for each in _causes(error) if type(each).__module__ == "builtins"]
    describer = Describer(frames, context.models)
    users = [frame for frame in frames if frame.users] or [frame for frame in frames if not torch_file(frame)]
    roots = _roots(frames)
    again, kept = find_freed_part(roots, context.recent.order)
    return RaisedError(
        type=type(error).__name__,
        message=message,
        location=users[-1].site if users else None,
        causes=tuple(causes),
        pytorch_files=tuple(file for frame in frames if (file := torch_file(frame))),
        tensors=tuple(_operands(frames, users, describer)),
        backward_roots=tuple(describer.tensor(root, text=_called(root, users), role="loss") for root in roots),
        running_module=describer.module(),
        inplace_operations=tuple(_changes(users, describer.models)),
        inplace_modules=tuple(_inplace(describer.models)),
        leaves=tuple(describer.tensor(leaf) for leaf in graph_leaves(roots)[:500]),
        freed_graph=again,
        freed_operation=kept,
        recent=context.recent.past(update=context.update, frozen=_frozen(context.models), found=context.found),
    )


def _operands(frames: Sequence[Frame], users: Sequence[Frame], describer: Describer) -> Iterator[TensorDescription]:
    """Describe what went into the innermost call that took tensors, at the user's line or behind it."""
    last = users[-1] if users else None
    own = {id(tensor): (text, holder) for text, tensor, holder in (operands(last) if last else ())}
    behind = frames[frames.index(last) :] if last in frames else frames
    # From its first private file on it is how torch does what was asked for: its tensors are made on the way.
    for frame in reversed([*takewhile(lambda frame: not torch_file(frame).startswith("_"), behind)]):
        found = operands(frame)
        if found or frame is last:
            for role, tensor, holder in found:
                text, owner = own.get(id(tensor), ("", holder))
                yield describer.tensor(tensor, text=text, role="" if frame is last else role, holder=owner or holder)
            return


def _roots(frames: Sequence[Frame]) -> list[Tensor]:
    for frame in frames:
        if torch_file(frame) == "autograd/__init__.py" and frame.code.co_name in ("backward", "grad"):
            local = frame.locals
            given: Any = local.get("tensors", local.get("outputs"))
            roots: Sequence[Any] = given if isinstance(given, tuple | list) else [given]
            return [root for root in roots if isinstance(root, Tensor)]
    return []


def _called(tensor: Tensor, users: Sequence[Frame]) -> str:
    named = [text for text, each, _ in operands(users[-1]) if each is tensor] if users else []
    return named[0] if named else ""


def _changes(users: Sequence[Frame], models: Sequence[nn.Module]) -> Iterator[SourceLocation]:
    """Yield lines that change a tensor in place: in the functions that are running, and in the forwards of models."""
    running = {frame.code for frame in users}
    for frame in users:
        for site, target in changes(frame.code):
            if isinstance(look(target, frame), Tensor):
                yield site
    for module in {type(module): module for model in models for _, module in modules(model)}.values():
        code = getattr(vars(type(module)).get("forward"), "__code__", None)
        if code is None or code in running or not is_user_code(code):
            continue
        for site, target in changes(code):
            counter = isinstance(target, ast.Attribute) and not isinstance(held(module, target.attr), Tensor)
            if not counter:
                yield site


def _inplace(models: Sequence[nn.Module]) -> Iterator[str]:
    for model in models:
        for path, module in modules(model):
            if vars(module).get("inplace") is True:
                yield f"{path} ({type(module).__name__})" if path else type(module).__name__


def _frozen(models: Sequence[nn.Module]) -> str:
    """Name the first model, where all of them are frozen."""
    own = [p for each in models for _, m in modules(each) for p in vars(m).get("_parameters", {}).values()]
    wanted = [parameter.requires_grad for parameter in own if parameter is not None]
    return type(models[0]).__name__ if wanted and not any(wanted) else ""
