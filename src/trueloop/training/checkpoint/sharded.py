"""Checkpoints of a sharded model: every process writes its part and reads what it needs, however many there are then.

    update-000000123/
        state.json, model.safetensors ...               as ever; a sharded tensor is a name in there (`state.InShards`)
        shard-00001-model-00001-of-00001.safetensors    what the first process holds of all of them

The first process makes the folder, vouches for every file and gives the folder its name, as ever.
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
from trueloop.training.checkpoint.manifest import Beside, Checkpoint, read_manifest
from trueloop.training.checkpoint.state_tree import InShards
from trueloop.training.checkpoint.tensor_file import DTYPE_NAMES
from trueloop.training.distributed.dtensors import is_dtensor, memory_of
from trueloop.training.distributed.parallel import Parallel
from trueloop.training.distributed.processes import Processes

if TYPE_CHECKING:  # imported where a model is sharded only: they take as long as half of torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

_Place: TypeAlias = tuple[object, ...]


class Save(Protocol):
    """Saves a state; see `saver.Saver.save`."""

    def __call__(self, *, beside: Beside | None) -> None:
        """Write what is not in shards, and let ``beside`` write those."""
        ...


def take_apart(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, DTensor]]:
    """Put names in the places of a state's sharded tensors.

    Args:
        state: of nested dicts, lists and tuples; it is not changed.

    Returns:
        The state with `InShards` in their places, and the tensors by name: tied ones once. The names are the same on
        every process.

    Raises:
        CheckpointError: one has a type that safetensors does not know.
    """
    sharded: dict[str, DTensor] = {}
    names: dict[object, str] = {}

    def name(tensor: DTensor, path: _Place) -> InShards:
        where, memory = ".".join(map(str, path)), memory_of(tensor)
        if tensor.dtype not in DTYPE_NAMES:
            raise CheckpointError(f"{where} is sharded and of {tensor.dtype}, which safetensors does not know.")
        if memory not in names:
            while where in sharded:  # {"a.b": ...} beside {"a": {"b": ...}}
                where += "#"
            names[memory] = where
            sharded[where] = cast("DTensor", tensor.detach())
        return InShards(name=names[memory], shape=tuple(tensor.shape), dtype=tensor.dtype)

    return cast("dict[str, Any]", _replaced(dict(state), is_dtensor, name)), sharded


def save_together(save: Save | None, sharded: Mapping[str, DTensor], processes: Processes) -> None:
    """Save a state that was taken apart; called on all processes, and whole on return.

    Args:
        save: on the first process, saves the rest of the state; is given what writes the shards beside it, or None
            where there are none. None on the other processes.
        sharded: the tensors, from `take_apart`.
        processes: that hold the parts.

    Raises:
        CheckpointError: one of them cannot write; on all of them.
        ProcessLost: one of them has gone.

    Cost: with shards, blocks until every process's disk has its part.
    """
    if not sharded:
        if save:
            save(beside=None)
        return
    failure: TrueloopError | None = None
    try:
        if save:
            _lead(save, sharded, processes)
        elif folder := processes.share(None):
            _write(sharded, Path(folder), processes)
    except ProcessLost:
        raise
    except (TrueloopError, OSError) as error:
        failure = error if isinstance(error, TrueloopError) else unwritable(Path("A shard"), error)
    told = processes.share(failure and (failure.what, failure.why, failure.fix))
    if told is not None:
        what, why, fix = told
        raise failure if failure and processes.first else CheckpointError(what, why=why, fix=fix)


def load_together(found: tuple[Checkpoint, Mapping[str, Any]] | None, parallel: Parallel) -> Mapping[str, Any] | None:
    """Give every process the state that the first one has found; called on all of them.

    Args:
        found: on the first process: a checkpoint, and of its state what is wanted.
        parallel: sharded, and every process reads its parts from the folder; else the first one reads them whole.

    Returns:
        The state with tensors where `InShards` stood: DTensors cut along their first dimension, or whole on the CPU.

    Raises:
        CheckpointError: the shards cannot be read; on all processes, or on the first where that one reads them whole.
        ProcessLost: one of them has gone.

    Cost: what is not in shards travels to every process, and is on each host once more.
    """
    processes = parallel.processes
    if not parallel.sharded:
        return processes.share(complete(*found) if found else None)
    folder, files, state = processes.share(_told(*found) if found else (None, [], None))
    if folder is None or state is None:
        return None
    wanted = _wanted(state)
    if not wanted:
        return state
    from trueloop.training.checkpoint.shard_files import read_parts

    mesh = cast("Any", parallel).mesh
    tensors: dict[str, Any] = {name: _empty(mesh, record) for name, record in wanted.items()}
    read_parts(tensors, Path(folder), files, processes)
    return _filled(state, tensors)


def complete(checkpoint: Checkpoint, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Put whole tensors, on the CPU, where `InShards` stands; on any one process, without the others.

    Raises:
        CheckpointError: a shard is not what was written.

    Cost: reads every shard, one at a time.
    """
    wanted = _wanted(state)
    if not wanted:
        return state
    from trueloop.training.checkpoint.shard_files import read_whole

    tensors = read_whole(checkpoint.path, wanted)
    return _filled(state, tensors)


