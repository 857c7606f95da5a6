"""Exports two tiny models once per session: one for a table of three columns, with two classes, and one for text."""

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
    """Map bytes [B, T] to scores [B, T, 256] of the next byte; T is at most 6."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.positions = nn.Embedding(256, 4), nn.Embedding(6, 4)
        self.scores = nn.Linear(4, 256)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.scores(self.bytes(tokens_BT) + self.positions.weight[: tokens_BT.shape[1]])


def table_model() -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))
    model(torch.randn(64, 3) + 1)  # so that the running statistics differ from their defaults
    return model.eval()


def text_model() -> nn.Module:
    torch.manual_seed(3)
    return Bytes().eval()


def table_spec(kind="pt2", **changes) -> ExportSpec:
    torch.manual_seed(4)
    reading = Reading(kind="table", columns=COLUMNS, description="Raw numbers.")
    fields = {
        "kind": kind,
        "names": ("input",),
        "batches": [(torch.randn(4, 3),), (torch.randn(1, 3),)],
        "reading": reading,
        "answer": Answer(kind="class", labels=("no", "yes")),
    }
    return ExportSpec(**{**fields, **changes})


def text_spec(kind="pt2") -> ExportSpec:
    torch.manual_seed(4)
    batches = [(torch.randint(256, (size, length)),) for size, length in ((3, 5), (1, 6), (2, 2))]
    reading = Reading(kind="text", length=6, description="Bytes.")
    return ExportSpec(
        kind=kind, names=("tokens_BT",), batches=batches, reading=reading, answer=Answer(kind="next_byte")
    )


MODELS = {"table": (table_model, table_spec), "text": (text_model, text_spec)}


class TinyArtifacts:
    """Artifacts by model ("table" or "text") and format."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.exported = {}
        """(model, format) -> what `export` returned."""

    def live(self, name: str = "table") -> nn.Module:
        """Return the PyTorch model, in eval mode."""
        return MODELS[name][0]()

    def spec(self, name: str = "table", **changes) -> ExportSpec:
        """Return the specification of the export."""
        return MODELS[name][1](**changes)

    def folder(self, name: str = "table", kind: str = "pt2") -> Path:
        """Return the folder of the artifact, which a test must not change."""
        folder = self._root / f"{name}-{kind}"
        if not folder.exists():
            folder.mkdir()
            make_model, make_spec = MODELS[name]
            about = {"run": {"name": name, "id": "0" * 32}}
            self.exported[name, kind] = export(make_model(), make_spec(kind), folder, about)
        return folder

    def copy(self, to: Path, name: str = "table", kind: str = "pt2") -> Path:
        """Copy the artifact to a folder that a test may change."""
        return Path(shutil.copytree(self.folder(name, kind), to))

    def model(self, name: str = "table", kind: str = "pt2") -> Model:
        """Open the artifact."""
        return Model.open(self.folder(name, kind))
