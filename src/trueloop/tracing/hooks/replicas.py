"""Models that DistributedDataParallel keeps equal: are they called through it, are they equal, is the work shared?

A round is a call of the wrapper that gets its reduction ready: every process of the group takes part in it, and right
after the next step all must hold the same. After rounds 1, 2, 4, ... 1024, 2048, 3072, ... each process sends what its
parameters come to, and what it did in that round, see `DigestStore` and `RoundWork`. Two letters belong to one moment where
they are of one round, and the group has begun the same number of collectives by then, which is a clock that all its
processes share.

In a forked child nothing is watched, but it sends, so that a parent that is watched can compare itself with it.
"""

from __future__ import annotations

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
from trueloop.tracing.accumulation_window import parameters_of
from trueloop.tracing.events import Event, ModelReplicated, RanksCompared, Ref, Refs, ReplicaStepped
from trueloop.tracing.hooks.steps import depth_of_step
from trueloop.tracing.object_facts import WeakIdDict
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.replicas.digest_exchange import DigestStore, Numbers, RankDigest, StoreConnection
from trueloop.tracing.replicas.round_work import ROWS as WORKS
from trueloop.tracing.replicas.round_work import RoundWork, compare_rounds, record_round, unknown_rows
from trueloop.tracing.replicas.tensor_digest import ULPS, epsilon_of, find_differences, is_comparable, tensor_digest
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

RARELY: Final = 1024  # rounds between two comparisons, once the first ones are made
ALIKE: Final = frozenset(("default_hooks", "mixed_precision_hooks", "powerSGD_hook", "quantization_hooks"))
"""Modules of torch's communication hooks that give every process the same gradient."""


