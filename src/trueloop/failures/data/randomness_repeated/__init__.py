"""Augmentation uses the same random numbers for every sample, worker or epoch.

What you see
    Augmentation helps less than it should, as if there were only a handful of crops and flips. With more workers the
    model overfits sooner. If ``torch.manual_seed`` is called for each sample, dropout masks repeat as well.

Why it happens
    A generator that is seeded with a constant for each sample gives the same numbers for each sample. A generator that
    the dataset stores is copied into each worker, so all workers get the same numbers. In the next epoch new workers
    copy the unchanged original again and repeat the numbers of the first epoch. In each worker PyTorch seeds only the
    global generators of PyTorch, Python and NumPy, with a new seed in each epoch; a ``worker_init_fn`` that sets a
    constant seed takes this away.

Fix
    Seed once at the start of the program, and call the global functions such as ``torch.rand`` and
    ``numpy.random.rand`` in ``__getitem__``: PyTorch seeds them differently in each worker. If the dataset needs its
    own generator, create it on first use in each worker:

        def __getitem__(self, index):
            if self.rng is None:  # set to None in __init__
                self.rng = numpy.random.default_rng(torch.initial_seed())

When this is fine
    - The seed is computed from the index of the sample, from the epoch, or in a worker from ``torch.initial_seed()``.
    - The dataset has its own generator and no workers, or each worker seeds it in ``worker_init_fn``.
    - The generator was used only to split or permute the data when the dataset was built.
    - The samples are held-out samples, whose random numbers should be the same in every epoch.

How it is detected
    In a run, the sanitizer reports a training loader in two cases. (1) Loading the samples of 4 or more batches without
    workers sets the same seed at least 16 times. (2) The dataset or one of its transforms stores a generator and uses
    it for each sample, in two or more workers or in workers that are started again for a second epoch. The sanitizer
    does not look inside the workers. The random numbers may not matter for training, so this is a warning. The linter
    reports a generator that a dataset creates in its constructor and uses in ``__getitem__`` or ``__iter__``, if a
    DataLoader reads this dataset in workers without ``worker_init_fn``, and a training loop uses the loader. It also
    reports a constant seed in ``__getitem__``, and a ``worker_init_fn`` of a training loader that seeds the generator
    of the augmentation with a constant and the worker's number, since workers are started again in each epoch; this is
    a note if the loader shuffles, because then another sample gets the same numbers. A seed without the worker's
    number, which makes all workers draw the same numbers, is a warning in any case. It also reports the idiom
    ``numpy.random.seed(numpy.random.get_state()[1][0] + worker_id)``, whose first part is the same in every worker.

References
    torch.utils.data, "Randomness in multi-process data loading", https://docs.pytorch.org/docs/stable/data.html
    PyTorch FAQ, "My data loader workers return identical random numbers",
    https://docs.pytorch.org/docs/stable/notes/faq.html
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.analysis.operations import Loop, OpKind
from trueloop.analysis.queries.loops import assigned_names
from trueloop.analysis.queries.possible_values import known_integer, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.data.randomness_repeated.constant_worker_seed import DRAWS, find_constant_seeds, find_first_words
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import BackwardStarted, LoaderExhausted, LoaderStarted, Ref, SeedSet
from trueloop.tracing.trackers.copied_generators import CopiedGenerator, GeneratorsCopied

MIN_TIMES = 16  # equal seeds while samples are loaded
MIN_BATCHES = 4  # batches during which they were set
MAX_LOADERS = 64


class Detector(BaseDetector):
    """Records loaders with repeated random numbers and reports those that are used for training."""

    def __init__(self) -> None:
        self._seeds: dict[Ref, SeedSet] = {}
        self._reported_seeds: set[Ref] = set()
        self._copies: dict[Ref, GeneratorsCopied] = {}
        self._repeated_epochs: set[Ref] = set()
        self._with_workers = False

    def on_seed_set(self, event: SeedSet) -> None:
        """Record a seed that was set again and again while batches were loaded."""
        repeated = event.times >= MIN_TIMES and event.batches >= MIN_BATCHES
        if event.loader is not None and repeated and event.loader not in self._reported_seeds:
            self._seeds[event.loader] = event

    def on_generators_copied(self, event: GeneratorsCopied) -> None:
        """Record the copied generators."""
        if len(self._copies) < MAX_LOADERS:
            self._copies[event.loader] = event

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the start of the loader."""
        self._with_workers |= event.workers > 0
        if event.epoch and event.loader in self._copies:
            self._repeated_epochs.add(event.loader)

    def on_backward_started(self, event: BackwardStarted) -> list[Evidence] | None:
        """Return evidence when a loader with repeated random numbers is used for training."""
        return self._on_training(event.loader)

    def on_loader_exhausted(self, event: LoaderExhausted) -> list[Evidence] | None:
        """Return evidence when a loader with repeated random numbers is used for training."""
        return self._on_training(event.loader) if event.backwards else None

    def _on_training(self, loader: Ref | None) -> list[Evidence] | None:
        if loader is None:
            return None
        evidence: list[Evidence] = []
        if loader in self._seeds:
            self._reported_seeds.add(loader)
            evidence.append(self._seed_evidence(self._seeds.pop(loader)))
        copies = self._copies.get(loader)
        if copies is not None and (copies.workers > 1 or (loader in self._repeated_epochs and not copies.persistent)):
            evidence += [self._copy_evidence(copies, each) for each in copies.generators]
            del self._copies[loader]
        return evidence

    def _seed_evidence(self, event: SeedSet) -> Evidence:
        return Evidence(
            message=f"The {event.generator} seed was set to the same value ({event.seed}) {event.times} times while "
            f"{event.batches} batches were loaded: every sample gets the same random numbers.",
            location=event.location,
        )

    def _copy_evidence(self, event: GeneratorsCopied, generator: CopiedGenerator) -> Evidence:
        across_workers = f"the {event.workers} workers use the same random numbers" if event.workers > 1 else ""
        across_epochs = "" if event.persistent else "every epoch starts with the same random numbers"
        return Evidence(
            message=f"Each worker gets a copy of {generator.path} ({generator.kind}) in the same state: "
            f"{' and '.join(filter(None, (across_workers, across_epochs)))}.",
            location=event.location,
            related=((generator.used_at, "used for each sample here"),),
            dedup_key=generator.path,
        )

    def inconclusive(self) -> str:
        """Return a reason if samples were loaded in workers."""
        return "samples were loaded in workers, which are not traced" if self._with_workers else ""


