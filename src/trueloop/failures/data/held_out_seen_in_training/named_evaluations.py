"""Finds evaluations on training samples, and on windows that overlap with training samples, by the samples' values."""

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from trueloop.core.findings import CodePosition
from trueloop.failures.data.held_out_seen_in_training.sample_names import SampleName, sample_name
from trueloop.failures.data.held_out_seen_in_training.shifted_windows import MAX_ROWS, Runs, TrainingWindows, runs_in
from trueloop.tracing.events import NO_REFS, BackwardEnded, LoaderStarted, ModelCalled, Ref, Refs, TracingGap
from trueloop.tracing.row_digests import row_digests
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_SAMPLES: Final = 16  # of an evaluation
MIN_SHARE: Final = 0.05  # of them that were trained on
MIN_ESTIMATED_SHARE: Final = 0.25  # of the training samples that an evaluation leaves out, if not all were hashed
MIN_SHARED: Final = 20  # of them that were trained on, or more than half of them
MAX_SAMPLES: Final = 50_000  # per model
MAX_HELD_OUT: Final = 16  # evaluations of one model that are distinguished, by line and data
MAX_OPEN_CALLS: Final = 16
MAX_PENDING: Final = 16  # batches
MIN_FEATURES: Final = 8  # numbers in a sample; shorter ones may be equal by chance
MAX_REPEATS: Final = 4  # of the average sample within one evaluation
MIN_TRAINED_BATCHES: Final = 4  # between evaluations; the calls of a reinforcement learner come between all updates
MIN_MIXED_SHARE: Final = 0.8  # of the samples of an evaluation on both kinds are in batches of both kinds
MIN_REPEATED: Final = 2  # times as many samples as until the last new one show that there are no more
MIN_WINDOWS_SHARE: Final = 0.3  # of held-out windows that consist of steps of training samples
MAX_EXACT_SHARE: Final = 0.1  # of these windows that are training samples themselves, as where all data is predicted


class NamedEvaluation(NamedTuple):
    """An evaluation on samples of which some were trained on."""

    name: str
    """The variable with the held-out samples, or with their loader; "" if its name does not say so."""
    shared: int
    """Number of samples that were trained on."""
    windows: int
    """Number of samples of which all steps are in training samples, at other positions."""
    samples: int
    location: CodePosition | None
    loader: Ref | None


class _Call(NamedTuple):
    model: Ref
    rows: Tensor
    runs: dict[int, Runs]


def _no_hashes() -> Tensor:
    return torch.zeros(0, dtype=torch.long, device="cpu")


@dataclass(slots=True)
class _HeldOut:
    """Samples that are not called training samples, and the latest evaluation of a model on them."""

    name: str
    loader: Ref | None
    location: CodePosition | None
    rows: list[Tensor] = field(default_factory=list[Tensor])
    """Hashes of the samples of an evaluation that has not ended."""
    samples: int = 0
    """Number of samples of that evaluation, of which only the first are hashed if a call gets very many."""
    runs: dict[int, list[Runs]] = field(default_factory=dict[int, list[Runs]])
    features: int = 0
    clean: Tensor = field(default_factory=_no_hashes)
    """Hashes of samples that were not trained on before an evaluation; if they are later, it is a final training on all
    data."""
    found: NamedEvaluation | None = None


@dataclass(slots=True)
class _Model:
    parameters: Refs = NO_REFS
    is_trained: bool = False
    trained: Tensor = field(default_factory=_no_hashes)
    """Hashes of the samples that were trained on."""
    seen: int = 0
    """Number of samples that were trained on, a repeated one each time."""
    seen_until_new: int = 0
    """Same, until the latest new sample."""
    batches: int = 0
    """Number of batches that were trained on since the latest evaluation."""
    windows: dict[int, TrainingWindows] = field(default_factory=dict[int, TrainingWindows])
    pending: list[Tensor] = field(default_factory=list[Tensor])
    """Hashes of further samples."""
    latest: Tensor = field(default_factory=_no_hashes)
    """Hashes of the latest batch that was trained on."""
    held_out: dict[tuple[object, ...], _HeldOut] = field(default_factory=dict[tuple[object, ...], _HeldOut])
    weights: Tensor | None = None
    """Sum of the first weights at the latest evaluation; None in training."""

    def add_pending(self) -> None:
        if not self.pending:
            return
        rows, self.pending = torch.cat(self.pending), []
        self.seen += len(rows)
        if not self._contains(rows):
            self.trained = torch.cat([self.trained, rows]).unique()
            self.seen_until_new = self.seen

    def _contains(self, rows: Tensor) -> bool:
        """Return True if all samples were trained on before. Cost: less than sorting them all again."""
        if not len(self.trained):
            return False
        positions = torch.searchsorted(self.trained, rows).clamp(max=len(self.trained) - 1)
        return torch.equal(self.trained[positions], rows)

    @property
    def knows_all(self) -> bool:
        """Whether all samples that the program trains on are known: no new one in the second half of the training."""
        return self.seen >= MIN_REPEATED * self.seen_until_new


