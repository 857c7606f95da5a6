"""Repeats a few model calls of the first updates with other values, to see on which inputs their outputs depend."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final, NamedTuple, TypeVar

from torch import nn

from trueloop.core.findings import CodePosition
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, ExchangedDimensions, InformationFlowProbed, MeasuredLoss, ModelCalled, Ref
from trueloop.tracing.information_flow.batch_mixing import NOT_JUDGED as BATCH_NOT_JUDGED
from trueloop.tracing.information_flow.batch_mixing import Batch, BatchVerdict, judge_batch
from trueloop.tracing.information_flow.causality import Causality, judge_causality
from trueloop.tracing.information_flow.exchanged_dimensions import exchanged_before_loss, exchanged_in_model
from trueloop.tracing.information_flow.padding_reach import NOT_JUDGED as PADDING_NOT_JUDGED
from trueloop.tracing.information_flow.padding_reach import PaddingVerdict, judge_padding
from trueloop.tracing.information_flow.reruns import Reruns
from trueloop.tracing.losses import LossNode
from trueloop.tracing.nonfinite.replay import RecordedCall, is_observable
from trueloop.tracing.nonfinite.replica_state import CannotReplayError
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream, describe_error
from trueloop.tracing.weak_id_dict import WeakIdDict

T = TypeVar("T")
PROBED_UPDATES: Final = frozenset((3, 4, 10, 11, 30, 31))
"""Updates whose calls are repeated until all is judged; two in a row, as two optimizers may alternate."""
MAX_SHAPES: Final = 64  # shapes of the inputs of one model that are stored
MAX_ATTEMPTS: Final = 3  # calls of one model that are repeated, at most


class _Model:
    """What is known about a model."""

    def __init__(self, ref: Ref) -> None:
        self.ref = ref
        self.called_at: CodePosition | None = None
        self.shapes: set[tuple[int, ...]] = set()
        """Shapes of its inputs."""
        self.causal = self.batch = self.padded = self.reshapes = False
        """Whether this was judged."""
        self.attempts, self.latest_attempt = 0, -2
        """Number of calls that were repeated, and the update of the latest."""
        self.obstacle = ""
        """Why the latest call could not be repeated."""

    @property
    def is_judged(self) -> bool:
        """Whether all is judged."""
        return self.causal and self.batch and self.padded and self.reshapes

    def attempt(self, judge: Callable[[], T]) -> T | None:
        """Return what a function returns; None if it raised, as a repeated call may."""
        try:
            return judge()
        except (Exception, SystemExit, CannotReplayError) as error:  # noqa: BLE001 - a repeated call may raise anything
            self.obstacle = f"a call of {self.ref.name} could not be repeated: {describe_error(error)}"
            return None


class _Verdicts(NamedTuple):
    causality: Causality
    batch: BatchVerdict
    padding: PaddingVerdict


class InformationFlow(Hook):
    """Emits `InformationFlowProbed`.

    Cost: 1 us for each model call; once in a run, and at most three times, the time of up to ten runs of the model,
    with copies of its state and arguments. The program's generators, modes and tensors do not change.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (InformationFlowProbed,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._models = WeakIdDict[nn.Module, _Model]()
        self._record = stream.isolated_inner("inputs of models", self._on_model_called)
        self._probe = stream.isolated_inner("dependencies on inputs", self._on_losses_read)

    def install_full_tracing(self, patches: Patches) -> None:
        """Receive model calls and the losses of backward passes."""
        self._program.on_model_called.append(self._record)
        self._program.on_losses_read.append(self._probe)
        patches.add_handle(self)

    def remove(self) -> None:
        """Stop receiving them; called when full tracing stops."""
        self._program.keeps_arguments = False
        self._program.kept_arguments.clear()
        for receivers, handler in (
            (self._program.on_model_called, self._record),
            (self._program.on_losses_read, self._probe),
        ):
            if handler in receivers:
                receivers.remove(handler)

    def _on_model_called(self, event: ModelCalled) -> None:
        known = self._models.get(event.live_module)
        if known is None:
            known = self._models.put(event.live_module, _Model(event.model))
        if event.has_graph:
            known.called_at = event.location
        if event.inputs is not None and len(known.shapes) < MAX_SHAPES:
            known.shapes.add(tuple(event.inputs.shape))
        self._program.keeps_arguments = not PROBED_UPDATES.isdisjoint((self._stream.update, self._stream.update + 1))

    def _on_losses_read(self, losses: Sequence[MeasuredLoss], nodes: Sequence[LossNode]) -> None:
        program = self._program
        kept = list(program.kept_arguments)  # in memory until the calls are repeated
        program.kept_arguments.clear()
        if not kept:
            return
        calls = [each for each in list(program.calls) if each.update == self._stream.update]
        if self._stream.update not in PROBED_UPDATES or is_observable():
            return
        was_active, self._stream.active = self._stream.active, False  # the runs must not be traced
        found: list[InformationFlowProbed] = []
        try:
            for call in calls:
                event = self._judge(call, losses, nodes)
                if event is not None:
                    found.append(event)
        finally:
            self._stream.active = was_active
        for event in found:
            self._stream.emit(event)

    def _judge(
        self, call: RecordedCall, losses: Sequence[MeasuredLoss], nodes: Sequence[LossNode]
    ) -> InformationFlowProbed | None:
        module = call.module()
        model = None if module is None else self._models.get(module)
        update = self._stream.update
        if model is None or model.is_judged or model.attempts >= MAX_ATTEMPTS or update - model.latest_attempt < 2:
            return None
        model.obstacle, model.latest_attempt = "", update
        model.attempts += 1
        reruns = model.attempt(lambda: Reruns(call))
        causality, batch, padding = Causality(None, None), BATCH_NOT_JUDGED, PADDING_NOT_JUDGED
        exchanged: tuple[ExchangedDimensions, ...] = ()
        if reruns is not None:
            causality, batch, padding = self._verdicts(reruns, model, losses)
            if not model.reshapes and batch.mixed is None:
                before_loss = [each for node in nodes if (each := exchanged_before_loss(node)) is not None]
                exchanged = (*(model.attempt(lambda: _exchanged(reruns)) or ()), *before_loss)
            model.reshapes = True
        model.causal |= causality.shift is not None
        model.batch |= batch.judged
        # Padding does more harm if the length varies, which later batches may show.
        model.padded |= padding.judged and (padding.padding is None or padding.padding.length_varies)
        return InformationFlowProbed(
            location=model.called_at,
            model=model.ref,
            called_at=model.called_at,
            causal=causality.shift is not None,
            target_seen=causality.seen,
            batch=batch.judged,
            mixed=batch.mixed,
            padded=padding.judged,
            padding=padding.padding,
            exchanged=exchanged,
            input_ignored=batch.input_ignored,
            obstacle=model.obstacle,
        )

    def _verdicts(self, reruns: Reruns, model: _Model, losses: Sequence[MeasuredLoss]) -> _Verdicts:
        causality = None if model.causal else model.attempt(lambda: judge_causality(reruns, losses))
        causality = causality or Causality(None, None)
        time_is_second = causality.shift is not None and causality.shift[1:] == (1, 1)
        batch, padding = BATCH_NOT_JUDGED, PADDING_NOT_JUDGED
        trains_others = len(self._program.training_optimizers()) > 1
        if not model.batch and not trains_others:
            known = self._batch(model, losses, time_is_second=time_is_second)
            batch = model.attempt(lambda: judge_batch(reruns, known)) or BATCH_NOT_JUDGED
        if not model.padded and batch.mixed is None:
            lengths = {shape[1] for shape in model.shapes if len(shape) > 1}
            padding = model.attempt(lambda: judge_padding(reruns, lengths)) or PADDING_NOT_JUDGED
        return _Verdicts(causality, batch, padding)

    def _batch(self, model: _Model, losses: Sequence[MeasuredLoss], *, time_is_second: bool) -> Batch:
        loader = self._program.loader_pass
        return Batch(
            losses,
            time_is_second,
            tuple(model.shapes),
            None if loader is None else loader.batch_size,
            loader is not None and bool(loader.shuffles),
        )


def _exchanged(reruns: Reruns) -> list[ExchangedDimensions]:
    return list(exchanged_in_model(reruns.run({}, evaluating=False).operations))
