"""Commands that have commands of their own: `trueloop runs list`, `trueloop arena board`."""

from collections.abc import Mapping

from cyclopts import App


def command_group(package: str, *, name: str, line: str, commands: Mapping[str, str]) -> App:
    """Return a sub-application; nothing of its commands is imported yet.

    Args:
        package: where each command has a file of its own.
        name: of the group, on the command line.
        line: what it is for, as `trueloop --help` says it.
        commands: the same for each command in it.
    """
    app = App(name=name, help=line, version_flags=[], result_action="return_value", suppress_keyboard_interrupt=False)
    for command, about in commands.items():
        app.command(f"{package}.{command}:{command}_command", name=command, help=about, version_flags=[])
    return app
