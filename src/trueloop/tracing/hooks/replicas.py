"""Traces DistributedDataParallel models: their calls, whether replicas are equal, and whether ranks share the work.

A round starts with a call of the wrapper that prepares a reduction. Every process of the group takes part in it, and
after the next step all of them must have equal parameters. After rounds 1, 2, 4, ... 1024, 2048, 3072, ... each process
sends a digest of its parameters and of its work in that round, see `DigestStore` and `RoundWork`. Two digests are
compared if they belong to the same round and the group has started the same number of collectives, which serves as a
common clock of its processes.

A forked child is not traced, but sends digests, so that a traced parent can compare itself with the child.
"""

import hashlib
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from trueloop.core.findings import CodePosition
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, ModelReplicated, RanksCompared, Ref, Refs, ReplicaStepped
from trueloop.tracing.gradients import parameters_of
from trueloop.tracing.hooks.optimizers import depth_of_step
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.replicas.digest_exchange import DigestStore, Numbers, RankDigest, StoreConnection
from trueloop.tracing.replicas.round_work import ROWS as WORK_ROWS
from trueloop.tracing.replicas.round_work import RoundWork, compare_rounds, record_round, unknown_rows
from trueloop.tracing.replicas.tensor_digest import ULPS, epsilon_of, find_differences, is_comparable, tensor_digest
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location
from trueloop.tracing.weak_id_dict import WeakIdDict

COMPARISON_INTERVAL: Final = 1024  # rounds between two comparisons, after the first comparisons
SAME_GRADIENT_HOOKS: Final = frozenset(
    ("default_hooks", "mixed_precision_hooks", "powerSGD_hook", "quantization_hooks")
)
"""PyTorch modules of communication hooks after which every process has the same gradient."""


