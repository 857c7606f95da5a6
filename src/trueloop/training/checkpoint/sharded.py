"""Checkpoints of a sharded model: every process writes its part and reads what it needs, on any number of processes.

    update-000000123/
        state.json, model.safetensors ...               as always; a sharded tensor is a reference in there
        shard-00001-model-00001-of-00001.safetensors    the first process's parts of all of them

The first process creates the folder, writes the manifest of every file and renames the folder, as always.
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

if TYPE_CHECKING:  # imported only where a model is sharded: they take half as long as importing torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

_TreePath: TypeAlias = tuple[object, ...]


class SaveRest(Protocol):
    """Saves a state; see `saver.Saver.save`."""

    def __call__(self, *, write_extra: WriteExtra | None) -> None:
        """Save everything that is not in shards; ``write_extra`` writes the shards."""
        ...


def extract_shards(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, DTensor]]:
    """Replace the sharded tensors of a state by references.

    Args:
        state: of nested dicts, lists and tuples; it is not changed.

    Returns:
        The state with a `ShardReference` for each, and the tensors by name: tied ones once. The names are the same on
        every process.

    Raises:
        CheckpointError: one has a type that safetensors does not know.
    """
    sharded: dict[str, DTensor] = {}
    names: dict[object, str] = {}

    def name(tensor: DTensor, path: _TreePath) -> ShardReference:
        where, memory = ".".join(map(str, path)), memory_key(tensor)
        if tensor.dtype not in DTYPE_NAMES:
            raise CheckpointError(f"{where} is sharded and of {tensor.dtype}, which safetensors does not know.")
        if memory not in names:
            while where in sharded:  # {"a.b": ...} next to {"a": {"b": ...}}
                where += "#"
            names[memory] = where
            sharded[where] = cast("DTensor", tensor.detach())
        return ShardReference(name=names[memory], shape=tuple(tensor.shape), dtype=tensor.dtype)

    return cast("dict[str, Any]", _map_leaves(dict(state), is_dtensor, name)), sharded


def save_on_all_ranks(save: SaveRest | None, sharded: Mapping[str, DTensor], processes: Processes) -> None:
    """Save a state after `extract_shards`; called on all processes, and complete on return.

    Args:
        save: on the first process, saves the rest of the state; its ``write_extra`` writes the shards, and is None
            where there are none. None on the other processes.
        sharded: the tensors, from `extract_shards`.
        processes: that hold the parts.

    Raises:
        CheckpointError: one of them cannot write; on all of them.
        ProcessLost: one of them has gone.

    Cost: with shards, blocks until every process's disk has its part.
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
    """Return on every process the state that the first one has loaded; called on all of them.

    Args:
        loaded: on the first process: a checkpoint, and the part of its state to load.
        parallel: if sharded, every process reads its parts from the folder; else the first one reads full tensors.

    Returns:
        The state with its tensors: DTensors sharded along their first dimension, or full tensors on the CPU.

    Raises:
        CheckpointError: the shards cannot be read; on all processes, or on the first where that one reads full tensors.
        ProcessLost: one of them has gone.

    Cost: everything that is not in shards is sent to every process, and held once more on each host.
    """
    processes = parallel.processes
    if not parallel.sharded:
        return processes.broadcast_object(load_full_state(*loaded) if loaded else None)
    folder, files, state = processes.broadcast_object(_locate_shards(*loaded) if loaded else (None, [], None))
    if folder is None or state is None:
        return None
    wanted = _shard_references(state)
    if not wanted:
        return state
    from trueloop.training.checkpoint.shard_files import read_shards

    mesh = cast("Any", parallel).mesh
    tensors: dict[str, Any] = {name: _empty_shard(mesh, record) for name, record in wanted.items()}
    read_shards(tensors, Path(folder), files, processes)
    return _fill_references(state, tensors)


