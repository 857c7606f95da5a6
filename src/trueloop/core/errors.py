"""The errors that trueloop raises, each with a cause and a fix.

TrueloopError
├── InvalidConfig     a setting that cannot work, named with its value
├── InvalidData       a dataset, batch or label that cannot be trained on
├── InvalidModel      a model, loss or optimizer that does not fit together
├── NotFinite         too many updates in a row had to be skipped
├── OutOfMemory       an update that does not fit into device memory
├── CheckpointError   a checkpoint that cannot be written, read or trusted
├── RunFolderError    a run folder that cannot be used
├── BoardError        an arena leaderboard that cannot be read, written or extended
├── ProcessLost       another process or machine of the run is lost; restart all processes
└── MissingExtra      an optional dependency that is not installed
"""


class TrueloopError(Exception):
    """An error that names the problem with the invalid value, its consequence and a fix.

    Args:
        what: one sentence with the invalid value.
        why: what would go wrong if the run continued; empty if ``what`` is enough.
        fix: what the user should do next.
    """

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__("\n".join(part for part in (what, why, fix) if part))
        self.what = what
        self.why = why
        self.fix = fix


class InvalidConfig(TrueloopError):
    """A setting that cannot work."""


class InvalidData(TrueloopError):
    """A dataset, batch or label that cannot be trained on."""


class InvalidModel(TrueloopError):
    """A model, loss or optimizer that does not fit together."""


class NotFinite(TrueloopError):
    """Too many consecutive updates had a NaN or infinite loss or gradient."""


class OutOfMemory(TrueloopError):
    """An update does not fit into device memory, even split into the smallest micro-batches."""


class CheckpointError(TrueloopError):
    """A checkpoint that cannot be written, read or trusted."""


class RunFolderError(TrueloopError):
    """A run folder that cannot be used."""


class BoardError(TrueloopError):
    """An arena leaderboard that cannot be read, written or extended."""


class ProcessLost(TrueloopError):
    """Another process or machine of the run is lost; only restarting all processes helps."""


class MissingExtra(TrueloopError):
    """An optional dependency that is not installed; the message contains the exact install command."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(
            f"{module!r} is not installed.",
            why=f"It belongs to the optional extra [{extra}], which the core does not need.",
            fix=f"pip install 'trueloop[{extra}]'",
        )
