"""Write a data pipeline as a PyTorch program: numbered examples, a sampler, workers, collate and batches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import Bounds

EPOCHS = 2  # enough to see whether the order changes
POOL = 4  # number of batches whose examples are sorted by length together
SHARES = {"even": (1, 1, 1), "skewed": (6, 3, 1), "rare": (17, 2, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Settings of the pipeline, as the page sends them."""

    examples: Annotated[int, Bounds(1, 200), "examples in the dataset"] = 40
    batch: Annotated[int, Bounds(1, 64), "examples per batch"] = 8
    sampler: Annotated[
        Literal["none", "sequential", "random", "weighted", "distributed"],
        "which example comes next; none: DataLoader makes a sampler from shuffle",
    ] = "none"
    made_by: Annotated[Literal["torch", "trueloop"], "library of the sampler"] = "torch"
    shuffle: Annotated[bool, "draw in random order"] = True
    drop_last: Annotated[bool, "leave out the partial batch at the end"] = False
    ranks: Annotated[int, Bounds(1, 8), "processes that share the data, if the sampler is distributed"] = 3
    set_epoch: Annotated[bool, "call the sampler's set_epoch before each epoch, if it has it"] = True
    balance: Annotated[Literal["even", "skewed", "rare"], "how the examples spread over three classes"] = "skewed"
    by_class: Annotated[bool, "the dataset is sorted by class"] = False
    workers: Annotated[int, Bounds(0, 3), "processes that read ahead"] = 0
    sequences: Annotated[bool, "examples are sequences of different lengths, padded to the longest of their batch"] = (
        False
    )
    longest: Annotated[int, Bounds(2, 32), "tokens in the longest sequence"] = 12
    buckets: Annotated[bool, "batch sequences of similar lengths"] = False
    seed: Annotated[int, Bounds(0, 2**31 - 1), "seed of all random numbers"] = 0

    def __post_init__(self) -> None:
        if self.sampler == "none" and self.made_by == "trueloop":
            raise InvalidConfig(
                'sampler is "none" and made_by is "trueloop".',
                why="Without a sampler, DataLoader creates its own.",
                fix="Choose a sampler.",
            )
        if self.buckets and not self.sequences:
            raise InvalidConfig("buckets is true and sequences is false.", fix="Only sequences have lengths.")

    @property
    def class_counts(self) -> tuple[int, ...]:
        """Number of examples of each class; the remainder goes to the first class."""
        shares = SHARES[self.balance]
        other_counts = [self.examples * share // sum(shares) for share in shares[1:]]
        return self.examples - sum(other_counts), *other_counts

    @property
    def follows_epochs(self) -> bool:
        """True if the sampler has `set_epoch` and repeats its order without it."""
        return self.sampler == "distributed" or self.made_by == "trueloop"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProgram:
    """The program in two parts, so that the caller can instrument the loaders before batches are drawn."""

    build: str
    """Part that defines `examples`, and `loader`, or for several ranks `ranks`: pairs of sampler and loader."""
    draw: str
    """Part that defines `epochs`: one list of batches per epoch, or for several ranks one such list per rank."""

    @property
    def text(self) -> str:
        """Source code of the complete program."""
        return f"{self.build}\n{self.draw}"


def pipeline(settings: Pipeline) -> PipelineProgram:
    """Generate the program."""
    if settings.buckets and settings.sampler == "none":  # LengthBuckets wraps an explicit sampler
        settings = replace(settings, sampler="random" if settings.shuffle else "sequential", shuffle=False)
    parts = [_imports(settings), _dataset(settings)]
    parts += [_buckets(settings)] if settings.buckets else []
    parts.append(f"examples = Examples()\n{_loader(settings)}")
    return PipelineProgram(build="\n\n".join(parts), draw=_draw(settings))


def _imports(settings: Pipeline) -> str:
    torch_names = {"DataLoader", "Dataset", "get_worker_info"}
    trueloop_names: set[str] = set()
    if settings.buckets:
        torch_names.add("Sampler")
    if settings.made_by == "trueloop":
        trueloop_names.add("OrderSampler")
    elif settings.sampler != "none":
        torch_names.add(SAMPLERS[settings.sampler])
    if settings.sampler == "weighted":
        trueloop_names.add("class_weights")
    if settings.sequences:
        trueloop_names.add("pad_sequences")
    lines = ["import torch", f"from torch.utils.data import {', '.join(sorted(torch_names))}"]
    if trueloop_names:
        lines += ["", f"from trueloop.data import {', '.join(sorted(trueloop_names))}"]
    return "\n".join(lines) + "\n"


def _dataset(settings: Pipeline) -> str:
    counts = " + ".join(f"[{label}] * {count}" for label, count in enumerate(settings.class_counts) if count)
    dataset_order = "sorted by class" if settings.by_class else "in no order"
    lines = [
        "class Examples(Dataset):",
        f'    """{settings.examples} numbered examples of up to three classes, {dataset_order}."""',
        "",
        "    def __init__(self):",
    ]
    if settings.sequences or not settings.by_class:
        lines.append(f"        generator = torch.Generator().manual_seed({settings.seed})")
    lines.append(f"        self.labels = torch.tensor({counts})")
    if not settings.by_class:
        lines.append("        self.labels = self.labels[torch.randperm(len(self.labels), generator=generator)]")
    if settings.sequences:
        lines += [
            "        short_mostly = torch.rand(len(self.labels), generator=generator) ** 2",
            f"        self.lengths = 1 + ({settings.longest} * short_mostly).long()",
        ]
    lines += [
        "",
        "    def __len__(self):",
        "        return len(self.labels)",
        "",
        "    def __getitem__(self, index):",
        "        worker = get_worker_info()  # None in the main process",
        "        return {",
        '            "index": index,',
        '            "label": self.labels[index],',
        '            "worker": worker.id if worker else -1,',
    ]
    if settings.sequences:
        lines.append('            "tokens": 10 + (7 * index + torch.arange(self.lengths[index])) % 90,')
    return "\n".join([*lines, "        }", ""])


def _buckets(settings: Pipeline) -> str:
    full = "len(batch) == self.batch_size" if settings.drop_last else "batch"
    count = "len(self.sampler) // self.batch_size" if settings.drop_last else "-(-len(self.sampler) // self.batch_size)"
    return f'''\
class LengthBuckets(Sampler):
    """Batches of similar lengths: the examples of every {POOL} batches are sorted by length and batched again."""

    def __init__(self, sampler, lengths, batch_size):
        self.sampler, self.lengths, self.batch_size = sampler, lengths, batch_size
        self.generator = torch.Generator().manual_seed({settings.seed})

    def __iter__(self):
        order, size = list(self.sampler), self.batch_size
        for start in range(0, len(order), {POOL} * size):
            pool = sorted(order[start : start + {POOL} * size], key=lambda index: self.lengths[index])
            batches = [pool[i : i + size] for i in range(0, len(pool), size)]
            for i in torch.randperm(len(batches), generator=self.generator).tolist():
                batch = batches[i]
                if {full}:
                    yield batch

    def __len__(self):
        return {count}
'''


SAMPLERS = {
    "sequential": "SequentialSampler",
    "random": "RandomSampler",
    "weighted": "WeightedRandomSampler",
    "distributed": "DistributedSampler",
}


def _loader(settings: Pipeline) -> str:
    """Generate sampler and loader, once or for every rank."""
    sampler = _sampler(settings)
    lines = ["weights = class_weights(examples.labels)"] if settings.sampler == "weighted" else []
    if settings.sampler != "distributed":
        lines += [f"sampler = {sampler}"] if sampler else []
        lines += list(_call("loader = DataLoader(", _arguments(settings), ")", ""))
        return "\n".join(lines) + "\n"
    lines += ["ranks = []", f"for rank in range({settings.ranks}):  # really one process each; here one after another"]
    lines.append(f"    sampler = {sampler}")
    lines += _call("loader = DataLoader(", _arguments(settings), ")", "    ")
    return "\n".join([*lines, "    ranks.append((sampler, loader))"]) + "\n"


def _call(opening: str, arguments: list[str], closing: str, indent: str) -> Iterator[str]:
    """Generate a call on one line if it fits, else one argument per line."""
    line = f"{indent}{opening}{', '.join(arguments)}{closing}"
    if len(line) <= 110:
        yield line
        return
    yield f"{indent}{opening}"
    yield from (f"{indent}    {argument}," for argument in arguments)
    yield f"{indent}{closing}"


def _sampler(settings: Pipeline) -> str:
    """Generate the expression that makes the sampler; empty if DataLoader makes it."""
    dropped = ", drop_last=True" if settings.drop_last else ""
    generator = f"generator=torch.Generator().manual_seed({settings.seed})"
    if settings.made_by == "trueloop":
        order = {"sequential": '"sequential"', "random": '"random"', "weighted": "weights"}.get(settings.sampler)
        order = order or ('"random"' if settings.shuffle else '"sequential"')
        ranks = f", processes={settings.ranks}, rank=rank{dropped}" if settings.sampler == "distributed" else ""
        return f"OrderSampler(examples, order={order}, seed={settings.seed}{ranks})"
    return {
        "none": "",
        "sequential": "SequentialSampler(examples)",
        "random": f"RandomSampler(examples, {generator})",
        "weighted": f"WeightedRandomSampler(weights, num_samples=len(examples), {generator})",
        "distributed": f"DistributedSampler(examples, num_replicas={settings.ranks}, rank=rank, "
        f"shuffle={settings.shuffle}, seed={settings.seed}{dropped})",
    }[settings.sampler]


def _arguments(settings: Pipeline) -> list[str]:
    """Generate the arguments of DataLoader; PyTorch refuses a shuffle=True that contradicts the sampler."""
    arguments = ["examples"]
    if settings.buckets:
        arguments.append(f"batch_sampler=LengthBuckets(sampler, examples.lengths, {settings.batch})")
    else:
        arguments.append(f"batch_size={settings.batch}")
        arguments += [] if settings.sampler == "none" else ["sampler=sampler"]
    if settings.shuffle and settings.sampler != "distributed":
        arguments.append("shuffle=True")
    if settings.shuffle and settings.sampler == "none":
        arguments.append(f"generator=torch.Generator().manual_seed({settings.seed})")
    arguments += ["drop_last=True"] if settings.drop_last and not settings.buckets else []
    arguments += ["collate_fn=pad_sequences"] if settings.sequences else []
    return arguments + ([f"num_workers={settings.workers}"] if settings.workers else [])


def _draw(settings: Pipeline) -> str:
    lines = ["epochs = []", f"for epoch in range({EPOCHS}):"]
    calls_set_epoch = settings.set_epoch and settings.follows_epochs
    if settings.sampler == "distributed":
        lines += ["    for sampler, _ in ranks:", "        sampler.set_epoch(epoch)"] if calls_set_epoch else []
        lines += ["    epochs.append([list(loader) for _, loader in ranks])", ""]
        lines += ["for rank, batches in enumerate(epochs[0]):", '    print("rank", rank)', "    for batch in batches:"]
        lines.append('        print(batch["index"].tolist(), batch["label"].tolist())')
    else:
        lines += ["    sampler.set_epoch(epoch)"] if calls_set_epoch else []
        lines += ["    epochs.append(list(loader))", "", "for batch in epochs[0]:"]
        lines.append('    print(batch["index"].tolist(), batch["label"].tolist())')
    return "\n".join(lines) + "\n"
