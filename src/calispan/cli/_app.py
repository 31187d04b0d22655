"""The application: `calispan` and its commands."""

from __future__ import annotations

import typer

from calispan.cli import demo, evaluate, ls
from calispan.cli._errors import Commands

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("ls")(ls.ls)
app.command("evaluate")(evaluate.evaluate)
app.command("demo")(demo.demo)


def _version(*, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"calispan {version('calispan')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def calispan(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True),
) -> None:
    """Adapt CLIP-like models to few labelled images and keep their confidence honest under distribution shift."""
    _version(wanted=version)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
