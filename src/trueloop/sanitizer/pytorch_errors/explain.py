"""Explains an error that ended the program: finds its catalogue entry by the message, and describes its tensors."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from trueloop.core.findings import ExplainedError, SourceLocation
from trueloop.failures.pytorch_error import KnownError, RaisedError, TensorDescription
from trueloop.sanitizer.pytorch_errors.bindings import inplace_changes
from trueloop.sanitizer.pytorch_errors.frames import (
    Frame,
    operands,
    resolve_expression,
    stack,
    stored_attribute,
    torch_file,
)
from trueloop.sanitizer.pytorch_errors.recent_calls import RecentCalls
from trueloop.sanitizer.pytorch_errors.tensors import Describer, modules
from trueloop.tracing.graph_leaves import find_freed_part, graph_leaves
from trueloop.tracing.user_location import is_user_code

MAX_MESSAGE: Final = 160  # characters of PyTorch's message, which the traceback contains in full
MAX_SENTENCE: Final = 300  # characters of the message's first sentence, since some messages list every tensor
MAX_CAUSES: Final = 10  # errors raised from one another that are checked


class Context(NamedTuple):
    """The state of the run when the error was raised."""

    models: Sequence[nn.Module]
    """Models that were called during the run."""
    recent: RecentCalls
    update: int
    found_codes: frozenset[str]
    """Codes of the failures that were found."""


def explain(error: BaseException, known: Mapping[str, KnownError], context: Context) -> ExplainedError | None:
    """Explain an error that ended the program, or an error it was raised from; None if PyTorch did not raise it.

    Args:
        error: the exception, with its traceback.
        known: name of an error that can be explained -> its catalogue entry.
        context: the state of the run.

    Cost: nothing before an error; some milliseconds after it.
    """
    for each in _causes(error):
        explained = _explain(each, known, context)
        if explained is not None:
            return explained
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those it was raised from; an error that was only being handled is not a cause."""
    for _ in range(MAX_CAUSES):
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
        return None  # raised by other code with PyTorch's message
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        raised = _describe_error(frames, error, message, context)
    for name, entry, match in matches:
        explanation = entry.explain(raised, match)
        if explanation is not None:
            tensor = explanation.tensor
            return ExplainedError(
                kind=name, type=kind.__name__, title=entry.title, message=_shorten(message), location=raised.location,
                meaning=explanation.meaning, fix=explanation.fix, other_locations=explanation.related,
                update=context.update, origin=tensor.created_at if tensor else None,
                origin_message=_origin_message(tensor) if tensor else "",
            )  # fmt: skip
    return None


def _shorten(message: str) -> str:
    """Return as many complete sentences as fit, or the beginning of the first one."""
    short = ""
    for part in re.split(r"(?<=[.!]) (?=[A-Z])", " ".join(message.split())):
        if short and len(short) + len(part) > MAX_MESSAGE:
            break
        short += f" {part}" if short else part
    return short if len(short) <= MAX_SENTENCE else f"{short[: MAX_SENTENCE - 3]}..."


def _origin_message(tensor: TensorDescription) -> str:
    how = "comes from the loop" if tensor.created_by == "for" else "is created"
    return f"{tensor.display_name} {how} here"


# Facts -----------------------------------------------------------------------------------------------------------


def _describe_error(frames: Sequence[Frame], error: BaseException, message: str, context: Context) -> RaisedError:
    causes = [str(each) for each in _causes(error) if type(each).__module__ == "builtins"]
    describer = Describer(frames, context.models)
    users = [frame for frame in frames if frame.in_user_code] or [frame for frame in frames if not torch_file(frame)]
    roots = _backward_roots(frames)
    freed_graph, freed_operation = find_freed_part(roots, context.recent.backward_order)
    return RaisedError(
        type=type(error).__name__,
        message=message,
        location=users[-1].location if users else None,
        causes=tuple(causes),
        pytorch_files=tuple(file for frame in frames if (file := torch_file(frame))),
        tensors=tuple(_describe_operands(frames, users, describer)),
        backward_roots=tuple(describer.tensor(root, text=_name_in_line(root, users), role="loss") for root in roots),
        running_module=describer.module(),
        inplace_operations=tuple(_inplace_operations(users, describer.models)),
        inplace_modules=tuple(_inplace_modules(describer.models)),
        leaves=tuple(describer.tensor(leaf) for leaf in graph_leaves(roots)[:500]),
        freed_graph=freed_graph,
        freed_operation=freed_operation,
        recent=context.recent.summary(
            update=context.update, frozen_model=_frozen_model(context.models), found_codes=context.found_codes
        ),
    )


def _describe_operands(
    frames: Sequence[Frame], users: Sequence[Frame], describer: Describer
) -> Iterator[TensorDescription]:
    """Describe the tensor arguments of the innermost call that has some, from the user's line inwards."""
    last = users[-1] if users else None
    own = {id(tensor): (text, holder) for text, tensor, holder in (operands(last) if last else ())}
    below = frames[frames.index(last) :] if last in frames else frames
    # In PyTorch's private files and below them, tensors are internal to the operation.
    for frame in reversed([*takewhile(lambda frame: not torch_file(frame).startswith("_"), below)]):
        found = operands(frame)
        if found or frame is last:
            for role, tensor, holder in found:
                text, owner = own.get(id(tensor), ("", holder))
                yield describer.tensor(tensor, text=text, role="" if frame is last else role, holder=owner or holder)
            return


def _backward_roots(frames: Sequence[Frame]) -> list[Tensor]:
    for frame in frames:
        if torch_file(frame) == "autograd/__init__.py" and frame.code.co_name in ("backward", "grad"):
            local = frame.locals
            argument: Any = local.get("tensors", local.get("outputs"))
            roots: Sequence[Any] = argument if isinstance(argument, tuple | list) else [argument]
            return [root for root in roots if isinstance(root, Tensor)]
    return []


def _name_in_line(tensor: Tensor, users: Sequence[Frame]) -> str:
    named = [text for text, each, _ in operands(users[-1]) if each is tensor] if users else []
    return named[0] if named else ""


def _inplace_operations(users: Sequence[Frame], models: Sequence[nn.Module]) -> Iterator[SourceLocation]:
    """Yield the lines with in-place operations in the running functions and in the forward methods of models."""
    running = {frame.code for frame in users}
    for frame in users:
        for location, target in inplace_changes(frame.code):
            if isinstance(resolve_expression(target, frame), Tensor):
                yield location
    for module in {type(module): module for model in models for _, module in modules(model)}.values():
        code = getattr(vars(type(module)).get("forward"), "__code__", None)
        if code is None or code in running or not is_user_code(code):
            continue
        for location, target in inplace_changes(code):
            if isinstance(target, ast.Attribute) and not isinstance(stored_attribute(module, target.attr), Tensor):
                continue  # a counter
            yield location


def _inplace_modules(models: Sequence[nn.Module]) -> Iterator[str]:
    for model in models:
        for path, module in modules(model):
            if vars(module).get("inplace") is True:
                yield f"{path} ({type(module).__name__})" if path else type(module).__name__


def _frozen_model(models: Sequence[nn.Module]) -> str:
    """Return the class name of the first model if all models are frozen, else ""."""
    own = [p for each in models for _, m in modules(each) for p in vars(m).get("_parameters", {}).values()]
    trainable = [parameter.requires_grad for parameter in own if parameter is not None]
    return type(models[0]).__name__ if trainable and not any(trainable) else ""
