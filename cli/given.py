"""Which flags were given on the command line, and the refusal of those that would have no effect.

A flag that is passed over in silence lets people believe what is not so. Environment and file are not looked
at: what they say is for all commands.
"""

from __future__ import annotations

from collections.abc import Iterable

import typer

from kvbus.errors import ConfigError


def is_given(context: typer.Context, name: str) -> bool:
    """Whether the parameter of this name was given, whatever its value. ``KeyError`` if there is none."""
    if name not in _flags(context):
        raise KeyError(name)
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse(context: typer.Context, names: Iterable[str], because: str) -> None:
    """Raise ``ConfigError`` where parameters of these names were given; ``because`` says what is expected."""
    flags = _flags(context)
    if told := [flags[name] for name in names if is_given(context, name)]:
        raise ConfigError(
            f"{', '.join(told)}: {because}",
            next_step=f"Leave it out, or see `{context.command_path} --help`.",
        )


def refuse_all_but(context: typer.Context, names: Iterable[str], because: str) -> None:
    """``refuse`` every other parameter of the command."""
    kept = set(names)
    refuse(context, [name for name in _flags(context) if name not in kept], because)


def _flags(context: typer.Context) -> dict[str, str]:
    """What people call each parameter: an argument by its metavar, an option by its first name, and the first
    that says no.
    """
    return {
        parameter.name: "/".join([*parameter.opts[:1], *parameter.secondary_opts[:1]])
        if parameter.param_type_name == "option"
        else (parameter.metavar or parameter.name).strip("[].")
        for parameter in context.command.params
        if parameter.name is not None
    }
