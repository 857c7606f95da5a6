"""The expressions whose value an expression may have."""

import ast

import pytest

from trueloop.analysis.project import Module
from trueloop.analysis.queries.possible_values import known_constant, origins, without_cycles
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import SourceText

RECORD = """
from dataclasses import dataclass
from typing import NamedTuple
class Parts(NamedTuple):
    train: object
    test: object = held_out()
@dataclass
class Config:
    rate: float = 0.1
class Plain:
    train: object
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("parts = Parts(a(), b())\nseen(parts.test)", {"b()"}),
        ("parts = Parts(test=b(), train=a())\nseen(parts.train)", {"a()"}),
        ("parts = Parts(a())\nseen(parts.test)", {"held_out()"}),
        ("def split():\n    return Parts(a(), b())\nparts = split()\nseen(parts.test)", {"b()"}),
        ("def f(parts):\n    seen(parts.train)\nf(Parts(a(), b()))", {"a()"}),
        ("config = Config(rate=1e-3)\nseen(config.rate)", {"0.001"}),
        ("config = Config()\nseen(config.rate)", {"0.1"}),
        ("sets = {'train': a(), 'test': b()}\nseen(sets['test'])", {"b()"}),
        ("sets = dict(train=a(), test=b())\nseen(sets['train'])", {"a()"}),
        ("sets = load()\nseen(sets['train'])", set()),
        ("plain = Plain()\nseen(plain.train)", set()),
        ("config = Config()\nseen(config.other)", set()),
        ("outer = {'inner': {'a': b()}}\ninner = outer['inner']\nseen(inner['a'])", {"b()"}),
    ],
)
def test_fields_and_items_have_the_values_that_the_object_was_created_with(text, expected):
    text = RECORD + text
    source = SourceFile([Module("train.py", SourceText(text), ast.parse(text))], [], {})
    seen = next(each for each in source.all_calls if isinstance(each.func, ast.Name) and each.func.id == "seen")
    assert {ast.unparse(each) for each in origins(source, seen.args[0])} == {ast.unparse(seen.args[0]), *expected}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seen(False)", False),
        ("config = {'shuffle': False}\nseen(config['shuffle'])", False),
        ("n = 16\ndef f(size):\n    seen(size)\nf(n)", 16),
        ("x = 1\nif c:\n    x = 2\nseen(x)", None),
        ("x = 1\nif c:\n    x = read()\nseen(x)", None),
        ("x = 1\nif c:\n    x = True\nseen(x)", None),
        ("seen(read())", None),
    ],
)
def test_a_constant_is_known_if_it_is_the_only_value(text, expected):
    source = SourceFile([Module("train.py", SourceText(text), ast.parse(text))], [], {})
    seen = next(each for each in source.all_calls if isinstance(each.func, ast.Name) and each.func.id == "seen")
    assert known_constant(source, seen.args[0]) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = a()\nif c:\n    x = b()\nelse:\n    seen(x)", {"a()"}),
        ("x = a()\nif c:\n    seen(x)\nelse:\n    x = b()", {"a()"}),
        ("x = a()\nif c:\n    x = b()\nseen(x)", {"a()", "b()"}),
        ("x = a()\nif c:\n    x = b()\nif d:\n    seen(x)", {"a()", "b()"}),
        ("x = a()\nfor i in y:\n    if c:\n        x = b()\n    else:\n        seen(x)", {"a()", "b()"}),
    ],
)
def test_a_variable_does_not_have_the_value_of_the_other_arm(text, expected):
    source = SourceFile([Module("train.py", SourceText(text), ast.parse(text))], [], {})
    seen = next(each for each in source.all_calls if isinstance(each.func, ast.Name) and each.func.id == "seen")
    assert {ast.unparse(each) for each in origins(source, seen.args[0])} == {"x", *expected}


def test_objects_that_are_made_of_each_other_end():
    text = "\n".join(
        f"def f{i}(spec):\n    spec = spec['x']\n    f{(i + 1) % 40}(spec['a'])\n    f{(i + 7) % 40}(spec)"
        for i in range(40)
    )
    text += "\nseen(spec['a'])\nspec = {'x': spec}"
    source = SourceFile([Module("train.py", SourceText(text), ast.parse(text))], [], {})
    reads = [each for each in source.nodes if isinstance(each, ast.Subscript)]
    assert len(reads) > 80
    for each in reads:
        assert ast.unparse(next(iter(origins(source, each)))) == ast.unparse(each)
        assert len(list(origins(source, each))) < 10_000


@pytest.mark.parametrize("repeats", [1, 20])
def test_search_in_a_circle_is_answered(repeats: int):
    @without_cycles("circle")
    def search(path: tuple[str, ...]) -> str:
        return search(names[(names.index(path) + 1) % len(names)])

    names = [(str(number),) for number in range(repeats)]
    assert search(names[0]) == "circle"
    assert search(names[0]) == "circle", "A search that ended in a circle left its arguments behind."