def load_full_state(checkpoint: Checkpoint, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace `ShardReference` by full tensors on the CPU; on any one process, without the others.

    Raises:
        CheckpointError: a shard is not what was written.

    Cost: reads every shard, one at a time.
    """
    wanted = _shard_references(state)
    if not wanted:
        return state
    from trueloop.training.checkpoint.shard_files import read_full_tensors

    tensors = read_full_tensors(checkpoint.path, wanted)
    return _fill_references(state, tensors)


def gather_full_tensors(tensors: Mapping[str, Tensor], processes: Processes) -> dict[str, Tensor]:
    """Gather sharded tensors on the first process's CPU; called on all processes, and the others get empty ones.

    Other tensors are returned unchanged. Tied ones stay tied.

    Cost: one gathered tensor at a time on every device, all of them on the first one's host.
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
        folder: of the first process.
        parallel: how they share the run.

    Raises:
        RunFolderError: some do not see it; they are named.
        InvalidConfig: torch is too old for it.
        MissingExtra: safetensors is not installed.
    """
    if not parallel.sharded:
        return
    from trueloop.training.checkpoint.shard_files import safetensors_storage

    safetensors_storage()
    if folder is None:
        blind = _processes_without_folder(None, parallel.processes)
    else:
        with folder.visibility_token() as token:
            blind = _processes_without_folder(token, parallel.processes)
    if blind:
        raise RunFolderError(
            f"The run folder is not seen by {blind}.",
            why='With parallel.engine = "fsdp" every process writes its part of a checkpoint itself, into one folder.',
            fix="Put it where all machines have it under the same path, such as NFS or Lustre.",
        )


def _save_on_first(save: SaveRest, sharded: Mapping[str, DTensor], processes: Processes) -> None:
    """Save on the first process; the others receive the folder, or None where saving failed before."""
    called = False

    def write_shards(folder: Path) -> Mapping[str, FileStamp]:
        nonlocal called
        called = True
        processes.broadcast_object(str(folder.resolve()))
        return _write_own_shard(sharded, folder, processes)

    try:
        save(write_extra=write_shards)
    finally:
        if not called:
            processes.broadcast_object(None)


def _write_own_shard(sharded: Mapping[str, DTensor], folder: Path, processes: Processes) -> dict[str, FileStamp]:
    """Write this process's shard; return the stamps of all shards."""
    blind = [rank for rank, sees in enumerate(processes.all_gather_object(folder.is_dir())) if not sees]
    if blind:
        raise CheckpointError(
            f"The run folder is no longer seen by process {blind[0]}.",
            fix="See that all machines have it under the same path.",
        )
    from trueloop.training.checkpoint.shard_files import write_shards

    return write_shards(sharded, folder, processes)


def _processes_without_folder(token: Path | None, processes: Processes) -> str:
    """Describe the processes that do not see the folder that the first one has made; "" where all do."""
    place = processes.broadcast_object(str(token))
    visible = processes.all_gather_object((Path(place).is_dir(), platform.node()))
    blind = [f"process {rank} on {host}" for rank, (sees, host) in enumerate(visible) if not sees]
    return ", ".join(blind[:5]) + (f" and {len(blind) - 5} more" if len(blind) > 5 else "")


def _locate_shards(checkpoint: Checkpoint, state: Mapping[str, Any]) -> tuple[str, list[str], Mapping[str, Any]]:
    """Return a checkpoint's folder, the names of its shards, and the state that is not in them."""
    from trueloop.training.checkpoint.shard_files import SHARD

    _, stamps = read_manifest(checkpoint.path)
    return str(checkpoint.path.resolve()), list(filter(SHARD.fullmatch, stamps)), state


def _empty_shard(mesh: DeviceMesh, record: ShardReference) -> DTensor:
    from torch.distributed.tensor import Shard, empty

    return empty(record.shape, dtype=record.dtype, device_mesh=mesh, placements=[Shard(0)])


def _shard_references(state: Mapping[str, Any]) -> dict[str, ShardReference]:
    """Return a state's references to shards, by name; in the same order on every process."""
    wanted: dict[str, ShardReference] = {}
    _map_leaves(dict(state), _is_reference, lambda record, _: wanted.setdefault(record.name, record))
    return wanted


def _fill_references(state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", _map_leaves(dict(state), _is_reference, lambda record, _: tensors[record.name]))


def _is_reference(value: object) -> TypeGuard[ShardReference]:
    return isinstance(value, ShardReference)


def _map_leaves(
    tree: Any, kind: Callable[[object], bool], by: Callable[[Any, _TreePath], Any], path: _TreePath = ()
) -> Any:
    """Copy a tree with all leaves of one kind replaced; attributes of an OrderedDict are kept."""
    if kind(tree):
        return by(tree, path)
    if isinstance(tree, dict):
        mapping = copy(cast("dict[Any, Any]", tree))
        for key, value in mapping.items():
            mapping[key] = _map_leaves(value, kind, by, (*path, key))
        return mapping
    if isinstance(tree, list | tuple):
        parts = enumerate(cast("Sequence[Any]", tree))
        replaced = [_map_leaves(value, kind, by, (*path, index)) for index, value in parts]
        return replaced if isinstance(tree, list) else tuple(replaced)
    return tree
