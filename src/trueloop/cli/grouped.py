"""Builds commands that have subcommands: `trueloop runs list`, `trueloop arena board`."""

from collections.abc import Mapping

from cyclopts import App


def command_group(package: str, *, name: str, line: str, commands: Mapping[str, str]) -> App:
    """Return a sub-application; its commands are imported only when they run.

    Args:
        package: package with one module per command.
        name: name of the group on the command line.
        line: help of the group in `trueloop --help`.
        commands: name of each command -> its help.
    """
    app = App(name=name, help=line, version_flags=[], result_action="return_value", suppress_keyboard_interrupt=False)
    for command, about in commands.items():
        app.command(f"{package}.{command}:{command}_command", name=command, help=about, version_flags=[])
    return app