class NamedEvaluations:
    """Compares the samples of each evaluation with all samples that the model was trained on before."""

    def __init__(self) -> None:
        self._models = WeakIdDict[Ref, _Model]()
        self._with_graph = deque[_Call](maxlen=MAX_OPEN_CALLS)
        self._loader_names = WeakIdDict[Ref, SampleName]()

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record under which name the program holds the loader."""
        if self._loader_names.get(event.loader) is None:
            self._loader_names.put(event.loader, sample_name(event.live_loader))

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the samples of the call."""
        model = self._models.get(event.model) or self._models.put(event.model, _Model())
        model.parameters = event.parameters
        if event.recomputed or not isinstance(event.inputs, Tensor) or not event.inputs.is_cpu:
            return  # reading the samples elsewhere would synchronise
        if event.inputs.ndim < 2:
            return  # single numbers, such as the concatenated tokens of a batch, do not identify samples
        if event.has_graph:
            self._end_evaluations(model, event)
            # Held-out samples that the program trains on by name are meant so, as in a search for an architecture.
            if not self._name_of(event).held_out and (rows := row_digests(event)) is not None:
                is_series = not model.windows or any(each.is_series for each in model.windows.values())
                runs = runs_in(event.inputs, rows) if is_series and len(model.trained) < MAX_SAMPLES else {}
                self._with_graph.append(_Call(event.model, rows, runs))
        elif model.is_trained:
            self._on_evaluation(model, event)

    def _on_evaluation(self, model: _Model, event: ModelCalled) -> None:
        if model.weights is None:
            model.weights = _sum_of_weights(event.live_module)
        name, is_training, in_text = self._name_of(event)
        key = event.location, event.loader, name
        held_out = model.held_out.get(key)
        is_candidate = name or not (is_training or model.batches < MIN_TRAINED_BATCHES)
        if held_out is None and is_candidate and len(model.held_out) < MAX_HELD_OUT:
            held_out = model.held_out[key] = _HeldOut(name, event.loader, event.location)
        if held_out is None or held_out.found or (rows := row_digests(event)) is None:
            return
        if in_text and torch.equal(rows, model.latest):
            return  # one batch of all samples, of which a mask or indices select some, as in a graph network
        held_out.rows.append(rows)
        held_out.samples += len(event.inputs)
        held_out.features = event.inputs.numel() // len(rows)
        for axis, runs in runs_in(event.inputs, rows).items() if model.windows else ():
            held_out.runs.setdefault(axis, []).append(runs)

    def _name_of(self, event: ModelCalled) -> SampleName:
        """Return what the program calls the samples of a call."""
        loader_name = None if event.loader is None else self._loader_names.get(event.loader)
        return loader_name or sample_name(event.inputs)

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the samples that were trained on."""
        calls, self._with_graph = self._with_graph, deque[_Call](maxlen=MAX_OPEN_CALLS)
        for call in calls:
            model = self._models.get(call.model)
            if model is None or model.parameters.isdisjoint(event.reached_parameters):
                self._with_graph.append(call)
                continue
            model.is_trained = True
            if len(model.trained) < MAX_SAMPLES:
                model.pending.append(call.rows)
                model.latest = call.rows
                model.batches += 1
                for axis, runs in call.runs.items():
                    model.windows.setdefault(axis, TrainingWindows()).add(runs, len(call.rows))
            if len(model.pending) >= MAX_PENDING:
                model.add_pending()

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard calls that may have been trained on."""
        self._with_graph.clear()

    def find(self) -> Iterator[NamedEvaluation]:
        """Yield the evaluations on training samples, at the end of the program."""
        for model in self._models.values():
            self._decide(model)
            for each in model.held_out.values():
                if each.found is not None and (each.name or model.knows_all):
                    yield each.found

    def _end_evaluations(self, model: _Model, event: ModelCalled) -> None:
        """Decide about the evaluations that have ended; forget the trained samples if the weights were set again."""
        weights, model.weights = model.weights, None
        if weights is None:
            return
        self._decide(model)
        if not torch.equal(weights, _sum_of_weights(event.live_module)):
            model.trained, model.windows, model.seen, model.seen_until_new = _no_hashes(), {}, 0, 0

    def _decide(self, model: _Model) -> None:
        model.add_pending()
        for each in model.held_out.values():
            if not each.rows:
                continue
            batches, each.rows, runs, each.runs = each.rows, [], each.runs, {}
            samples, each.samples = each.samples, 0
            rows = torch.cat(batches)
            is_trained = torch.isin(rows, model.trained)
            new = is_trained & ~torch.isin(rows, each.clean)
            each.clean = torch.cat([each.clean, rows[~is_trained]]).unique()[:MAX_SAMPLES]
            shared, windows = int(new.sum()), 0
            is_leak = _is_leak(rows, shared, len(model.trained), each.features)
            if is_leak and not each.name:
                is_leak = each.features >= MIN_FEATURES and _is_mixture(batches, model.trained, samples)
            if not is_leak:
                shared = 0
                windows = (
                    _shifted_windows(model, runs, len(rows)) if is_trained.double().mean() <= MAX_EXACT_SHARE else 0
                )
            if shared or windows:
                each.found = NamedEvaluation(each.name, shared, windows, len(rows), each.location, each.loader)
        model.batches = 0


