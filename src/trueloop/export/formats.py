"""The three formats: how each is written from a model in eval mode, and how it is opened again."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from trueloop.core.errors import CheckpointError, InvalidModel, MissingExtra
from trueloop.export.call_signature import Inputs, Run, live
from trueloop.export.io_description import Extent, Kind
from trueloop.export.pt2_archive import refuse_code

LARGEST_PROTOBUF: Final = 1_900_000_000  # bytes; a protobuf message ends at 2 GiB
Moving = Sequence[frozenset[int]]
"""For each input the dimensions that may differ from call to call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What writing told."""

    extents: Sequence[Mapping[int, Extent]]
    """For each input what sizes its moving dimensions may have, where the format says so."""
    notes: tuple[str, ...] = ()
    """Warnings of the tracer."""


def write(kind: Kind, model: nn.Module, inputs: Inputs, moving: Moving, path: Path) -> Written:
    """Write a model to a file.

    Args:
        kind: the format.
        model: in eval mode.
        inputs: an example; of what may differ, two or more.
        moving: for each input the dimensions that may differ.
        path: of the file.

    Raises:
        InvalidModel: torch cannot write it, with torch's own words.
        MissingExtra: what the format needs is not installed.
    """
    writers = {"pt2": _write_pt2, "onnx": _write_onnx, "torchscript": _write_torchscript}
    try:
        with _quiet() as said:
            extents = writers[kind](model, inputs, moving, path)
    except (MissingExtra, InvalidModel):
        raise
    except Exception as error:  # torch's exporters raise whatever they meet
        raise InvalidModel(
            f"torch cannot export {type(model).__name__} to {kind}: {_first_words(error)}",
            why="Python that depends on values, or a size that must stay as it was, cannot be written down.",
            fix="See the page of torch.export; --no-dynamic-batch exports one sample at a time.",
        ) from error
    notes = {str(each.message).partition("\n")[0] for each in said if issubclass(each.category, UserWarning)}
    notes |= {str(each.message) for each in said if issubclass(each.category, torch.jit.TracerWarning)}
    return Written(extents=extents, notes=tuple(sorted(note[:300] for note in notes)))


def open_model(kind: Kind, path: Path, *, threads: int | None = None) -> Run:
    """Open a file whose checksum has been verified.

    Args:
        kind: the format.
        path: of the file.
        threads: of onnxruntime; torch's own are set by ``torch.set_num_threads``.

    Raises:
        CheckpointError: a .pt2 that would have torch unpickle or evaluate something.
        MissingExtra: onnxruntime is not installed.
        InvalidModel: onnxruntime has no means to run it.
    """
    if kind == "pt2":
        refuse_code(path)
        with _quiet():
            return live(torch.export.load(path).module())
    if kind == "onnx":
        return _open_onnx(path, threads)
    with _quiet():
        script: Any = torch.jit.load(str(path), map_location="cpu")
    return live(script.eval())


def _exported(model: nn.Module, inputs: Inputs, moving: Moving) -> Any:
    automatic: Any = torch.export.Dim.DYNAMIC
    shapes = tuple(dict.fromkeys(sorted(each), automatic) for each in moving)
    with torch.no_grad():
        return torch.export.export(model, inputs, dynamic_shapes=shapes)


def _extents(program: Any) -> list[Mapping[int, Extent]]:
    """Read from an exported program which sizes it was proven for."""
    wanted = [node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
    return [{dim: _extent(size, program.range_constraints) for dim, size in _moving(node)} for node in wanted]


def _moving(node: Any) -> list[tuple[int, Any]]:
    shape: Any = getattr(node.meta.get("val"), "shape", ())
    return [(dim, size) for dim, size in enumerate(shape) if not isinstance(size, int)]


def _extent(size: Any, ranges: Mapping[Any, Any]) -> Extent:
    found = ranges.get(size.node.expr)
    if found is None:
        return Extent(lowest=1)
    return Extent(lowest=max(1, int(found.lower)), highest=int(found.upper) if found.upper.is_Integer else None)


def _write_pt2(model: nn.Module, inputs: Inputs, moving: Moving, path: Path) -> Sequence[Mapping[int, Extent]]:
    program = _exported(model, inputs, moving)
    # They are pickled, and are somebody's data; torch 2.6 takes no None by the public name.
    program._example_inputs = None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.pop("stack_trace", None)  # lines of code, and the folders of this machine
    torch.export.save(program, path)
    try:
        refuse_code(path)
    except CheckpointError as error:
        raise InvalidModel(
            f"torch {torch.__version__} writes {type(model).__name__} in a way that can run code: {error.what}",
            why="It would not be opened again.",
            fix="Use torch 2.9 or later, leave out what is no plain tensor, or export to onnx.",
        ) from error
    return _extents(program)


def _write_onnx(model: nn.Module, inputs: Inputs, moving: Moving, path: Path) -> Sequence[Mapping[int, Extent]]:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(name, "export")
    weights = sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
    if weights > LARGEST_PROTOBUF:
        raise InvalidModel(
            f"{type(model).__name__} holds {weights / 2**30:.1f} GiB, and one ONNX file at most 2 GiB.",
            fix="Export it to pt2.",
        )
    program = _exported(model, inputs, moving)
    made: Any = torch.onnx.export(program, dynamo=True, external_data=False, verbose=False)
    made.save(path, external_data=False)
    return _extents(program)


def _write_torchscript(model: nn.Module, inputs: Inputs, moving: Moving, path: Path) -> Sequence[Mapping[int, Extent]]:
    with torch.no_grad():
        traced: Any = torch.jit.trace(model, inputs, strict=False, check_trace=False)  # parity is looked at afterwards
    traced.save(str(path))
    return [{} for _ in moving]


def _open_onnx(path: Path, threads: int | None) -> Run:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra("onnxruntime", "export") from error
    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised as well
    options.intra_op_num_threads = threads or torch.get_num_threads()
    try:
        session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # it has a dozen of its own, below RuntimeError
        raise InvalidModel(
            f"onnxruntime {onnxruntime.__version__} cannot run it: {_first_words(error)}",
            fix="Export to pt2; or leave out what it has no kernel for on a CPU, such as bfloat16.",
        ) from error
    names = [each.name for each in session.get_inputs()]

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in zip(names, inputs, strict=True)}
        return [torch.from_numpy(array) for array in session.run(None, arrays)]

    return run


@contextlib.contextmanager
def _quiet() -> Generator[list[warnings.WarningMessage]]:
    """Keep what torch's exporters say to their own developers from the terminal; tracer's warnings are handed back."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(record=True) as said, contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("always")
            yield said
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _first_words(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3])[:400] or type(error).__name__
