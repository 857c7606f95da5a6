"""Split the words of `trueloop run` and `trueloop diagnose` into options of trueloop and the script with its own."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cyclopts import App, CycloptsError

from trueloop.core.paths import path_exists
from trueloop.sanitizer.run_program import ProgramCommand


class ScriptWords(NamedTuple):
    """A command line in two parts; options come before the script, its own arguments after it."""

    options: list[str]
    """Words for trueloop."""
    module: bool
    """Whether -m comes before the program."""
    words: list[str]
    """The program and its arguments."""

    def program(self, app: App) -> ProgramCommand:
        """Return the program.

        Raises:
            CycloptsError: it is missing, or there is no such file.
        """
        name = app.name[0]
        if not self.words:
            raise CycloptsError(msg=f"The script is missing: {name} train.py.", app=app)
        target, *arguments = self.words
        if not self.module and not path_exists(Path(target)):
            raise CycloptsError(msg=f"There is no script {target!r}.{_suggest_script(Path(target))}", app=app)
        return ProgramCommand(target=target, arguments=tuple(arguments), module=self.module)


def split_words(tokens: Sequence[str], options_with_value: Sequence[str]) -> ScriptWords:
    """Split a command line at the script, or at -m."""
    index = 0
    while index < len(tokens) and tokens[index].startswith("-") and tokens[index] not in ("-", "-m", "--"):
        index += 2 if tokens[index] in options_with_value else 1
    first = tokens[index] if index < len(tokens) else ""
    return ScriptWords(list(tokens[:index]), first == "-m", list(tokens[index + (first in ("-m", "--")) :]))


def _suggest_script(path: Path) -> str:
    close = difflib.get_close_matches(path.name, [each.name for each in path.parent.glob("*.py")], n=1)
    return f" Did you mean {str(path.with_name(close[0]))!r}?" if close else ""