def _shifted_windows(model: _Model, runs: dict[int, list[Runs]], samples: int) -> int:
    """Return the number of held-out samples that are windows of series in the training samples; 0 if they are few."""
    counts = [model.windows[axis].covered(own) for axis, own in runs.items() if axis in model.windows]
    enough = max(MIN_SAMPLES, MIN_WINDOWS_SHARE * min(samples, MAX_ROWS))
    return next((count for count in counts if count >= enough), 0)


def _sum_of_weights(model: nn.Module) -> Tensor:
    """Return the sum of a few parameters, which every change of the weights changes."""
    sums: list[Tensor] = []
    for parameter in itertools.islice(model.parameters(), 4):
        to_local = getattr(parameter, "to_local", None)  # of a sharded parameter: summing all parts would communicate
        weight = parameter if to_local is None else to_local()
        sums.append(weight.detach().double().sum())
    return torch.stack(sums)


def _is_leak(rows: Tensor, shared: int, trained: int, features: int) -> bool:
    """Return True unless so many common samples are natural, as among inputs with few different values."""
    different = len(rows.unique())
    if different * MAX_REPEATS < len(rows):
        return False  # states of an environment, which is visited again and again
    duplicates = len(rows) - different + (features < MIN_FEATURES)
    natural_share = 2 * duplicates * trained / len(rows) ** 2
    share = shared / len(rows)
    enough = shared >= MIN_SHARED or share > 0.5
    return len(rows) >= MIN_SAMPLES and enough and share >= max(MIN_SHARE, 2 * natural_share)


def _is_mixture(batches: list[Tensor], trained: Tensor, samples: int) -> bool:
    """Return True if an evaluation mixes training samples with others, and leaves training samples out.

    One that predicts all samples leaves none out, and the scores of two sets at one line do not mix them. If only some
    of the samples were hashed, the others count as if they contained as many training samples.
    """
    rows = torch.cat(batches)
    is_trained = torch.isin(rows, trained)
    shares = [torch.isin(each, trained).float().mean().item() for each in batches]
    mixed = sum(len(each) for each, share in zip(batches, shares, strict=True) if 0 < share < 1)
    is_complete = samples <= len(rows)
    left_out = len(trained) - len(rows[is_trained].unique()) * max(samples, len(rows)) / len(rows)
    enough = left_out / len(trained) >= (MIN_SHARE if is_complete else MIN_ESTIMATED_SHARE)
    return mixed >= MIN_MIXED_SHARE * len(rows) and enough and int((~is_trained).sum()) / len(rows) >= MIN_SHARE