@dataclass(slots=True, kw_only=True)
class _Replica:
    """What is known of one wrapper."""

    ref: Ref
    refs: Refs
    ids: frozenset[int]
    names: Sequence[str]
    parameters: Sequence[weakref.ref[Tensor]]
    name: str
    """The same in every process, and of no other model."""
    rounds: int = 0
    clock: int | None = None
    """Collectives begun before the latest round."""
    forwards: int = 0
    backward_at: int | None = None
    """Collectives begun before the first backward since the latest step."""
    alike: bool = True
    """It was not stepped between two rounds, as local SGD does."""
    equal_at: int | None = None
    stepped: dict[int, int] = field(default_factory=dict[int, int])
    """Optimizer, by id -> the round of its latest step."""
    work: RoundWork | None = None
    """What this process does in a round that will be compared."""
    batches: int = 0
    """Drawn from loaders before that."""
    loader: Ref | None = None
    """That gave the latest of them; None = they came from elsewhere."""

    def alive(self) -> list[Tensor]:
        """Return those of its parameters that are still there."""
        return [parameter for each in self.parameters if (parameter := each()) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a letter was about."""

    replica: _Replica
    update: int
    place: CodePosition | None
    ranks: tuple[int, int]
    names: Sequence[str]
    epsilons: Sequence[float]
    rounds: int
    loader: Ref | None


class Replicas:
    """Tells `ModelReplicated` and `RanksCompared` always, `ReplicaStepped` while watching in full.

    Cost: 1 us per call of a wrapper, backward and step where there is a wrapper, otherwise none; a comparison as
    `tensor_digest` and `RoundWork`.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (ModelReplicated, RanksCompared, ReplicaStepped)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._replicas = WeakIdDict[nn.Module, _Replica]()
        self._holds = WeakIdDict[Optimizer, tuple[int, frozenset[int]]]()
        self._made = 0
        self._patches = Patches()
        self._process = os.getpid()
        self._exchange, self._stores, self._sender = DigestStore(), StoreConnection(), os.getpid()
        self._meet = stream.isolated("wrappers of models", self._met)
        self._look_in = stream.isolated("what wrappers are given", self._given)
        self._arrive = stream.isolated("gradients of wrapped models", RoundWork.on_gradient)
        self._look = stream.isolated("calls of wrappers", self._called)
        self._note = stream.isolated("backwards of wrapped models", self._backward_begins)
        self._tell = stream.isolated("steps of wrapped models", self._stepped)
        stream.on_detach.append(stream.isolated("answers of other ranks", self._end))

    def install_always(self, patches: Patches) -> None:
        """Replace what a wrapper is built and called by; hook every step."""
        if not dist.is_available():
            return
        self._process = os.getpid()
        self._replicas.clear()
        self._begin()
        self._patches, self._program.before_replicated_backward = patches, None
        cast("Any", Replicas._after_step)._torchdynamo_disable = True  # noqa: SLF001
        patches.replace(DistributedDataParallel, "__init__", self._constructor)
        patches.replace(DistributedDataParallel, "_pre_forward", self._inputs)
        patches.replace(DistributedDataParallel, "_post_forward", self._forward)

    def install_full_tracing(self, patches: Patches) -> None:
        """Nothing more is needed."""

    def _begin(self) -> None:
        self._exchange, self._stores, self._sender = DigestStore(), StoreConnection(), os.getpid()

    def _listening(self) -> bool:
        """True while somebody listens, and in a child that was forked then."""
        return self._stream.active or os.getpid() != self._process

    def _constructor(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(wrapper: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(wrapper, *args, **options)
            if self._listening():
                self._meet(wrapper)

        return __init__

    def _inputs(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _pre_forward(wrapper: Any, *args: Any, **options: Any) -> Any:
            given = original(wrapper, *args, **options)
            if torch.is_grad_enabled() and wrapper.require_backward_grad_sync and self._listening():
                self._look_in(wrapper, given)
            return given

        return _pre_forward

    def _forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _post_forward(wrapper: Any, output: Any) -> Any:
            if torch.is_grad_enabled() and self._listening():
                self._look(wrapper)
            return original(wrapper, output)

        return _post_forward

    def _after_step(self, optimizer: Optimizer, args: Any, options: Any) -> None:
        if not self._program.backward_depth and self._listening():
            self._tell(optimizer)

    # What it sees --------------------------------------------------------------------------------------------------

    def _met(self, wrapper: Any) -> _Replica:
        known = self._replicas.get(wrapper)
        if known is not None:
            return known
        if self._program.before_replicated_backward is None:  # the first one: programs without do not pay for it
            self._program.before_replicated_backward = self._note
            self._patches.add_handle(register_optimizer_step_post_hook(self._after_step))
        registry = self._stream.registry
        left_out = set(wrapper.parameters_to_ignore)
        held = {
            name: parameter
            for name, parameter in wrapper.module.named_parameters()
            if name not in left_out and parameter.requires_grad
        }
        registry.ref(wrapper.module)  # which numbers it before others of its class that are called later
        registry.name_parameters(wrapper.module)
        kept = {name: parameter for name, parameter in held.items() if is_comparable(parameter)}
        shapes = repr([(name, tuple(parameter.shape)) for name, parameter in kept.items()])
        group = wrapper.process_group
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        identity = hashlib.sha256(shapes.encode()).hexdigest()[:16]
        self._made += 1
        known = self._replicas.put(wrapper, _Replica(
            ref=registry.ref(wrapper), refs=registry.refs(held.values()), ids=frozenset(map(id, held.values())),
            names=[name.replace("_orig_mod.", "") for name in kept],
            parameters=[weakref.ref(parameter) for parameter in kept.values()],
            name=f"{attempt}/{group.group_name}/{self._made}/{identity}",
        ))  # fmt: skip
        self._stream.emit(ModelReplicated(
            location=user_location(), wrapper=known.ref, module=registry.ref(wrapper.module), parameters=known.refs,
            group_size=group.size(),
        ))  # fmt: skip
        return known

    def _given(self, wrapper: Any, given: Any) -> None:
        known = self._met(wrapper)
        if known.work is not None:
            known.work.close()
            known.work = None
        if _due(known.rounds + 1) and wrapper.process_group.size() > 1:
            drawn = self._program.batch
            known.loader = self._program.loader if drawn > known.batches else None
            known.batches = drawn
            known.work = record_round(known.rounds + 1, given, known.alive(), self._arrive)

    def _called(self, wrapper: Any) -> None:
        known = self._met(wrapper)
        known.forwards += 1
        if wrapper.require_backward_grad_sync:
            known.rounds += 1
            known.clock = _clock(wrapper)

    def _backward_begins(self) -> None:
        for wrapper, known in self._replicas.items():
            if known.backward_at is None:
                known.backward_at = _clock(wrapper)

    def _stepped(self, optimizer: Optimizer) -> None:
        holds = self._ids(optimizer)
        for wrapper, known in self._replicas.items():
            if known.ids.isdisjoint(holds) or depth_of_step() > 1:
                continue
            if self._stream.full_tracing and self._stream.active:
                self._tell_step(wrapper, known, optimizer)
            before = known.stepped.get(id(optimizer), 0)
            known.stepped[id(optimizer)] = known.rounds
            if before != known.rounds:  # before the first round the wrapper may just have been built
                if known.alike and _due(known.rounds) and _reduced(wrapper, known):
                    self._send(wrapper, known)
            elif (
                known.alike
                and (known.rounds or known.forwards)
                and any(p.grad is not None for p in parameters_of(optimizer) if id(p) in known.ids)
            ):
                known.alike = False
            known.forwards, known.backward_at = 0, None
            if known.work is not None:
                known.work.close()
        self._answer()

    def _ids(self, optimizer: Optimizer) -> frozenset[int]:
        groups = len(optimizer.param_groups)
        held = self._holds.get(optimizer)
        if held is None or held[0] != groups:
            held = self._holds.put(optimizer, (groups, frozenset(map(id, parameters_of(optimizer)))))
        return held[1]

    def _tell_step(self, wrapper: Any, known: _Replica, optimizer: Optimizer) -> None:
        now, since = _clock(wrapper), known.backward_at
        graded = [p for p in parameters_of(optimizer) if id(p) in known.ids and p.grad is not None]
        self._stream.emit(ReplicaStepped(
            location=user_location(), wrapper=known.ref, parameters=self._stream.registry.uncached_refs(graded),
            forwards=known.forwards, collectives=None if now is None or since is None else now - since,
        ))  # fmt: skip

    # Comparisons ---------------------------------------------------------------------------------------------------

    def _send(self, wrapper: Any, known: _Replica) -> None:
        group = wrapper.process_group
        size, rank = group.size(), group.rank()
        parameters = known.alive()
        if size < 2 or len(parameters) != len(known.names) or not parameters or not _same_gradients(wrapper):
            return
        if len({parameter.device for parameter in parameters}) > 1 or not dist.is_initialized():
            return
        if self._sender != os.getpid():
            self._begin()
        done = known.work.digest_rows() if known.work is not None and known.work.number == known.rounds else None
        drawn = tensor_digest(parameters, unknown_rows(parameters[0].device) if done is None else done)
        if drawn is None or known.clock is None:
            return
        turn = _turn(known.rounds)
        other = (1 + turn % (size - 1) if rank == 0 else 0) if self._stream.active else None
        about = other is not None and _Asked(
            replica=known, update=self._stream.update, place=user_location(), names=known.names, rounds=known.rounds,
            loader=known.loader,
            ranks=(_global(group, rank), _global(group, other)), epsilons=list(map(epsilon_of, parameters)),
        )  # fmt: skip
        self._exchange.send(RankDigest(
            store=self._stores.opener(), name=known.name, round_key=(known.rounds, known.clock), slot=turn, rank=rank,
            other_rank=other, digest=drawn, context=about,
        ))  # fmt: skip

    def _answer(self) -> None:
        if self._exchange.errors:
            raise self._exchange.errors.popleft()
        while self._exchange.responses:
            letter, numbers = self._exchange.responses.popleft()
            self._compare(letter.context, letter.digest.numbers.tolist(), numbers)

    def _compare(self, asked: _Asked, own: Numbers, others: Numbers) -> None:
        known = asked.replica
        differ = find_differences(own[:-WORKS], others[:-WORKS], asked.epsilons, asked.rounds)
        doing = compare_rounds(own[-WORKS:], others[-WORKS:], ULPS * max(asked.epsilons))
        self._stream.emit(RanksCompared(
            location=asked.place, wrapper=known.ref, compared_update=asked.update, ranks=asked.ranks, parameters=len(asked.names),
            differing=tuple((asked.names[index], share) for index, share in differ), last_equal_update=known.equal_at,
            input_digest=doing and doing.inputs, same_inputs_and_gradients=bool(doing and doing.same_inputs_and_gradients), loader=asked.loader,
        ))  # fmt: skip
        if not differ:
            known.equal_at = asked.update

    def _end(self) -> None:
        if self._stream.active:
            self._exchange.close()
            self._answer()


def _clock(wrapper: Any) -> int | None:
    """Return how many collectives the wrapper's group has begun, None where its backend does not count them."""
    try:
        return int(wrapper.process_group._get_sequence_number_for_group())  # noqa: SLF001
    except (RuntimeError, AttributeError):
        return None


def _reduced(wrapper: Any, known: _Replica) -> bool:
    now = _clock(wrapper)
    return now is not None and known.clock is not None and now > known.clock


def _same_gradients(wrapper: Any) -> bool:
    """True where all processes get the same gradient: no hook of the program's, nor one that averages within a part."""
    hooks = [getattr(hook, "__module__", "").rpartition(".")[2] for hook, *_ in getattr(wrapper, "_comm_hooks", ())]
    return ALIKE.issuperset(hooks) and not getattr(wrapper, "_delay_all_reduce_params", ())


def _due(rounds: int) -> bool:
    return rounds % RARELY == 0 or (rounds < RARELY and rounds & (rounds - 1) == 0)


def _turn(rounds: int) -> int:
    """Number the comparisons."""
    return min(rounds, RARELY).bit_length() + rounds // RARELY


def _global(group: Any, rank: int) -> int:
    return int(dist.get_global_rank(group, rank))
