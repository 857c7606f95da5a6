"""A data pipeline as a program: numbered examples, a sampler, workers, collate, batches; on torch's own classes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import Bounds

EPOCHS = 2  # enough to see whether the order changes
POOL = 4  # batches whose examples are sorted by length together
SHARES = {"even": (1, 1, 1), "skewed": (6, 3, 1), "rare": (17, 2, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What a page may ask for."""

    examples: Annotated[int, Bounds(1, 200), "examples in the dataset"] = 40
    batch: Annotated[int, Bounds(1, 64), "examples per batch"] = 8
    sampler: Annotated[
        Literal["none", "sequential", "random", "weighted", "distributed"],
        "which example comes next; none: DataLoader makes one, as shuffle says",
    ] = "none"
    made_by: Annotated[Literal["torch", "trueloop"], "whose sampler"] = "torch"
    shuffle: Annotated[bool, "draw in random order"] = True
    drop_last: Annotated[bool, "leave out the partial batch at the end"] = False
    ranks: Annotated[int, Bounds(1, 8), "processes that share the data, where it is distributed"] = 3
    set_epoch: Annotated[bool, "tell the sampler which epoch it is, where it wants to know"] = True
    balance: Annotated[Literal["even", "skewed", "rare"], "how the examples spread over three classes"] = "skewed"
    by_class: Annotated[bool, "the dataset lies sorted by class"] = False
    workers: Annotated[int, Bounds(0, 3), "processes that read ahead"] = 0
    sequences: Annotated[bool, "examples are sequences of different lengths, padded to the longest of their batch"] = (
        False
    )
    longest: Annotated[int, Bounds(2, 32), "tokens in the longest sequence"] = 12
    buckets: Annotated[bool, "batch sequences of alike lengths"] = False
    seed: Annotated[int, Bounds(0, 2**31 - 1), "of everything random here"] = 0

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
        """Examples of each class; what the shares leave over goes to the first."""
        shares = SHARES[self.balance]
        rest = [self.examples * share // sum(shares) for share in shares[1:]]
        return self.examples - sum(rest), *rest

    @property
    def follows_epochs(self) -> bool:
        """True where the sampler has `set_epoch`, and its order is one and the same without."""
        return self.sampler == "distributed" or self.made_by == "trueloop"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProgram:
    """The program in two parts, that a page can look at what the first has built before the second draws from it."""

    build: str
    """Leaves `examples`, and `loader`, or for several ranks `ranks`: pairs of sampler and loader."""
    draw: str
    """Leaves `epochs`: for each a list of batches, or for several ranks a list of those."""

    @property
    def text(self) -> str:
        """The whole."""
        return f"{self.build}\n{self.draw}"


def pipeline(asked: Pipeline) -> PipelineProgram:
    """Write the program."""
    if asked.buckets and asked.sampler == "none":  # a batch sampler of one's own needs a sampler that has a name
        asked = replace(asked, sampler="random" if asked.shuffle else "sequential", shuffle=False)
    parts = [_imports(asked), _dataset(asked)]
    parts += [_buckets(asked)] if asked.buckets else []
    parts.append(f"examples = Examples()\n{_loader(asked)}")
    return PipelineProgram(build="\n\n".join(parts), draw=_draw(asked))


def _imports(asked: Pipeline) -> str:
    torch_names = {"DataLoader", "Dataset", "get_worker_info"}
    own: set[str] = set()
    if asked.buckets:
        torch_names.add("Sampler")
    if asked.made_by == "trueloop":
        own.add("OrderSampler")
    elif asked.sampler != "none":
        torch_names.add(SAMPLERS[asked.sampler])
    if asked.sampler == "weighted":
        own.add("class_weights")
    if asked.sequences:
        own.add("pad_sequences")
    lines = ["import torch", f"from torch.utils.data import {', '.join(sorted(torch_names))}"]
    if own:
        lines += ["", f"from trueloop.data import {', '.join(sorted(own))}"]
    return "\n".join(lines) + "\n"


def _dataset(asked: Pipeline) -> str:
    counts = " + ".join(f"[{label}] * {count}" for label, count in enumerate(asked.class_counts) if count)
    laid_out = "sorted by class" if asked.by_class else "in no order"
    lines = [
        "class Examples(Dataset):",
        f'    """{asked.examples} numbered examples of up to three classes, {laid_out}."""',
        "",
        "    def __init__(self):",
    ]
    if asked.sequences or not asked.by_class:
        lines.append(f"        generator = torch.Generator().manual_seed({asked.seed})")
    lines.append(f"        self.labels = torch.tensor({counts})")
    if not asked.by_class:
        lines.append("        self.labels = self.labels[torch.randperm(len(self.labels), generator=generator)]")
    if asked.sequences:
        lines += [
            "        short_mostly = torch.rand(len(self.labels), generator=generator) ** 2",
            f"        self.lengths = 1 + ({asked.longest} * short_mostly).long()",
        ]
    lines += [
        "",
        "    def __len__(self):",
        "        return len(self.labels)",
        "",
        "    def __getitem__(self, number):",
        "        worker = get_worker_info()  # None where this very process reads",
        "        return {",
        '            "number": number,',
        '            "label": self.labels[number],',
        '            "worker": worker.id if worker else -1,',
    ]
    if asked.sequences:
        lines.append('            "tokens": 10 + (7 * number + torch.arange(self.lengths[number])) % 90,')
    return "\n".join([*lines, "        }", ""])


def _buckets(asked: Pipeline) -> str:
    full = "len(batch) == self.batch_size" if asked.drop_last else "batch"
    count = "len(self.sampler) // self.batch_size" if asked.drop_last else "-(-len(self.sampler) // self.batch_size)"
    return f'''\
class LengthBuckets(Sampler):
    """Batches of alike lengths: every {POOL} batches of the order are sorted by length and cut again."""

    def __init__(self, sampler, lengths, batch_size):
        self.sampler, self.lengths, self.batch_size = sampler, lengths, batch_size
        self.generator = torch.Generator().manual_seed({asked.seed})

    def __iter__(self):
        order, size = list(self.sampler), self.batch_size
        for start in range(0, len(order), {POOL} * size):
            pool = sorted(order[start : start + {POOL} * size], key=lambda number: self.lengths[number])
            batches = [pool[place : place + size] for place in range(0, len(pool), size)]
            for place in torch.randperm(len(batches), generator=self.generator).tolist():
                batch = batches[place]
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


def _loader(asked: Pipeline) -> str:
    """Write sampler and loader, once or for every rank."""
    sampler = _sampler(asked)
    lines = ["weights = class_weights(examples.labels)"] if asked.sampler == "weighted" else []
    if asked.sampler != "distributed":
        lines += [f"sampler = {sampler}"] if sampler else []
        lines += list(_call("loader = DataLoader(", _arguments(asked), ")", ""))
        return "\n".join(lines) + "\n"
    lines += ["ranks = []", f"for rank in range({asked.ranks}):  # a process of its own each; here they take turns"]
    lines.append(f"    sampler = {sampler}")
    lines += _call("loader = DataLoader(", _arguments(asked), ")", "    ")
    return "\n".join([*lines, "    ranks.append((sampler, loader))"]) + "\n"


def _call(opening: str, arguments: list[str], closing: str, indent: str) -> Iterator[str]:
    """Write a call on one line where it fits, else an argument to a line."""
    line = f"{indent}{opening}{', '.join(arguments)}{closing}"
    if len(line) <= 110:
        yield line
        return
    yield f"{indent}{opening}"
    yield from (f"{indent}    {argument}," for argument in arguments)
    yield f"{indent}{closing}"


def _sampler(asked: Pipeline) -> str:
    """Write the expression that makes the sampler; empty where DataLoader makes it."""
    dropped = ", drop_last=True" if asked.drop_last else ""
    generator = f"generator=torch.Generator().manual_seed({asked.seed})"
    if asked.made_by == "trueloop":
        order = {"sequential": '"sequential"', "random": '"random"', "weighted": "weights"}.get(asked.sampler)
        order = order or ('"random"' if asked.shuffle else '"sequential"')
        share = f", processes={asked.ranks}, rank=rank{dropped}" if asked.sampler == "distributed" else ""
        return f"OrderSampler(examples, order={order}, seed={asked.seed}{share})"
    return {
        "none": "",
        "sequential": "SequentialSampler(examples)",
        "random": f"RandomSampler(examples, {generator})",
        "weighted": f"WeightedRandomSampler(weights, num_samples=len(examples), {generator})",
        "distributed": f"DistributedSampler(examples, num_replicas={asked.ranks}, rank=rank, shuffle={asked.shuffle}, "
        f"seed={asked.seed}{dropped})",
    }[asked.sampler]


def _arguments(asked: Pipeline) -> list[str]:
    """Write the arguments of DataLoader; a shuffle that contradicts the sampler too, so that torch can refuse it."""
    arguments = ["examples"]
    if asked.buckets:
        arguments.append(f"batch_sampler=LengthBuckets(sampler, examples.lengths, {asked.batch})")
    else:
        arguments.append(f"batch_size={asked.batch}")
        arguments += [] if asked.sampler == "none" else ["sampler=sampler"]
    if asked.shuffle and asked.sampler != "distributed":
        arguments.append("shuffle=True")
    if asked.shuffle and asked.sampler == "none":
        arguments.append(f"generator=torch.Generator().manual_seed({asked.seed})")
    arguments += ["drop_last=True"] if asked.drop_last and not asked.buckets else []
    arguments += ["collate_fn=pad_sequences"] if asked.sequences else []
    return arguments + ([f"num_workers={asked.workers}"] if asked.workers else [])


def _draw(asked: Pipeline) -> str:
    lines = ["epochs = []", f"for epoch in range({EPOCHS}):"]
    tells = asked.set_epoch and asked.follows_epochs
    if asked.sampler == "distributed":
        lines += ["    for sampler, _ in ranks:", "        sampler.set_epoch(epoch)"] if tells else []
        lines += ["    epochs.append([list(loader) for _, loader in ranks])", ""]
        lines += ["for rank, batches in enumerate(epochs[0]):", '    print("rank", rank)', "    for batch in batches:"]
        lines.append('        print(batch["number"].tolist(), batch["label"].tolist())')
    else:
        lines += ["    sampler.set_epoch(epoch)"] if tells else []
        lines += ["    epochs.append(list(loader))", "", "for batch in epochs[0]:"]
        lines.append('    print(batch["number"].tolist(), batch["label"].tolist())')
    return "\n".join(lines) + "\n"
