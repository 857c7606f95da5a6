"""Checkpoints of a sharded model: every process writes its part; any number of processes can read them again.

    update-000000123/
        state.json, model.safetensors ...               as in other checkpoints, with references to sharded tensors
        shard-00001-model-00001-of-00001.safetensors    the first process's parts of all sharded tensors

As for other checkpoints, the first process creates the folder, writes the manifest of all files and renames the folder.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, cast

from torch import Tensor

from trueloop.core.errors import CheckpointError, ProcessLost, RunFolderError, TrueloopError
from trueloop.training.checkpoint.checkpoints import CheckpointFolder
from trueloop.training.checkpoint.durable_files import FileStamp, unwritable
from trueloop.training.checkpoint.manifest import Checkpoint, WriteExtra, read_manifest
from trueloop.training.checkpoint.state_tree import ShardReference
from trueloop.training.checkpoint.tensor_file import DTYPE_NAMES
from trueloop.training.distributed.dtensors import is_dtensor, memory_key
from trueloop.training.distributed.parallel import Parallel
from trueloop.training.distributed.processes import Processes

if TYPE_CHECKING:  # imported only if a model is sharded, because this takes half as long as importing torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

_TreePath: TypeAlias = tuple[object, ...]


class SaveUnsharded(Protocol):
    """A function that saves the part of a state that is not in shards; see `saver.Saver.save`."""

    def __call__(self, *, write_extra: WriteExtra | None) -> None:
        """Save the state; ``write_extra`` writes the shards."""
        ...


def extract_shards(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, DTensor]]:
    """Replace the sharded tensors of a state by references.

    Args:
        state: nested dicts, lists and tuples; it is not changed.

    Returns:
        The state with a `ShardReference` for each sharded tensor, and the tensors by name. Tied tensors have one name.
        The names are the same on every process.

    Raises:
        CheckpointError: a sharded tensor has a type that safetensors does not know.
    """
    sharded: dict[str, DTensor] = {}
    names: dict[object, str] = {}

    def to_reference(tensor: DTensor, path: _TreePath) -> ShardReference:
        name, memory = ".".join(map(str, path)), memory_key(tensor)
        if tensor.dtype not in DTYPE_NAMES:
            raise CheckpointError(f"{name} is sharded and of {tensor.dtype}, which safetensors does not know.")
        if memory not in names:
            while name in sharded:  # {"a.b": ...} next to {"a": {"b": ...}}
                name += "#"
            names[memory] = name
            sharded[name] = cast("DTensor", tensor.detach())
        return ShardReference(name=names[memory], shape=tuple(tensor.shape), dtype=tensor.dtype)

    return cast("dict[str, Any]", _map_leaves(dict(state), is_dtensor, to_reference)), sharded


def save_on_all_ranks(save: SaveUnsharded | None, sharded: Mapping[str, DTensor], processes: Processes) -> None:
    """Save a state after `extract_shards`; to be called on all processes.

    Args:
        save: on the first process, a function that saves the rest of the state; its ``write_extra`` writes the shards,
            or is None if there are none. None on the other processes.
        sharded: the tensors, from `extract_shards`.
        processes: the processes that hold the parts.

    Raises:
        CheckpointError: a process cannot write; raised on all processes.
        ProcessLost: a process is gone.

    Cost: with shards, blocks until every process has written its part to disk.
    """
    if not sharded:
        if save:
            save(write_extra=None)
        return
    failure: TrueloopError | None = None
    try:
        if save:
            _save_on_first(save, sharded, processes)
        elif folder := processes.broadcast_object(None):
            _write_own_shard(sharded, Path(folder), processes)
    except ProcessLost:
        raise
    except (TrueloopError, OSError) as error:
        failure = error if isinstance(error, TrueloopError) else unwritable(Path("A shard"), error)
    reported = processes.broadcast_object(failure and (failure.what, failure.why, failure.fix))
    if reported is not None:
        what, why, fix = reported
        raise failure if failure and processes.is_first else CheckpointError(what, why=why, fix=fix)


def load_on_all_ranks(
    loaded: tuple[Checkpoint, Mapping[str, Any]] | None, parallel: Parallel
) -> Mapping[str, Any] | None:
    """Return on every process the state that the first one has loaded; to be called on all processes.

    Args:
        loaded: on the first process, a checkpoint and the part of its state to load.
        parallel: if sharded, every process reads its parts from the folder; else the first one reads full tensors.

    Returns:
        The state with its tensors: DTensors sharded along their first dimension, or full tensors on the CPU.

    Raises:
        CheckpointError: the shards cannot be read. Raised on all processes if sharded, else on the first.
        ProcessLost: a process is gone.

    Cost: everything that is not in shards is sent to every process, which needs CPU memory for one more copy.
    """
    processes = parallel.processes
    if not parallel.sharded:
        return processes.broadcast_object(load_full_state(*loaded) if loaded else None)
    folder, files, state = processes.broadcast_object(_locate_shards(*loaded) if loaded else (None, [], None))
    if folder is None or state is None:
        return None
    references = _shard_references(state)
    if not references:
        return state
    from trueloop.training.checkpoint.shard_files import read_shards

    mesh = cast("Any", parallel).mesh
    tensors: dict[str, Any] = {name: _empty_shard(mesh, reference) for name, reference in references.items()}
    read_shards(tensors, Path(folder), files, processes)
    return _fill_references(state, tensors)


def load_full_state(checkpoint: Checkpoint, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace every `ShardReference` by the full tensor on the CPU; runs on a single process.

    Raises:
        CheckpointError: a shard has changed since it was written.

    Cost: reads every shard, one at a time.
    """
    references = _shard_references(state)
    if not references:
        return state
    from trueloop.training.checkpoint.shard_files import read_full_tensors

    tensors = read_full_tensors(checkpoint.path, references)
    return _fill_references(state, tensors)


