"""Write a model in eval mode to a file in one of three formats, and open such files."""

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
from trueloop.export.call_signature import CallModel, Inputs, wrap_model
from trueloop.export.io_description import Kind, SizeRange
from trueloop.export.pt2_archive import refuse_code

MAX_PROTOBUF_BYTES: Final = 1_900_000_000  # for the weights; a complete protobuf message has at most 2 GiB
DynamicDims = Sequence[frozenset[int]]
"""For each input, the dimensions whose size may differ between calls."""
AllowedSizes = Sequence[Mapping[int, SizeRange]]
"""For each input, the allowed sizes of its dynamic dimensions, if the format records them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """Result of writing a model."""

    sizes: AllowedSizes
    notes: tuple[str, ...] = ()
    """Warnings of the tracer."""


def write(kind: Kind, model: nn.Module, inputs: Inputs, dynamic: DynamicDims, path: Path) -> WriteResult:
    """Write a model to a file.

    Args:
        kind: the format.
        model: model in eval mode.
        inputs: an example batch; its size is at least 2 in every dynamic dimension.
        dynamic: for each input, the dimensions whose size may differ.
        path: path of the file.

    Raises:
        InvalidModel: torch cannot write the model; the message quotes torch's error.
        MissingExtra: a package that the format needs is not installed.
    """
    writers = {"pt2": _write_pt2, "onnx": _write_onnx, "torchscript": _write_torchscript}
    try:
        with _capture_warnings() as caught:
            sizes = writers[kind](model, inputs, dynamic, path)
    except (MissingExtra, InvalidModel):
        raise
    except Exception as error:  # torch's exporters raise errors of any type
        raise InvalidModel(
            f"torch cannot export {type(model).__name__} to {kind}: {_first_lines(error)}",
            why="Python control flow that depends on values, or a fixed size, cannot be exported.",
            fix="See the documentation of torch.export; with --no-dynamic-batch, the model takes one sample at a time.",
        ) from error
    notes = {str(warning.message).partition("\n")[0] for warning in caught if issubclass(warning.category, UserWarning)}
    notes |= {str(warning.message) for warning in caught if issubclass(warning.category, torch.jit.TracerWarning)}
    return WriteResult(sizes=sizes, notes=tuple(sorted(note[:300] for note in notes)))


def open_model(kind: Kind, path: Path, *, threads: int | None = None) -> CallModel:
    """Open a file whose checksum has been verified.

    Args:
        kind: the format.
        path: path of the file.
        threads: number of threads of onnxruntime; for torch, use ``torch.set_num_threads``.

    Raises:
        CheckpointError: torch would unpickle or evaluate code from this .pt2 file.
        MissingExtra: onnxruntime is not installed.
        InvalidModel: onnxruntime cannot run the model.
    """
    if kind == "pt2":
        refuse_code(path)
        with _capture_warnings():
            return wrap_model(torch.export.load(path).module())
    if kind == "onnx":
        return _open_onnx(path, threads)
    with _capture_warnings():
        script: Any = torch.jit.load(str(path), map_location="cpu")
    return wrap_model(script.eval())


def _export_program(model: nn.Module, inputs: Inputs, dynamic: DynamicDims) -> Any:
    any_size: Any = torch.export.Dim.DYNAMIC
    shapes = tuple(dict.fromkeys(sorted(dims), any_size) for dims in dynamic)
    with torch.no_grad():
        return torch.export.export(model, inputs, dynamic_shapes=shapes)


def _proven_sizes(program: Any) -> AllowedSizes:
    """Return, for each input, the sizes of its dynamic dimensions for which torch has proven the program correct."""
    inputs = [node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
    return [
        {dim: _to_size_range(size, program.range_constraints) for dim, size in _dynamic_dims(node)} for node in inputs
    ]


def _dynamic_dims(node: Any) -> list[tuple[int, Any]]:
    shape: Any = getattr(node.meta.get("val"), "shape", ())
    return [(dim, size) for dim, size in enumerate(shape) if not isinstance(size, int)]


def _to_size_range(size: Any, ranges: Mapping[Any, Any]) -> SizeRange:
    limits = ranges.get(size.node.expr)
    if limits is None:
        return SizeRange(lowest=1)
    return SizeRange(lowest=max(1, int(limits.lower)), highest=int(limits.upper) if limits.upper.is_Integer else None)


def _write_pt2(model: nn.Module, inputs: Inputs, dynamic: DynamicDims, path: Path) -> AllowedSizes:
    program = _export_program(model, inputs, dynamic)
    # The example inputs would be pickled; torch 2.6 does not accept None through the public attribute.
    program._example_inputs = None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.pop("stack_trace", None)  # contains source lines and paths of this machine
    torch.export.save(program, path)
    try:
        refuse_code(path)
    except CheckpointError as error:
        raise InvalidModel(
            f"torch {torch.__version__} writes {type(model).__name__} in a form that can run code: {error.what}",
            why="trueloop would not open such a file.",
            fix="Use torch 2.9 or later, remove everything that is not a plain tensor, or export to onnx.",
        ) from error
    return _proven_sizes(program)


def _write_onnx(model: nn.Module, inputs: Inputs, dynamic: DynamicDims, path: Path) -> AllowedSizes:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(name, "export")
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    if weights > MAX_PROTOBUF_BYTES:
        raise InvalidModel(
            f"{type(model).__name__} has {weights / 2**30:.1f} GiB, but an ONNX file has at most 2 GiB.",
            fix="Export it to pt2.",
        )
    program = _export_program(model, inputs, dynamic)
    converted: Any = torch.onnx.export(program, dynamo=True, external_data=False, verbose=False)
    converted.save(path, external_data=False)
    return _proven_sizes(program)


def _write_torchscript(model: nn.Module, inputs: Inputs, dynamic: DynamicDims, path: Path) -> AllowedSizes:
    with torch.no_grad():
        traced: Any = torch.jit.trace(model, inputs, strict=False, check_trace=False)  # parity is checked afterwards
    traced.save(str(path))
    return [{} for _ in dynamic]


def _open_onnx(path: Path, threads: int | None) -> CallModel:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra("onnxruntime", "export") from error
    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # do not log errors, which are raised as well
    options.intra_op_num_threads = threads or torch.get_num_threads()
    try:
        session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a dozen subclasses of RuntimeError
        raise InvalidModel(
            f"onnxruntime {onnxruntime.__version__} cannot run {path}: {_first_lines(error)}",
            fix="Export to pt2; or avoid operations and types without a CPU kernel, such as bfloat16.",
        ) from error
    names = [node.name for node in session.get_inputs()]

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in zip(names, inputs, strict=True)}
        return [torch.from_numpy(array) for array in session.run(None, arrays)]

    return run


@contextlib.contextmanager
def _capture_warnings() -> Generator[list[warnings.WarningMessage]]:
    """Suppress the output and log messages of PyTorch's exporters, and yield the list of caught warnings."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("always")
            yield caught
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3])[:400] or type(error).__name__
