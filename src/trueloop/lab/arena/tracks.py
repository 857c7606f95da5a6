"""The tracks: data, network and target accuracy of each task, as lines of PyTorch code."""

import hashlib
from dataclasses import dataclass
from typing import Final

from trueloop.core.errors import InvalidConfig
from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.script import write_script


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A fixed task: data, network and target."""

    name: str
    title: str
    description: str
    """Data, network and difficulty of the task in one or two sentences."""
    target: float
    """Accuracy that both held-out splits must reach in the same evaluation."""
    examples: int
    """Number of examples after which a run ends."""
    imports: tuple[str, ...]
    data: str
    """Code that defines ``train``, ``held_out`` and ``second``, each (inputs [N, features], targets [N])."""
    model: str
    """Code that defines ``model``, whose direct children are `nn.Linear` layers and activations."""
    gain: str
    """Name of the activation in `nn.init`: "relu"."""
    baseline: Entry
    """The entry to beat, judged like every other entry."""

    @property
    def fingerprint(self) -> str:
        """Digest of the scripts of the track; results with different fingerprints are not compared."""
        texts = (write_script(self, entry, 0) for entry in (self.baseline, _ENTRY_WITH_EVERY_SETTING))
        return hashlib.sha256("\0".join([*texts, Entry().as_json()]).encode()).hexdigest()[:16]


_ENTRY_WITH_EVERY_SETTING: Final = Entry(
    optimizer="nesterov", momentum=0.9, weight_decay=0.1, accumulation=2, schedule="cosine", warmup=2, clip=1.0,
    label_smoothing=0.1, initialisation="orthogonal", input_noise=0.1,
)  # fmt: skip
"""An entry with every setting, so that the fingerprint covers every part of the script."""

DIGITS: Final = Track(
    name="digits",
    title="Digits to 96 %",
    description="Handwritten digits and a small multilayer perceptron. The task is easy, but hard in few updates: "
    "large steps overshoot, small steps are slow.",
    target=0.96,
    examples=200_000,
    imports=("from sklearn.datasets import load_digits",),
    data="""\
# Handwritten digits, 8x8 grey pixels: the same 1,197 / 300 / 300 images for everybody.
pixels, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
inputs, targets = torch.tensor(pixels / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]
train = inputs[:1197], targets[:1197]
held_out = inputs[1197:1497], targets[1197:1497]
second = inputs[1497:], targets[1497:]
""",
    model="""\
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
""",
    gain="relu",
    baseline=Entry(optimizer="sgd", lr=0.1, momentum=0.9, batch=32),
)

SPIRAL: Final = Track(
    name="spiral",
    title="Spiral to 95 %",
    description="Three spiral arms in the plane, new for every seed. The winding boundary needs many "
    "updates: momentum and the learning rate matter most.",
    target=0.95,
    examples=400_000,
    imports=("import math",),
    data="""\
# Three arms of a spiral, drawn from the seed: 900 points to train on, 450 held out, 450 more held out.
drawn = torch.Generator().manual_seed(SEED)


def spiral(count):
    arm = torch.randint(3, (count,), generator=drawn)
    radius = torch.rand(count, generator=drawn).sqrt()
    angle = 6.5 * radius + arm * (2 * math.pi / 3) + 0.18 * torch.randn(count, generator=drawn)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arm


train, held_out, second = spiral(900), spiral(450), spiral(450)
""",
    model="""\
model = nn.Sequential(
    nn.Linear(2, 32), nn.Tanh(),
    nn.Linear(32, 32), nn.Tanh(),
    nn.Linear(32, 3),
)
""",
    gain="tanh",
    baseline=Entry(optimizer="adam", lr=0.01, batch=32),
)

DEEP: Final = Track(
    name="deep",
    title="Ten narrow layers to 95 %",
    description="Two rings in the plane, and a network ten layers deep and eight wide without normalisation. "
    "With PyTorch's default initialisation the signal vanishes: initialisation, warm-up and clipping matter most.",
    target=0.95,
    examples=400_000,
    imports=("import math",),
    data="""\
# One ring around another, drawn from the seed: 900 points to train on, 450 held out, 450 more held out.
drawn = torch.Generator().manual_seed(SEED)


def rings(count):
    outer = torch.randint(2, (count,), generator=drawn)
    radius = 0.5 + 0.6 * outer + 0.12 * torch.randn(count, generator=drawn)
    angle = 2 * math.pi * torch.rand(count, generator=drawn)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), outer


train, held_out, second = rings(900), rings(450), rings(450)
""",
    model="""\
model = nn.Sequential(nn.Linear(2, 8), nn.Tanh())
for _ in range(8):
    model.extend([nn.Linear(8, 8), nn.Tanh()])
model.append(nn.Linear(8, 2))
""",
    gain="tanh",
    baseline=Entry(optimizer="adam", lr=0.003, batch=32),
)

TRACKS: Final = {track.name: track for track in (DIGITS, SPIRAL, DEEP)}


def find_track(name: str) -> Track:
    """Return a track.

    Raises:
        InvalidConfig: there is no track of this name.
    """
    if name not in TRACKS:
        raise InvalidConfig(f"There is no track {name!r}.", fix=f"There are: {', '.join(TRACKS)}.")
    return TRACKS[name]