def gather_full_tensors(tensors: Mapping[str, Tensor], processes: Processes) -> dict[str, Tensor]:
    """Gather sharded tensors on the first process's CPU; to be called on all processes; the others get empty tensors.

    Tensors that are not sharded are returned unchanged. Tied tensors stay tied.

    Cost: memory for one full tensor on every device, and for all of them on the first process's CPU.
    """
    gathered: dict[tuple[int, ...], Tensor] = {}
    for tensor in tensors.values():
        key = memory_key(tensor)
        if is_dtensor(tensor) and key not in gathered:
            full = tensor.full_tensor()
            gathered[key] = full.cpu() if processes.is_first else full.new_empty(0)
    return {name: gathered.get(memory_key(tensor), tensor) for name, tensor in tensors.items()}


def check_folder_shared(folder: CheckpointFolder | None, parallel: Parallel) -> None:
    """Check before training that all processes of a sharded run can write into one folder.

    Args:
        folder: checkpoint folder of the first process; None on the others.
        parallel: how the processes share the run.

    Raises:
        RunFolderError: some processes do not see the folder; the message lists them.
        InvalidConfig: torch is too old for sharded checkpoints.
        MissingExtra: safetensors is not installed.
    """
    if not parallel.sharded:
        return
    from trueloop.training.checkpoint.shard_files import safetensors_storage

    safetensors_storage()
    if folder is None:
        excluded = _processes_without_folder(None, parallel.processes)
    else:
        with folder.visibility_token() as token:
            excluded = _processes_without_folder(token, parallel.processes)
    if excluded:
        raise RunFolderError(
            f"The run folder is not visible to {excluded}.",
            why='With parallel.engine = "fsdp" every process writes its part of a checkpoint itself, into one folder.',
            fix="Put the folder on a file system that all machines mount at the same path, such as NFS or Lustre.",
        )


def _save_on_first(save: SaveUnsharded, sharded: Mapping[str, DTensor], processes: Processes) -> None:
    """Save on the first process; the others receive the folder, or None if saving has failed before the shards."""
    folder_sent = False

    def write_shards(folder: Path) -> Mapping[str, FileStamp]:
        nonlocal folder_sent
        folder_sent = True
        processes.broadcast_object(str(folder.resolve()))
        return _write_own_shard(sharded, folder, processes)

    try:
        save(write_extra=write_shards)
    finally:
        if not folder_sent:
            processes.broadcast_object(None)


def _write_own_shard(sharded: Mapping[str, DTensor], folder: Path, processes: Processes) -> dict[str, FileStamp]:
    """Write this process's shard; return the stamps of all shards."""
    excluded = [rank for rank, visible in enumerate(processes.all_gather_object(folder.is_dir())) if not visible]
    if excluded:
        raise CheckpointError(
            f"The run folder is no longer visible to process {excluded[0]}.",
            fix="Check that all machines have it under the same path.",
        )
    from trueloop.training.checkpoint.shard_files import write_shards

    return write_shards(sharded, folder, processes)


def _processes_without_folder(token: Path | None, processes: Processes) -> str:
    """Describe the processes that do not see the folder that the first one has created; "" if all see it."""
    path = processes.broadcast_object(str(token))
    views = processes.all_gather_object((Path(path).is_dir(), platform.node()))
    excluded = [f"process {rank} on {host}" for rank, (visible, host) in enumerate(views) if not visible]
    return ", ".join(excluded[:5]) + (f" and {len(excluded) - 5} more" if len(excluded) > 5 else "")


def _locate_shards(checkpoint: Checkpoint, state: Mapping[str, Any]) -> tuple[str, list[str], Mapping[str, Any]]:
    """Return a checkpoint's folder, the names of its shard files, and the state that is not in them."""
    from trueloop.training.checkpoint.shard_files import SHARD

    _, stamps = read_manifest(checkpoint.path)
    return str(checkpoint.path.resolve()), list(filter(SHARD.fullmatch, stamps)), state


def _empty_shard(mesh: DeviceMesh, reference: ShardReference) -> DTensor:
    from torch.distributed.tensor import Shard, empty

    return empty(reference.shape, dtype=reference.dtype, device_mesh=mesh, placements=[Shard(0)])


def _shard_references(state: Mapping[str, Any]) -> dict[str, ShardReference]:
    """Return a state's references to shards, by name; in the same order on every process."""
    references: dict[str, ShardReference] = {}
    _map_leaves(dict(state), _is_reference, lambda shard, _: references.setdefault(shard.name, shard))
    return references


def _fill_references(state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", _map_leaves(dict(state), _is_reference, lambda shard, _: tensors[shard.name]))


def _is_reference(value: object) -> TypeGuard[ShardReference]:
    return isinstance(value, ShardReference)


def _map_leaves(
    tree: Any, is_leaf: Callable[[object], bool], replace: Callable[[Any, _TreePath], Any], path: _TreePath = ()
) -> Any:
    """Copy a tree with the leaves that ``is_leaf`` selects replaced; attributes of an OrderedDict are kept."""
    if is_leaf(tree):
        return replace(tree, path)
    if isinstance(tree, dict):
        mapping = copy(cast("dict[Any, Any]", tree))
        for key, value in mapping.items():
            mapping[key] = _map_leaves(value, is_leaf, replace, (*path, key))
        return mapping
    if isinstance(tree, list | tuple):
        parts = enumerate(cast("Sequence[Any]", tree))
        replaced = [_map_leaves(value, is_leaf, replace, (*path, index)) for index, value in parts]
        return replaced if isinstance(tree, list) else tuple(replaced)
    return tree
