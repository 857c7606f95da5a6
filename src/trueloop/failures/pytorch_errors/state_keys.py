"""The names or shapes in a checkpoint do not match the model.

Wrappers add a prefix to every name: "module." (DataParallel, DistributedDataParallel), "_orig_mod."
(torch.compile), "model." (Lightning).
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_MISSING = re.compile(r"Missing key\(s\) in state_dict: (.*?)\.\s*(?:\n|$)")
_UNEXPECTED = re.compile(r"Unexpected key\(s\) in state_dict: (.*?)\.\s*(?:\n|$)")
_SIZES = re.compile(
    r"size mismatch for (\S+): copying a param with shape torch\.Size\(\[(.*?)\]\) from checkpoint, "
    r"the shape in current model is torch\.Size\(\[(.*?)\]\)"
)
_WRAPPERS = {"module.": "DataParallel or DistributedDataParallel", "_orig_mod.": "torch.compile", "model.": "Lightning"}


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """Name the prefix, the shape that differs, or the number of names that differ."""
    missing, unexpected = _keys(_MISSING, error.message), _keys(_UNEXPECTED, error.message)
    for longer, shorter, owner in ((unexpected, missing, "checkpoint"), (missing, unexpected, "model")):
        prefix = _prefix(longer, shorter)
        if prefix:
            source = f", which {_WRAPPERS[prefix]} adds" if prefix in _WRAPPERS else ""
            return Explanation(
                meaning=f'The names in the {owner} begin with "{prefix}"{source}.', fix=_fix(prefix, owner)
            )
    sizes = _SIZES.findall(error.message)
    if sizes and not missing and not unexpected:
        name, saved, current = sizes[0]
        difference = f"`{name}` has the shape [{saved}] in the checkpoint and [{current}] in the model"
        return Explanation(
            meaning=f"{difference}{f', and {len(sizes) - 1} more differ' if len(sizes) > 1 else ''}.",
            fix="Build the model with the same sizes as the saved model. If you want a new last layer, remove its keys "
            "from the state_dict and load with strict=False.",
        )
    return Explanation(
        meaning=f"{len(missing)} names of the model are not in the checkpoint, and {len(unexpected)} names of the "
        "checkpoint are not in the model.",
        fix="Build the same model as the saved one, and pass only the model's part of the file, such as "
        'torch.load(path)["model"]. With strict=False, missing parameters silently keep their initial values.',
    )


def _keys(pattern: re.Pattern[str], message: str) -> list[str]:
    match = pattern.search(message)
    return re.findall(r'"([^"]*)"', match[1]) if match else []


def _prefix(longer: list[str], shorter: list[str]) -> str:
    """Return the prefix with which every name of one list differs from a name of the other list."""
    if not longer or len(longer) != len(shorter):
        return ""
    parts = sorted(longer)[0], sorted(shorter)[0]
    prefix = parts[0].removesuffix(parts[1]) if parts[0].endswith(parts[1]) else ""
    return prefix if prefix and {prefix + name for name in shorter} == set(longer) else ""


def _fix(prefix: str, owner: str) -> str:
    if owner == "model":
        return "Load into the model inside the wrapper: model.module or model._orig_mod."
    save = ", or save model.module.state_dict()" if prefix == "module." else ""
    return f'Remove the prefix: {{name.removeprefix("{prefix}"): value for name, value in state.items()}}{save}.'


ERROR = KnownError(
    title="The checkpoint does not match the model",
    exception_types=frozenset({"RuntimeError"}),
    message_patterns=(r"Error\(s\) in loading state_dict for ",),
    explain=explain,
)