@dataclass(slots=True, kw_only=True)
class _Replica:
    """State of one wrapper."""

    ref: Ref
    refs: Refs
    ids: frozenset[int]
    """Ids of the parameters in ``refs``: those that the wrapper synchronises."""
    names: Sequence[str]
    parameters: Sequence[weakref.ref[Tensor]]
    """The parameters that are compared, in the order of ``names``."""
    name: str
    """Unique name of the model, the same in every process."""
    rounds: int = 0
    clock: int | None = None
    """Number of collectives started before the latest round."""
    forwards: int = 0
    backward_at: int | None = None
    """Number of collectives started before the first backward pass since the latest step; None = no backward pass."""
    synchronised: bool = True
    """Whether there was a round before each step, which is not so in local SGD."""
    equal_at: int | None = None
    """The latest update after which another rank had equal parameters."""
    stepped: dict[int, int] = field(default_factory=dict[int, int])
    """Id of an optimizer -> the round of its latest step."""
    work: RoundWork | None = None
    """Work of this process in a round that will be compared."""
    batches: int = 0
    """Number of batches before the round in ``work``."""
    loader: Ref | None = None
    """Loader of the latest batch; None = no batch since the previous comparison."""

    def alive(self) -> list[Tensor]:
        """Return the parameters that are still in memory."""
        return [parameter for each in self.parameters if (parameter := each()) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """The state of this process when a digest was sent."""

    replica: _Replica
    update: int
    location: CodePosition | None
    ranks: tuple[int, int]
    names: Sequence[str]
    epsilons: Sequence[float]
    rounds: int
    loader: Ref | None


class Replicas(Hook):
    """Emits `ModelReplicated` and `RanksCompared` always, `ReplicaStepped` during full tracing.

    Cost: without a wrapper none; else 1 us per call of it, per backward pass and per step. A comparison costs as
    much as `tensor_digest` and `RoundWork`.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (ModelReplicated, RanksCompared, ReplicaStepped)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._replicas = WeakIdDict[nn.Module, _Replica]()
        self._parameter_ids = WeakIdDict[Optimizer, tuple[int, frozenset[int]]]()
        self._wrappers = 0
        self._patches = Patches()
        self._process = os.getpid()
        self._digests, self._connection, self._sender_process = DigestStore(), StoreConnection(), os.getpid()
        self._register = stream.isolated("DistributedDataParallel wrappers", self._on_wrapper)
        self._record_inputs = stream.isolated("inputs of wrappers", self._on_inputs)
        self._on_gradient = stream.isolated("gradients of wrapped models", RoundWork.on_gradient)
        self._count_call = stream.isolated("calls of wrappers", self._on_call)
        self._on_backward = stream.isolated("backward passes of wrapped models", self._on_backward_start)
        self._after_optimizer = stream.isolated("steps of wrapped models", self._on_step)
        stream.on_detach.append(stream.isolated("digests of other ranks", self._on_detach))

    def install_always(self, patches: Patches) -> None:
        """Replace the methods that create and call a wrapper; hook every step."""
        if not dist.is_available():
            return
        self._process = os.getpid()
        self._replicas.clear()
        self._reset_exchange()
        self._patches = patches
        cast("Any", Replicas._after_step)._torchdynamo_disable = True  # noqa: SLF001
        patches.replace(DistributedDataParallel, "__init__", self._constructor)
        patches.replace(DistributedDataParallel, "_pre_forward", self._inputs)
        patches.replace(DistributedDataParallel, "_post_forward", self._forward)

    def _reset_exchange(self) -> None:
        self._digests, self._connection, self._sender_process = DigestStore(), StoreConnection(), os.getpid()

    def _is_enabled(self) -> bool:
        """Return True while tracing is active, and in a child process that was forked then."""
        return self._stream.active or os.getpid() != self._process

    def _constructor(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(wrapper: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(wrapper, *args, **options)
            if self._is_enabled():
                self._register(wrapper)

        return __init__

    def _inputs(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _pre_forward(wrapper: Any, *args: Any, **options: Any) -> Any:
            inputs = original(wrapper, *args, **options)
            if torch.is_grad_enabled() and wrapper.require_backward_grad_sync and self._is_enabled():
                self._record_inputs(wrapper, inputs)
            return inputs

        return _pre_forward

    def _forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _post_forward(wrapper: Any, output: Any) -> Any:
            if torch.is_grad_enabled() and self._is_enabled():
                self._count_call(wrapper)
            return original(wrapper, output)

        return _post_forward

    def _after_step(self, optimizer: Optimizer, args: Any, options: Any) -> None:
        if not self._program.backward_depth and self._is_enabled():
            self._after_optimizer(optimizer)

    # Events --------------------------------------------------------------------------------------------------

    def _on_wrapper(self, wrapper: Any) -> _Replica:
        replica = self._replicas.get(wrapper)
        if replica is not None:
            return replica
        if self._on_backward not in self._program.before_backward:  # so programs without a wrapper have no overhead
            self._program.before_backward.append(self._on_backward)
            self._patches.add_handle(register_optimizer_step_post_hook(self._after_step))
        registry = self._stream.registry
        ignored = set(wrapper.parameters_to_ignore)
        synchronised = {
            name: parameter
            for name, parameter in wrapper.module.named_parameters()
            if name not in ignored and parameter.requires_grad
        }
        registry.ref(wrapper.module)  # so that it gets a lower number than modules of its class that are called later
        registry.name_parameters(wrapper.module)
        compared = {name: parameter for name, parameter in synchronised.items() if is_comparable(parameter)}
        shapes = repr([(name, tuple(parameter.shape)) for name, parameter in compared.items()])
        group = wrapper.process_group
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        identity = hashlib.sha256(shapes.encode()).hexdigest()[:16]
        self._wrappers += 1
        replica = self._replicas.put(wrapper, _Replica(
            ref=registry.ref(wrapper), refs=registry.refs(synchronised.values()),
            ids=frozenset(map(id, synchronised.values())),
            names=[name.replace("_orig_mod.", "") for name in compared],
            parameters=[weakref.ref(parameter) for parameter in compared.values()],
            name=f"{attempt}/{group.group_name}/{self._wrappers}/{identity}",
        ))  # fmt: skip
        self._stream.emit(ModelReplicated(
            location=user_location(), wrapper=replica.ref, module=registry.ref(wrapper.module), parameters=replica.refs,
            group_size=group.size(),
        ))  # fmt: skip
        return replica

    def _on_inputs(self, wrapper: Any, inputs: Any) -> None:
        replica = self._on_wrapper(wrapper)
        if replica.work is not None:
            replica.work.close()
            replica.work = None
        if _is_compared(replica.rounds + 1) and wrapper.process_group.size() > 1:
            batches = self._program.batch
            replica.loader = self._program.loader if batches > replica.batches else None
            replica.batches = batches
            replica.work = record_round(replica.rounds + 1, inputs, replica.alive(), self._on_gradient)

    def _on_call(self, wrapper: Any) -> None:
        replica = self._on_wrapper(wrapper)
        replica.forwards += 1
        if wrapper.require_backward_grad_sync:
            replica.rounds += 1
            replica.clock = _collective_count(wrapper)

    def _on_backward_start(self) -> None:
        for wrapper, replica in self._replicas.items():
            if replica.backward_at is None:
                replica.backward_at = _collective_count(wrapper)

    def _on_step(self, optimizer: Optimizer) -> None:
        own_ids = self._ids(optimizer)
        for wrapper, replica in self._replicas.items():
            if replica.ids.isdisjoint(own_ids) or depth_of_step() > 1:
                continue
            if self._stream.full_tracing and self._stream.active:
                self._report_step(wrapper, replica, optimizer)
            before = replica.stepped.get(id(optimizer), 0)
            replica.stepped[id(optimizer)] = replica.rounds
            if before != replica.rounds:  # a round since the previous step; round 0 = the wrapper is new
                if replica.synchronised and _is_compared(replica.rounds) and _has_reduced(wrapper, replica):
                    self._send(wrapper, replica)
            elif (
                replica.synchronised
                and (replica.rounds or replica.forwards)
                and any(p.grad is not None for p in parameters_of(optimizer) if id(p) in replica.ids)
            ):
                replica.synchronised = False
            replica.forwards, replica.backward_at = 0, None
            if replica.work is not None:
                replica.work.close()
        self._process_responses()

    def _ids(self, optimizer: Optimizer) -> frozenset[int]:
        groups = len(optimizer.param_groups)
        known = self._parameter_ids.get(optimizer)
        if known is None or known[0] != groups:
            known = self._parameter_ids.put(optimizer, (groups, frozenset(map(id, parameters_of(optimizer)))))
        return known[1]

    def _report_step(self, wrapper: Any, replica: _Replica, optimizer: Optimizer) -> None:
        now, since = _collective_count(wrapper), replica.backward_at
        with_grad = [p for p in parameters_of(optimizer) if id(p) in replica.ids and p.grad is not None]
        self._stream.emit(ReplicaStepped(
            location=user_location(), wrapper=replica.ref, parameters=self._stream.registry.refs(with_grad),
            forwards=replica.forwards, collectives=None if now is None or since is None else now - since,
        ))  # fmt: skip

    # Comparisons ---------------------------------------------------------------------------------------------------

    def _send(self, wrapper: Any, replica: _Replica) -> None:
        group = wrapper.process_group
        size, rank = group.size(), group.rank()
        parameters = replica.alive()
        if size < 2 or len(parameters) != len(replica.names) or not parameters or not _same_gradients(wrapper):
            return
        if len({parameter.device for parameter in parameters}) > 1 or not dist.is_initialized():
            return
        if self._sender_process != os.getpid():
            self._reset_exchange()
        work = replica.work
        rows = work.digest_rows() if work is not None and work.number == replica.rounds else None
        digest = tensor_digest(parameters, unknown_rows(parameters[0].device) if rows is None else rows)
        if digest is None or replica.clock is None:
            return
        number = _comparison_number(replica.rounds)
        other = (1 + number % (size - 1) if rank == 0 else 0) if self._stream.active else None
        context = (
            None
            if other is None
            else _Context(
                replica=replica,
                update=self._stream.update,
                location=user_location(),
                names=replica.names,
                rounds=replica.rounds,
                loader=replica.loader,
                ranks=(_global_rank(group, rank), _global_rank(group, other)),
                epsilons=list(map(epsilon_of, parameters)),
            )
        )
        self._digests.send(
            RankDigest(
                store=self._connection.opener(),
                name=replica.name,
                round_key=(replica.rounds, replica.clock),
                slot=number,
                rank=rank,
                other_rank=other,
                digest=digest,
                context=context,
            )
        )

    def _process_responses(self) -> None:
        if self._digests.errors:
            raise self._digests.errors.popleft()
        while self._digests.responses:
            request, numbers = self._digests.responses.popleft()
            self._compare(request.context, request.digest.numbers.tolist(), numbers)

    def _compare(self, context: _Context, own: Numbers, others: Numbers) -> None:
        replica = context.replica
        differing = find_differences(own[:-WORK_ROWS], others[:-WORK_ROWS], context.epsilons, context.rounds)
        comparison = compare_rounds(own[-WORK_ROWS:], others[-WORK_ROWS:], ULPS * max(context.epsilons))
        self._stream.emit(
            RanksCompared(
                location=context.location,
                wrapper=replica.ref,
                compared_update=context.update,
                ranks=context.ranks,
                parameters=len(context.names),
                differing=tuple((context.names[index], difference) for index, difference in differing),
                last_equal_update=replica.equal_at,
                input_digest=comparison and comparison.inputs,
                same_inputs_and_gradients=bool(comparison and comparison.same_inputs_and_gradients),
                loader=context.loader,
            )
        )
        if not differing:
            replica.equal_at = context.update

    def _on_detach(self) -> None:
        if self._stream.active:
            self._digests.close()
            self._process_responses()


def _collective_count(wrapper: Any) -> int | None:
    """Return the number of collectives that the wrapper's group has started; None if its backend does not count."""
    try:
        return int(wrapper.process_group._get_sequence_number_for_group())  # noqa: SLF001
    except (RuntimeError, AttributeError):
        return None


def _has_reduced(wrapper: Any, replica: _Replica) -> bool:
    now = _collective_count(wrapper)
    return now is not None and replica.clock is not None and now > replica.clock


def _same_gradients(wrapper: Any) -> bool:
    """Return True if all processes get the same gradient: no hook is custom, or averages within a subgroup only."""
    hooks = [getattr(hook, "__module__", "").rpartition(".")[2] for hook, *_ in getattr(wrapper, "_comm_hooks", ())]
    return SAME_GRADIENT_HOOKS.issuperset(hooks) and not getattr(wrapper, "_delay_all_reduce_params", ())


def _is_compared(rounds: int) -> bool:
    return rounds % COMPARISON_INTERVAL == 0 or (rounds < COMPARISON_INTERVAL and rounds & (rounds - 1) == 0)


def _comparison_number(rounds: int) -> int:
    """Return the number of the comparison that follows a round, from 1."""
    return min(rounds, COMPARISON_INTERVAL).bit_length() + rounds // COMPARISON_INTERVAL


def _global_rank(group: Any, rank: int) -> int:
    return int(dist.get_global_rank(group, rank))
