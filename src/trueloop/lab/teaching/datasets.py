"""Script lines that create each dataset: ``points`` [samples, 2] and ``labels`` [samples]."""

from collections.abc import Sequence
from typing import Final, NamedTuple


class AddedPoint(NamedTuple):
    """A training point that the user has added, in the coordinates of the centred and scaled data."""

    x: float
    y: float
    label: int


PHRASES: Final = {
    "spiral": "the arms of a spiral",
    "circles": "a disc and the ring around it",
    "xor": "the four quarters of a square",
    "blobs": "three clouds",
    "moons": "two half moons",
    "digits": "pictures of digits, projected to the plane",
}
IMPORTS: Final = {
    "spiral": ["import math"],
    "circles": ["import math"],
    "moons": ["import math"],
    "digits": ["from sklearn.datasets import load_digits", "from sklearn.decomposition import PCA"],
}
NOISE: Final = "points = points + {noise!r} * torch.randn({samples}, 2)\n"
SCRIPTS: Final = {
    "spiral": """
# Two arms of a spiral, a class each
labels = torch.arange({samples}) * 2 // {samples}
along = torch.rand({samples}).sqrt()
angle = 2.5 * math.pi * along + math.pi * labels
points = torch.stack([along * angle.cos(), along * angle.sin()], 1)
""",
    "circles": """
# A disc, and a ring around it
labels = torch.arange({samples}) * 2 // {samples}
radius = 0.5 * torch.rand({samples}).sqrt() + 0.7 * labels
angle = 2 * math.pi * torch.rand({samples})
points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
""",
    "xor": """
# A square: opposite quarters are one class
labels = torch.arange({samples}) * 2 // {samples}
points = torch.rand({samples}, 2) * torch.randint(2, ({samples}, 1)).mul(2).sub(1)
points[labels == 1, 1] *= -1
""",
    "blobs": """
# Three clouds, a class each
labels = torch.arange({samples}) * 3 // {samples}
centres = torch.tensor([[-1.0, -0.6], [1.0, -0.6], [0.0, 1.0]])
points = centres[labels] + 0.3 * torch.randn({samples}, 2)
""",
    "moons": """
# Two half moons that reach into each other
labels = torch.arange({samples}) * 2 // {samples}
angle = math.pi * torch.rand({samples})
points = torch.stack([angle.cos() + labels, angle.sin()], 1)
points[labels == 1, 1] = 0.4 - points[labels == 1, 1]
""",
    "digits": """
# Pictures of digits, 8 by 8, projected to their first two principal components; sorted by digit
digits = load_digits()
labels, order = torch.tensor(digits.target[:{samples}]).sort(stable=True)
flat = PCA(2, svd_solver="full").fit_transform(digits.data[:{samples}] / 16)
points = torch.tensor(flat, dtype=torch.get_default_dtype())[order]
""",
}
SPLIT: Final = """
# Every fifth point is held out. All points are scaled with mean and std of the training points.
held_out = torch.arange({samples}) % 5 == 0
mean, std = points[~held_out].mean(0), points[~held_out].std(0)
points = (points - mean) / std
"""
ADDED: Final = """
# Points added by hand: x, y, class
added = torch.tensor([
{rows}
])
points, labels = torch.cat([points, added[:, :2]]), torch.cat([labels, added[:, 2].long()])
held_out = torch.cat([held_out, torch.zeros(len(added), dtype=torch.bool)])
"""


def source_code(dataset: str, samples: int, noise: float, added: Sequence[AddedPoint] = ()) -> str:
    """Return the lines that define ``points``, ``labels`` and the mask ``held_out``."""
    text = SCRIPTS[dataset].strip() + "\n"
    if noise:
        text += NOISE
    text = text.format(samples=samples, noise=noise) + SPLIT.format(samples=samples)
    if added:
        rows = "\n".join(f"    [{point.x!r}, {point.y!r}, {point.label}]," for point in added)
        text += ADDED.format(rows=rows)
    return text
