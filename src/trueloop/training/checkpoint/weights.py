"""Save and load a model's weights as one plain safetensors file, which other tools can read."""

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidModel
from trueloop.core.json_text import parse_json
from trueloop.training.checkpoint.durable_files import damage_error, sync, unreadable, unwritable
from trueloop.training.checkpoint.tensor_file import DTYPE_NAMES, RESERVED, read_tensors, write_tensors


def save_weights(weights: nn.Module | Mapping[str, Tensor], path: Path) -> None:
    """Write weights atomically: at any time, the file is either the complete old or the complete new one.

    Tied tensors are stored once; the metadata entry "aliases" (JSON) maps their other names to the stored name.

    Args:
        weights: a module, or its state_dict.
        path: path of the file; its folder is created if missing.

    Raises:
        CheckpointError: the file cannot be written; an existing file is unchanged.
        InvalidModel: an entry is not a dense tensor of a type that safetensors knows.
    """
    entries = weights.state_dict() if isinstance(weights, nn.Module) else weights
    tensors, aliases = _split_aliases(entries)
    metadata = {"format": "pt"} | ({"aliases": json.dumps(aliases)} if aliases else {})
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_tensors(temporary, tensors, metadata)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error


def load_weights(path: Path) -> dict[str, Tensor]:
    """Load a safetensors file; names of tied tensors share one tensor again.

    Returns:
        Tensors on the CPU by name.

    Raises:
        CheckpointError: the file cannot be read, or is not a complete safetensors file.
    """
    try:
        file = read_tensors(path)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        aliases = parse_json(file.metadata.get("aliases", "{}"))
        return file.tensors | {alias: file.tensors[name] for alias, name in aliases.items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise damage_error(path, f"its map of tied tensors is invalid ({error!r})") from error


def _split_aliases(entries: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return each tensor under its first name, contiguous and on the CPU, and its other names with that name."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first_name: dict[object, str] = {}
    for name, value in entries.items():
        _check(name, value)
        memory = value.data_ptr() if value.numel() else name
        identity = (memory, value.device, value.dtype, value.shape, value.stride(), value.is_conj(), value.is_neg())
        stored_name = first_name.setdefault(identity, name)
        if stored_name == name:
            tensors[name] = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        else:
            aliases[name] = stored_name
    return tensors, aliases


def _check(name: str, value: Tensor) -> None:
    problem = ""
    if not isinstance(cast("object", value), Tensor):
        problem = f"of type {type(value).__name__}"
    elif value.layout is not torch.strided or value.is_meta or value.dtype not in DTYPE_NAMES:
        problem = f"a tensor of {value.dtype}, {value.layout}, on {value.device}"
    elif name == RESERVED:
        problem = "named like the header of the file format"
    if problem:
        raise InvalidModel(
            f"The entry {name!r} of the state_dict is {problem}.",
            why="A safetensors file can only contain named dense tensors of common types.",
            fix="Convert it, or leave it out of the state_dict.",
        )
