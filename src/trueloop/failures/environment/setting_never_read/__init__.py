"""A hyper-parameter is configured but never read, so changing it changes nothing.

What you see
    ``--lr 0.1`` and ``--lr 0.001`` give the same curve, or weight decay makes no difference. A search over the setting
    finds noise.

Why it happens
    The optimizer, the loader or the layer is created with a number of its own, or with its default. Python does not
    complain about an option or a variable that nothing reads.

Fix
    Pass the setting where it belongs, or remove it:

        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)

When this is fine
    - The configuration goes elsewhere as a whole, such as ``Trainer(**vars(args))``.
    - The setting is read by its name, with ``getattr(args, name)``, or in a file that the linter does not see.
    - An option is kept only so that old commands still work.

How it is detected
    Only the linter finds it: an option of ``argparse`` or ``click``, a field of a configuration class, a key of a
    configuration dictionary, a constant or a parameter of a function whose name is that of a hyper-parameter, in a
    program that trains, and nothing reads it. Printing or saving the whole configuration is no use. It is a warning if
    the code that should take the setting has another number or relies on its default, and for an option of
    ``argparse`` of nearly any name, and a note otherwise. A parser with options that nothing parses is a warning. It is
    also a warning if callers pass a parameter of any name that a function never reads, and the only call in the
    function that has a parameter of this name relies on its default; or a flag such as ``evaluation`` or
    ``deterministic`` that a policy never reads although it adds noise to its actions; or if
    they pass a keyword to a function with ``**kwargs`` that reads only others from it: one with a similar name that
    no caller passes, or any others if the keyword is that of a hyper-parameter.

References
    Python, "argparse", the Namespace object, https://docs.python.org/3/library/argparse.html#the-namespace-object
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.seeding import sets_a_seed
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.failures.environment.setting_never_read.dropped_arguments import dropped_arguments
from trueloop.failures.environment.setting_never_read.ignored_flags import ignored_flags
from trueloop.failures.environment.setting_never_read.places import own_value
from trueloop.failures.environment.setting_never_read.settings import Setting, unparsed_parsers, unread_settings
from trueloop.failures.environment.setting_never_read.swallowed_keywords import swallowed_keywords
from trueloop.failures.failure import Failure, Rule, Severity, changed


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each setting of the training that nothing reads."""
    if any(isinstance(each.func, ast.Attribute) and each.func.attr == "backward" for each in source.all_calls):
        hits = [hit for setting in unread_settings(source) for hit in _judge(source, setting)]
        yield from hits
        for each in unparsed_parsers(source):
            yield Hit(
                message=f"`{ast.unparse(each.targets[0])}` gets options, but `parse_args` is never called, so "
                "they have no effect.",
                node=each,
            )
        known = [each.node for each in hits]
        for dropped in dropped_arguments(source):
            if all(each is not dropped.parameter for each in known):
                yield Hit(
                    message=f"`{dropped.parameter.arg}` is never read, although its callers pass it: "
                    f"`{ast.unparse(dropped.call)}` uses the default, {ast.unparse(dropped.default)}.",
                    node=dropped.call,
                    related=((dropped.parameter, "the parameter"), (dropped.default, "the default")),
                )
        for ignored in ignored_flags(source):
            yield Hit(
                message=f"`{ignored.parameter.arg}` is never read, although its callers pass it: the action depends on "
                f"`{ast.unparse(ignored.draw)}` in an evaluation, too.",
                node=ignored.parameter,
                related=((ignored.call, "passed here"), (ignored.draw, "random in each call")),
            )
        for keyword, called, read in swallowed_keywords(source):
            yield Hit(
                message=f"`{keyword.arg}` is never read: `{called}` takes any keyword, and reads "
                f"`{ast.unparse(read)}` instead.",
                node=read,
                related=((keyword.value, "passed here"),),
            )


def _judge(source: SourceFile, setting: Setting) -> Iterator[Hit]:
    place = own_value(source, setting)
    if place is None and setting.is_parameter:
        return
    because = "so it has no effect" if place is None else place.text
    is_equal = place is not None and place.is_equal and not setting.is_option
    is_lost = place is None and setting.is_option
    if is_lost and setting.kind == "seed" and not sets_a_seed(source):
        because = "and nothing sets a seed, so each run has other random numbers"
    yield Hit(
        message=f"`{setting.shown}` is never read{', ' if place is None else ': '}{because}.",
        node=setting.node,
        related=() if place is None else ((place.node, "has a value of its own"),),
        severity=Severity.NOTE if is_equal or (place is None and not is_lost) else None,
    )


_WORDS: Final = "lr|rate|decay|momentum|drop|batch|bs|epochs|clip|norm|warm|seed|smooth|patience|hidden|layers"
RULE = Rule(
    required_words=(".backward(", f"{_WORDS}|{_WORDS.upper()}|mask|lambda|temp|scale|weight|add_argument("), find=find
)

BAD = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--weight-decay", type=float, default=0.01)
args = parser.parse_args([])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for step in range(5):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="ENV008",
    title="A hyper-parameter is never read",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"lr=args.lr)": "lr=args.lr, weight_decay=args.weight_decay)"}),
    fix="Pass the setting to the optimizer, loader or layer that it belongs to, or remove it.",
    rule=RULE,
)
