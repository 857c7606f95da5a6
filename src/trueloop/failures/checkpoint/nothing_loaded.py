"""Loading a state_dict loads nothing: no name matches, or ``state_dict`` was called instead of ``load_state_dict``.

What you see
    Fine-tuning is no better than training from scratch, or a model that was good when it was saved gives useless
    answers. The file is correct and loading it raises no error, but the model keeps its random initial weights.

Why it happens
    ``strict=False`` loads the names that match and skips the rest. ``DistributedDataParallel``, Lightning and
    ``torch.compile`` put a prefix before every name ("module.", "model." or "_orig_mod."), so no name matches.
    ``load_state_dict`` returns the skipped names, but most programs ignore this. ``model.state_dict(best)`` loads
    nothing either: its argument is a dictionary that the current weights are written into.

Fix
    Remove the prefix and load with ``strict=True``, or check the returned ``missing_keys`` and ``unexpected_keys``.

        utils = torch.nn.modules.utils
        utils.consume_prefix_in_state_dict_if_present(state, "module.")
        model.load_state_dict(state, strict=True)
        model.state_dict(best)  # wrong: overwrites best
        model.load_state_dict(best)  # right

When this is fine
    - Some names match: the checkpoint holds a backbone without a head, or an adapter.
    - The program tries a second prefix after the first one matched nothing.
    - You use ``strict=True``, which raises an error.
    - You collect the states of several modules in a new dictionary with ``state_dict(destination=states)``.

How it is detected
    In a run, the sanitizer reports a model that is called after ``load_state_dict(strict=False)`` matched no name. A
    program that tries one checkpoint on several parts of a model on purpose is reported too, so this is a warning. The
    linter does not know the names in a file. It reports ``state_dict`` that is called as a statement with a state that
    is not a new dictionary.

References
    pytorch/examples#1029, "nn.module load_state_dict strict=False can silently load a corrupted model",
    https://github.com/pytorch/examples/issues/1029
    pytorch/pytorch#141256, "silent failures and hours of debugging", https://github.com/pytorch/pytorch/issues/141256
    torch.nn.Module.load_state_dict, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Edit, Fix, dotted_name
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
    return Evidence(
        message=f"load_state_dict with strict=False loaded nothing: none of the {names.state_count} names in the "
        f"state_dict matches one of the {names.model_count} names in {event.target.name}{example}.",
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


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the statements that pass a state to ``state_dict`` instead of ``load_state_dict``."""
    for statement in source.nodes:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="state_dict") as method, args=args, keywords=options)):
                pass
            case _:
                continue
        passed = [*args, *(each.value for each in options)]
        if len(passed) != 1 or any(each.arg != "destination" for each in options) or _is_new(source, passed[0]):
            continue
        start, end = source.text.span(method.value)[1], source.text.span(passed[0])
        owner, state = ast.unparse(method.value), ast.unparse(passed[0])
        edits = (Edit(start, source.text.span(method)[1], ".load_state_dict"),)
        edits += tuple(Edit(source.text.span(o)[0], end[0], "") for o in options)
        yield Hit(
            message=f"`{owner}.state_dict({state})` loads nothing: it writes the current weights of `{owner}` into "
            f"`{state}`. Loading is `{owner}.load_state_dict({state})`.",
            node=statement,
            fix=Fix(edits, safe=False, description="Call load_state_dict"),
            severity=Severity.ERROR,
        )


def _is_new(source: SourceFile, state: ast.expr) -> bool:
    """Return True if a dictionary may have been created to collect states: it is a parameter, or starts empty."""
    name = dotted_name(state)
    if not name:
        return not isinstance(state, ast.Call) or not dotted_name(state.func).endswith("load")
    values: list[ast.expr | None] = []
    for each in source.nodes:
        if isinstance(each, ast.arg) and each.arg == name and "dest" in name:
            return True
        if isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            values += [each.value for target in targets if dotted_name(target) == name]
    empty = [v for v in values if isinstance(v, ast.Dict) and not v.keys]
    empty += [v for v in values if isinstance(v, ast.Call) and not v.args and dotted_name(v.func).endswith("ict")]
    return any("state_dict" not in ast.unparse(v) for v in empty) and len(empty) == len([v for v in values if v])


RULE = Rule(required_words=(".state_dict(",), find=find)

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
