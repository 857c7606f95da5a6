"""The names or shapes in a checkpoint are not those of the model.

Wrappers put a prefix before every name: "module." (DataParallel, DistributedDataParallel), "_orig_mod."
(torch.compile), "model." (Lightning).
"""

from __future__ import annotations

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_MISSING = re.compile(r"Missing key\(s\) in state_dict: (.*?)\.\s*(?:\n|$)")
_UNEXPECTED = re.compile(r"Unexpected key\(s\) in state_dict: (.*?)\.\s*(?:\n|$)")
_SIZES = re.compile(
    r"size mismatch for (\S+): copying a param with shape torch\.Size\(\[(.*?)\]\) from checkpoint, "
    r"the shape in current model is torch\.Size\(\[(.*?)\]\)"
)
_BY = {"module.": "DataParallel or DistributedDataParallel", "_orig_mod.": "torch.compile", "model.": "Lightning"}


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation:
    """Say which prefix it is, or how many names differ."""
    missing, unexpected = _keys(_MISSING, raised.message), _keys(_UNEXPECTED, raised.message)
    for has, lacks, where in ((unexpected, missing, "checkpoint"), (missing, unexpected, "model")):
        prefix = _prefix(has, lacks)
        if prefix:
            by = f", which {_BY[prefix]} puts there" if prefix in _BY else ""
            return Explanation(meaning=f'The names in the {where} begin with "{prefix}"{by}.', fix=_fix(prefix, where))
    sizes = _SIZES.findall(raised.message)
    if sizes and not missing and not unexpected:
        name, saved, now = sizes[0]
        what = f"`{name}` has the shape [{saved}] in the checkpoint and [{now}] in the model"
        return Explanation(
            meaning=f"{what}{f', and {len(sizes) - 1} more differ' if len(sizes) > 1 else ''}.",
            fix="Build the model with the numbers it was saved with. To start a new head from other weights, leave its "
            "keys out of the state and load with strict=False.",
        )
    return Explanation(
        meaning=f"{len(missing)} names of the model are not in the checkpoint, and {len(unexpected)} of the checkpoint "
        "are not in the model.",
        fix="Build the model as it was saved; check that it is the model's part of the file, not all of it: "
        'torch.load(path)["model"]. strict=False leaves what is missing as it was initialised, without a word.',
    )


def _keys(pattern: re.Pattern[str], message: str) -> list[str]:
    found = pattern.search(message)
    return re.findall(r'"([^"]*)"', found[1]) if found else []


def _prefix(longer: list[str], shorter: list[str]) -> str:
    """Return what stands before every name of one side, and makes it one of the other."""
    if not longer or len(longer) != len(shorter):
        return ""
    parts = sorted(longer)[0], sorted(shorter)[0]
    prefix = parts[0].removesuffix(parts[1]) if parts[0].endswith(parts[1]) else ""
    return prefix if prefix and {prefix + name for name in shorter} == set(longer) else ""


def _fix(prefix: str, where: str) -> str:
    if where == "model":
        return "Load into the model inside the wrapper: model.module or model._orig_mod."
    save = ", or save model.module.state_dict()" if prefix == "module." else ""
    return f'Take it off: {{name.removeprefix("{prefix}"): value for name, value in state.items()}}{save}.'


ERROR = KnownError(
    title="A checkpoint of another model",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(r"Error\(s\) in loading state_dict for ",),
    explain=explain,
)