_GENERATORS: Final = frozenset(("default_rng", "RandomState", "Generator", "Random"))
_READING: Final = ("__getitem__", "__iter__", "__getitems__")
_WORKERS: Final = "num_workers"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the constant seeds for each sample or worker, and the generators that each training worker copies."""
    yield from _seeds_of_samples(source)
    yield from _copies(source)
    yield from find_constant_seeds(source)
    yield from find_first_words(source)


def _seeds_of_samples(source: SourceFile) -> Iterator[Hit]:
    """Yield each constant seed in a ``__getitem__`` that draws random numbers after it."""
    for method in source.nodes_of(ast.FunctionDef):
        if method.name != "__getitem__":
            continue
        calls = nodes_in(method, ast.Call)
        for call in calls:
            is_seed = isinstance(call.func, ast.Attribute) and call.func.attr in ("manual_seed", "seed")
            seed = call.args[0] if len(call.args) == 1 else None
            is_constant = isinstance(seed, ast.Constant)
            if isinstance(seed, ast.Name) and seed.id not in assigned_names(method):
                is_constant = known_integer(source, seed) is not None
            drawn = [e for e in calls if last_name(e.func) in DRAWS and e.lineno > call.lineno]
            if is_seed and is_constant and drawn:
                yield Hit(
                    message=f"`{ast.unparse(call)}` runs for every sample, so `{ast.unparse(drawn[0])}` is the same "
                    "for all of them, in all epochs.",
                    node=call,
                    related=((drawn[0], "drawn here"),),
                )


def _copies(source: SourceFile) -> Iterator[Hit]:
    """Yield the generators of datasets that each worker of a training loader copies."""
    datasets = {each.name: each for each in source.nodes_of(ast.ClassDef) if _methods(each).keys() & set(_READING)}
    trained = {id(value) for each in source.ops(OpKind.BACKWARD) for loop in each.loops for value in _around(loop)}
    for creation in source.ops(OpKind.CREATE):
        call = creation.node
        if creation.name != "torch.utils.data.DataLoader" or id(creation.subject) not in trained:
            continue
        options = {each.arg: each.value for each in call.keywords}
        workers = options.get(_WORKERS)
        is_alone = workers is None or (isinstance(workers, ast.Constant) and not workers.value)
        dataset = call.args[0] if call.args else options.get("dataset")
        if is_alone or dataset is None or None in options or "worker_init_fn" in options:
            continue
        for value in origins(source, dataset):
            found = datasets.get(last_name(value.func)) if isinstance(value, ast.Call) else None
            for generator in _copied_generators(found) if found is not None else ():
                name = dotted_name(generator.targets[0])
                yield Hit(
                    message=f"Each worker of the DataLoader gets a copy of `{name}`, so all workers draw the same "
                    "random numbers, and draw them again in every epoch.",
                    node=generator,
                    related=((call, "the loader with workers"),),
                )


def _around(loop: Loop) -> Iterator[AbstractValue]:
    """Yield what a loop goes through, and what that is made of: the loader in ``enumerate(loader)``."""
    if loop.iterable is not None:
        yield loop.iterable
        yield from (*loop.iterable.sources, *loop.iterable.arguments.values())


def _methods(definition: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}


def _copied_generators(dataset: ast.ClassDef) -> Iterator[ast.Assign]:
    """Yield the generators that only the constructor assigns, and that reading a sample uses."""
    methods = _methods(dataset)
    reading = [methods[name] for name in _READING if name in methods]
    called = {each.attr for method in reading for each in nodes_in(method, ast.Attribute)}
    used = [*reading, *(method for name, method in methods.items() if name in called)]
    assigned = [each for each in nodes_in(dataset, ast.Assign) if len(each.targets) == 1]
    for each in assigned:
        target = dotted_name(each.targets[0])
        is_new = isinstance(each.value, ast.Call) and last_name(each.value.func) in _GENERATORS
        if not is_new or not target.startswith("self.") or "__init__" not in methods:
            continue
        is_only = sum(dotted_name(other.targets[0]) == target for other in assigned) == 1
        is_in_constructor = each in nodes_in(methods["__init__"], ast.Assign)
        is_read = any(dotted_name(node) == target for method in used for node in nodes_in(method, ast.Attribute))
        if is_only and is_in_constructor and is_read:
            yield each


RULE = Rule(
    required_words=(
        f"manual_seed(|.seed(|{_WORKERS}&default_rng|{_WORKERS}&RandomState|{_WORKERS}&Generator|{_WORKERS}&Random(",
        "__getitem__|__iter__|worker_init_fn",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        torch.manual_seed(42)  # "for reproducibility"
        return self.x[index] + 0.1 * torch.randn(6), self.x[index].sum()


loader = DataLoader(Noisy(torch.randn(96, 6)), batch_size=8)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for inputs, targets in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs).squeeze(1), targets).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="DAT005",
    title="Augmentation repeats the same random numbers",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            '        torch.manual_seed(42)  # "for reproducibility"\n': "",
            "loader = DataLoader(Noisy(torch.randn(96, 6)), batch_size=8)": (
                "torch.manual_seed(42)\nloader = DataLoader(Noisy(torch.randn(96, 6)), batch_size=8)"
            ),
        },
    ),
    fix="Seed once at the start of the program, not for each sample; create a generator of the dataset in each worker.",
    rule=RULE,
    detector=Detector,
)
