import json

import pytest

from trueloop.core.notebook import NotANotebook, Notebook

CELLS = [
    {"cell_type": "markdown", "metadata": {}, "source": ["# Title\n"]},
    {
        "cell_type": "code",
        "execution_count": 1,
        "metadata": {},
        "outputs": [{"data": 1e-05}],
        "source": ["%matplotlib inline\n", "import torch\n", "x = !ls\n", "?torch"],
    },
    {"cell_type": "code", "metadata": {}, "outputs": [], "source": "%%bash\nls -l\n"},
    {"cell_type": "code", "metadata": {}, "outputs": [], "source": ["if x:\n", "    !pip install é\n", "    y = x"]},
    {"cell_type": "code", "metadata": {}, "outputs": [], "source": []},
    {"cell_type": "code", "metadata": {}, "outputs": [], "source": ["this is no python"]},
]


def notebook_text(**options):
    return json.dumps({"cells": CELLS, "metadata": {}, "nbformat": 4}, **({"indent": 1} | options)) + "\n"


def test_magics_are_hidden_and_line_numbers_kept():
    notebook = Notebook(notebook_text())
    compile(notebook.text, "nb", "exec")
    lines = notebook.text.splitlines()
    for number, line in enumerate(lines, 1):
        if line.startswith("# trueloop: cell"):
            continue
        cell, at = notebook.locate(number)
        original = cell.source.split("\n")[at - 1]
        assert line == original or line.endswith(f"hidden {original.strip()}"), (line, original)
    assert [cell.number for cell in notebook.cells] == [2, 3, 4, 5, 6]
    assert notebook.invalid_cells == [(6, "cell 6 line 1: invalid syntax")]


@pytest.mark.parametrize("how", [{"indent": 1}, {"indent": 2}, {"indent": None}, {"ensure_ascii": False, "indent": 4}])
def test_only_changed_cells_are_rewritten(how):
    before = notebook_text(**how)
    notebook = Notebook(before)
    assert notebook.render(notebook.text) == before
    after = notebook.render(notebook.text.replace("    y = x\n", "    y = x + 1\n    z = 'ü'\n"))
    changed, old = json.loads(after)["cells"], json.loads(before)["cells"]
    assert changed[3]["source"] == ["if x:\n", "    !pip install é\n", "    y = x + 1\n", "    z = 'ü'"]
    assert [cell for i, cell in enumerate(changed) if i != 3] == [cell for i, cell in enumerate(old) if i != 3]
    assert "1e-05" in after
    start = before.index('"# Title')
    assert after[:start] == before[:start]


def test_a_string_source_stays_a_string():
    text = '{"cells": [{"cell_type": "code", "source": "a = 1\\nb = 2"}]}'
    notebook = Notebook(text)
    assert notebook.render(notebook.text.replace("a = 1", "a = 3")) == text.replace("a = 1", "a = 3")


def test_a_cell_may_contain_the_cell_marker():
    source = ["# trueloop: cell 7\n", "a = 1  # trueloop: ignore[GRD001]\n", "%magic\n", "pass  # trueloop: hidden b\n"]
    text = json.dumps({"cells": [{"cell_type": "code", "source": each} for each in (source, "c = 1", source)]})
    notebook = Notebook(text)
    assert notebook.locate(notebook.text.splitlines().index("c = 1") + 1) == (notebook.cells[1], 1)
    assert notebook.render(notebook.text) == text
    assert notebook.render(notebook.text.replace("= 1", "= 2")) == text.replace("= 1", "= 2")


def test_cell_lines_have_file_lines():
    notebook = Notebook(notebook_text())
    cell = notebook.cells[0]
    assert notebook_text().splitlines()[cell.lines[1] - 1].strip() == '"import torch\\n",'


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"cells": 3}', '{"cells": [{"source": []', "nonsense", "[" * 100_000]
)
def test_an_invalid_notebook_is_reported(text):
    with pytest.raises(NotANotebook, match="not a notebook"):
        Notebook(text)


def test_strings_that_look_like_magics_are_kept():
    source = 'x = """\n%s and !this\n"""\n'
    notebook = Notebook(json.dumps({"cells": [{"cell_type": "code", "source": source}]}))
    assert notebook.text.endswith(source)
