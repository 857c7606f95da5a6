"""Tells whether a program sets a seed of a random generator."""

import ast
import re
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.source_file import SourceFile, last_name

_SEEDING: Final = re.compile(r"seed|determinis|reproduc|random_?state|^default_rng$|^Generator$", re.IGNORECASE)


def sets_a_seed(source: SourceFile) -> bool:
    """Return True if a program may set a seed: in code outside of functions, or in a function that it mentions."""
    mentioned = {last_name(each) for each in source.nodes_of(ast.Name, ast.Attribute)}
    for call in source.all_calls:
        is_seeding = _SEEDING.search(last_name(call.func)) is not None
        is_seeded = any(_SEEDING.search(each.arg or "") for each in call.keywords)
        function = function_of(source, call)
        if (is_seeding or is_seeded) and getattr(function, "name", "") in {"", "__init__", *mentioned}:
            return True
    return False
