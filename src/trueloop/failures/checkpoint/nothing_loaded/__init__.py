"""Loading a state_dict with ``strict=False``, or after a filter of its names, loads nothing: no name matches.

What you see
    Fine-tuning is no better than training from scratch, or a model that was good when it was saved gives useless
    answers. The file is correct and loading it raises no error, but the model keeps its random initial weights.

Why it happens
    ``strict=False`` loads the names that match and skips the rest. ``DistributedDataParallel``, Lightning and
    ``torch.compile`` put a prefix before every name ("module.", "model." or "_orig_mod."), so no name matches.
    ``load_state_dict`` returns the skipped names, but most programs ignore this. A filter such as
    ``{k: v for k, v in state.items() if k in own}`` does the same.

Fix
    Remove the prefix and load with ``strict=True``, or check the returned ``missing_keys`` and ``unexpected_keys``.

        utils = torch.nn.modules.utils
        utils.consume_prefix_in_state_dict_if_present(state, "module.")
        model.load_state_dict(state, strict=True)

When this is fine
    - Some names match: the checkpoint holds a backbone without a head, or an adapter.
    - The program tries a second prefix after the first one matched nothing.
    - You use ``strict=True``, which raises an error.

How it is detected
    In a run, the sanitizer reports a model that is called after ``load_state_dict(strict=False)`` matched no name, or
    after a file was read and the model was loaded with an empty state_dict, or with its own tensors only, if the file
    has none of its names and none of its values. A program that tries one checkpoint on several parts of a model on
    purpose is reported too, so this is a warning.

    The linter does not know the names in a file that another program wrote. It reports a state_dict that the program
    itself takes from a model, also through ``torch.save`` and ``torch.load``, and loads with ``strict=False`` or after
    a filter of unchanged names, if the attributes of the two models have no name in common: ``self.encoder`` and
    ``self.backbone``, or a wrapper such as ``DataParallel`` and the model in it. It also reports two models that share
    some names, but not that of the part which one function or class creates for both.

References
    pytorch/examples#1029, "nn.module load_state_dict strict=False can silently load a corrupted model",
    https://github.com/pytorch/examples/issues/1029
    pytorch/pytorch#141256, "silent failures and hours of debugging", https://github.com/pytorch/pytorch/issues/141256
    torch.nn.Module.load_state_dict, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

from trueloop.core.findings import Evidence
from trueloop.failures.checkpoint.nothing_loaded.other_names import find_other_names
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import ModelCalled, Ref, StateLoaded, WatchEnded


class Detector(BaseDetector):
    """Checks how many names matched in each state_dict that was loaded into a model."""

    activated_by = (StateLoaded,)

    def __init__(self) -> None:
        self._unmatched: dict[Ref, StateLoaded] = {}
        """Newest load of each model that matched no name, until a model is called."""
        self._loaded = False

    def on_state_loaded(self, event: StateLoaded) -> None:
        """Record the loaded state."""
        if event.what == "model":
            self._loaded = True
            self._unmatched.pop(event.target, None)
            if event.name_match is not None and not event.name_match.matched:
                self._unmatched[event.target] = event

    def on_model_called(self, event: ModelCalled) -> list[Evidence] | None:
        """Return evidence when a model runs after a load that matched no name and was not repeated."""
        unmatched, self._unmatched = list(self._unmatched.values()), {}
        return [_evidence(each) for each in unmatched]

    def on_watch_ended(self, event: WatchEnded) -> list[Evidence] | None:
        """Return evidence when a model runs after a load that matched no name and was not repeated."""
        unmatched, self._unmatched = list(self._unmatched.values()), {}
        return [_evidence(each) for each in unmatched]

    def inconclusive(self) -> str:
        """Return a reason if no state was loaded into a model."""
        return "" if self._loaded else "no state was loaded into a model"


def _evidence(event: StateLoaded) -> Evidence:
    names = event.name_match
    assert names is not None
    fix = _prefix_fix(names.unexpected, names.missing)
    example = f" (it has {names.unexpected!r}, the model has {names.missing!r})" if names.unexpected else ""
    start = "load_state_dict with strict=False loaded nothing"
    start = f"Nothing of {names.file} was loaded, because nothing was left of its state_dict" if names.file else start
    return Evidence(
        message=f"{start}: none of the {names.state_count} names in the {'file' if names.file else 'state_dict'} "
        f"matches one of the {names.model_count} names in {event.target.name}{example}.",
        location=event.location,
        fix=fix,
        dedup_key=event.target,
        first_update=event.update,
    )


def _prefix_fix(actual: str, expected: str) -> str:
    """Return the fix if one of the two names ends with the other; otherwise ""."""
    if actual != expected and actual.endswith(expected):
        return (
            f"Remove {actual.removesuffix(expected)!r} from the names in the state_dict, and load it with strict=True."
        )
    if actual != expected and expected.endswith(actual):
        return (
            f"Add {expected.removesuffix(actual)!r} before each name in the state_dict, or load it into that submodule."
        )
    return ""


RULE = Rule(required_words=("load_state_dict(", "state_dict()", "strict|items()|, False)"), find=find_other_names)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
trained = nn.DataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
state = trained.state_dict()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
model.load_state_dict(state, strict=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="CKP005",
    title="Loading a state_dict loads nothing",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "state = trained.state_dict()": "state = trained.module.state_dict()",
            "model.load_state_dict(state, strict=False)": "model.load_state_dict(state, strict=True)",
        },
    ),
    fix="Rename the keys of the state_dict to the names in the model, and load it with strict=True.",
    rule=RULE,
    detector=Detector,
)
