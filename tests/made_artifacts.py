"""Exports tiny models, once in a session: a table of three columns and two classes, and bytes of text."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import Tensor, nn

from trueloop.export.exported_model import Model
from trueloop.export.io_description import Answer, Reading
from trueloop.export.write import ExportSpec, export

COLUMNS = ("age", "height", "weight")


class Bytes(nn.Module):
    """Bytes [B, T] to scores [B, T, 256] of the next one; T is at most 6."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.positions = nn.Embedding(256, 4), nn.Embedding(6, 4)
        self.scores = nn.Linear(4, 256)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.scores(self.bytes(tokens_BT) + self.positions.weight[: tokens_BT.shape[1]])


def table_model() -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))
    model(torch.randn(64, 3) + 1)  # running statistics of its own
    return model.eval()


def text_model() -> nn.Module:
    torch.manual_seed(3)
    return Bytes().eval()


def table_order(kind="pt2", **changes) -> ExportSpec:
    torch.manual_seed(4)
    reading = Reading(kind="table", columns=COLUMNS, description="Raw numbers.")
    order = {
        "kind": kind,
        "names": ("input",),
        "batches": [(torch.randn(4, 3),), (torch.randn(1, 3),)],
        "reading": reading,
        "answer": Answer(kind="class", labels=("no", "yes")),
    }
    return ExportSpec(**{**order, **changes})


def text_order(kind="pt2") -> ExportSpec:
    torch.manual_seed(4)
    batches = [(torch.randint(256, (size, length)),) for size, length in ((3, 5), (1, 6), (2, 2))]
    reading = Reading(kind="text", length=6, description="Bytes.")
    return ExportSpec(
        kind=kind, names=("tokens_BT",), batches=batches, reading=reading, answer=Answer(kind="next_byte")
    )


MODELS = {"table": (table_model, table_order), "text": (text_model, text_order)}


class MadeArtifacts:
    """Artifacts by what they hold and their format."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.exported = {}

    def live(self, what: str = "table") -> nn.Module:
        """The model, in eval mode."""
        return MODELS[what][0]()

    def order(self, what: str = "table", **changes) -> ExportSpec:
        """What was asked for."""
        return MODELS[what][1](**changes)

    def folder(self, what: str = "table", kind: str = "pt2") -> Path:
        """The artifact; not to be changed."""
        folder = self._root / f"{what}-{kind}"
        if not folder.exists():
            folder.mkdir()
            make, order = MODELS[what]
            about = {"run": {"name": what, "id": "0" * 32}}
            self.exported[what, kind] = export(make(), order(kind), folder, about)
        return folder

    def copy(self, to: Path, what: str = "table", kind: str = "pt2") -> Path:
        """One that may be changed."""
        return Path(shutil.copytree(self.folder(what, kind), to))

    def model(self, what: str = "table", kind: str = "pt2") -> Model:
        """Opened."""
        return Model.open(self.folder(what, kind))
