"""Build commands that have subcommands: `trueloop runs list`, `trueloop arena board`."""

from collections.abc import Mapping

from cyclopts import App


def command_group(package: str, *, name: str, help_text: str, commands: Mapping[str, str]) -> App:
    """Return a sub-application; its commands are imported only when they run.

    Args:
        package: package with one module per command.
        name: name of the group on the command line.
        help_text: help of the group in `trueloop --help`.
        commands: help of each command, by the command's name.
    """
    app = App(
        name=name, help=help_text, version_flags=[], result_action="return_value", suppress_keyboard_interrupt=False
    )
    for command, command_help in commands.items():
        app.command(f"{package}.{command}:{command}_command", name=command, help=command_help, version_flags=[])
    return app
