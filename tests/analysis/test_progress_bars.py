"""Progress bars around what a loop iterates over."""

import ast

import pytest

from trueloop.analysis.project import parse_module
from trueloop.core.source_text import nodes_in


@pytest.mark.parametrize(
    ("bar", "iterated"),
    [
        ("tqdm(loader)", "loader"),
        ("tqdm.tqdm(loader, total=9)", "loader"),
        ("tqdm(enumerate(loader), desc=name)", "enumerate(loader)"),
        ("enumerate(tqdm(loader, 'train'))", "enumerate(loader)"),
        ("zip(tqdm(a, leave=False), track(b))", "zip(a, b)"),
        ("trange(n, desc=name)", "range(n)"),
        ("tqdm.trange(1, n)", "range(1, n)"),
        ("tqdm(trange(n))", "range(n)"),
        ("progress_bar(list(tqdm(x)))", "list(x)"),
        ("tqdm(True, loader)", "tqdm(True, loader)"),  # of Accelerate
        ("tracker.track(loader)", "tracker.track(loader)"),
        ("tqdm()", "tqdm()"),
    ],
)
@pytest.mark.parametrize("loop", ["for x in {}:\n    print(x)\n", "found = [x for x in {}]\n"])
def test_a_loop_over_a_progress_bar_is_a_loop_over_what_it_shows(loop: str, bar: str, iterated: str):
    module = parse_module("train.py", loop.format(bar), 100)
    found = next(each for each in module.nodes if isinstance(each, ast.For | ast.comprehension))
    assert ast.unparse(found.iter) == iterated
    assert found.iter.lineno == 101


def test_the_program_still_reads_what_a_progress_bar_shows():
    module = parse_module("train.py", "for x in tqdm(loader, f'{epoch}', total=total):\n    pass\n")
    assert {each.id for each in nodes_in(module.tree, ast.Name)} == {"x", "loader", "epoch", "total"}


def test_a_function_of_the_program_is_no_progress_bar():
    module = parse_module("train.py", "def track(x):\n    return x[1:]\nfor x in track(items):\n    pass\n")
    assert ast.unparse(module.tree.body[1]).startswith("for x in track(items)")