def whole(tensors: Mapping[str, Tensor], processes: Processes) -> dict[str, Tensor]:
    """Gather sharded tensors on the first process, on the CPU; called on all of them, and the others get none.

    Tensors that are not sharded are returned as they are. Tied ones are tied.

    Cost: one gathered tensor at a time on every device, all of them on the first one's host.
    """
    gathered: dict[tuple[int, ...], Tensor] = {}
    for tensor in tensors.values():
        key = memory_of(tensor)
        if is_dtensor(tensor) and key not in gathered:
            full = tensor.full_tensor()
            gathered[key] = full.cpu() if processes.first else full.new_empty(0)
    return {name: gathered.get(memory_of(tensor), tensor) for name, tensor in tensors.items()}


def check_seen(folder: CheckpointFolder | None, parallel: Parallel) -> None:
    """See before training that all processes of a sharded run can write into one folder.

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
    from trueloop.training.checkpoint.shard_files import safetensors_form

    safetensors_form()
    if folder is None:
        blind = _blind(None, parallel.processes)
    else:
        with folder.token() as token:
            blind = _blind(token, parallel.processes)
    if blind:
        raise RunFolderError(
            f"The run folder is not seen by {blind}.",
            why='With parallel.engine = "fsdp" every process writes its part of a checkpoint itself, into one folder.',
            fix="Put it where all machines have it under the same path, such as NFS or Lustre.",
        )


def _lead(save: Save, sharded: Mapping[str, DTensor], processes: Processes) -> None:
    """Save on the first process; the others hear where to, or that nothing came of it."""
    called = False

    def beside(folder: Path) -> Mapping[str, FileStamp]:
        nonlocal called
        called = True
        processes.share(str(folder.resolve()))
        return _write(sharded, folder, processes)

    try:
        save(beside=beside)
    finally:
        if not called:
            processes.share(None)


def _write(sharded: Mapping[str, DTensor], folder: Path, processes: Processes) -> dict[str, FileStamp]:
    """Write this process's shard; return what all have written."""
    blind = [rank for rank, sees in enumerate(processes.gather(folder.is_dir())) if not sees]
    if blind:
        raise CheckpointError(
            f"The run folder is no longer seen by process {blind[0]}.",
            fix="See that all machines have it under the same path.",
        )
    from trueloop.training.checkpoint.shard_files import write_parts

    return write_parts(sharded, folder, processes)


def _blind(token: Path | None, processes: Processes) -> str:
    """Name the processes that do not see what the first one has made."""
    place = processes.share(str(token))
    told = processes.gather((Path(place).is_dir(), platform.node()))
    blind = [f"process {rank} on {host}" for rank, (sees, host) in enumerate(told) if not sees]
    return ", ".join(blind[:5]) + (f" and {len(blind) - 5} more" if len(blind) > 5 else "")


def _told(checkpoint: Checkpoint, state: Mapping[str, Any]) -> tuple[str, list[str], Mapping[str, Any]]:
    """Say where a checkpoint lies, in which files its shards are, and what is not in them."""
    from trueloop.training.checkpoint.shard_files import SHARD

    _, stamps = read_manifest(checkpoint.path)
    return str(checkpoint.path.resolve()), list(filter(SHARD.fullmatch, stamps)), state


def _empty(mesh: DeviceMesh, record: InShards) -> DTensor:
    from torch.distributed.tensor import Shard, empty

    return empty(record.shape, dtype=record.dtype, device_mesh=mesh, placements=[Shard(0)])


def _wanted(state: Mapping[str, Any]) -> dict[str, InShards]:
    """Return what of a state is in shards, by name; in the same order on every process."""
    wanted: dict[str, InShards] = {}
    _replaced(dict(state), _is_name, lambda record, _: wanted.setdefault(record.name, record))
    return wanted


def _filled(state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", _replaced(dict(state), _is_name, lambda record, _: tensors[record.name]))


def _is_name(value: object) -> TypeGuard[InShards]:
    return isinstance(value, InShards)


def _replaced(tree: Any, kind: Callable[[object], bool], by: Callable[[Any, _Place], Any], path: _Place = ()) -> Any:
    """Copy a tree with everything of one kind replaced; what hangs on an OrderedDict stays with it."""
    if kind(tree):
        return by(tree, path)
    if isinstance(tree, dict):
        mapping = copy(cast("dict[Any, Any]", tree))
        for key, value in mapping.items():
            mapping[key] = _replaced(value, kind, by, (*path, key))
        return mapping
    if isinstance(tree, list | tuple):
        parts = enumerate(cast("Sequence[Any]", tree))
        replaced = [_replaced(value, kind, by, (*path, index)) for index, value in parts]
        return replaced if isinstance(tree, list) else tuple(replaced)
    return tree
