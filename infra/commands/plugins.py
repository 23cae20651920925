"""Commands of packages that the command line may not import: they name themselves as entry points."""

from importlib.metadata import EntryPoint, entry_points

import typer

_GROUP = "millrace.commands"


def add_plugins(app: typer.Typer, arguments: list[str]) -> None:
    """Add the command that `arguments` ask for, if a plug-in brings it; all of them where none is asked for.

    A plug-in is imported only then, so that it costs the other commands nothing.
    """
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    for plugin in _plugins():
        if asked in (None, plugin.name):
            app.command(plugin.name)(plugin.load())


def _plugins() -> list[EntryPoint]:
    return sorted(entry_points(group=_GROUP), key=lambda plugin: plugin.name)
