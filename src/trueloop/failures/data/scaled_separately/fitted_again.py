"""Finds scalers and encoders that are fitted again on held-out data, in the source."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.held_out_names import is_held_out
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.data.scaled_separately import own_statistics
from trueloop.failures.failure import Rule

_TRANSFORMER: Final = re.compile(
    r"scal|enc(?!lo)|imput|normali[sz]er|vectori|pca|transformer|discreti|^(sc|ss|mms|le)\d?$", re.IGNORECASE
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each fit on held-out data in a file that also fits on other data."""
    fits = [
        (call, call.func)
        for call in source.all_calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("fit", "fit_transform") and call.args
    ]
    others = [call for call, _ in fits if not is_held_out(call.args[0])]
    for call, method in fits:
        if method.attr != "fit_transform" or not others or not is_held_out(call.args[0]):
            continue
        owner = last_name(method.value) or last_name(getattr(method.value, "func", method.value))
        if _TRANSFORMER.search(owner) and not isinstance(source.parents.get(id(call)), ast.Expr):
            end = source.text.span(method)[1]
            edit = Edit(end - len("fit_transform"), end, "transform")
            is_same = any(ast.unparse(each.func).startswith(f"{ast.unparse(method.value)}.") for each in others)
            yield Hit(
                message=f"`{ast.unparse(call)}` fits `{owner}` on held-out data: it is transformed in another way than "
                "the training data. Use `transform`.",
                node=call,
                related=((others[0], "fitted on other data here"),),
                fix=Fix((edit,), safe=False, description="Only transform") if is_same else None,
            )


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and held-out data that is standardised by hand with its own statistics."""
    yield from find(source)
    yield from own_statistics.find(source)


RULE = Rule(
    required_words=(
        "fit_transform(|zscore(|scale(|mean(|median(|min(",
        "fit_transform(|zscore(|scale(|std(|var(|max(|ptp(",
        "torch|keras|nn.",
    ),
    find=find_all,
)
