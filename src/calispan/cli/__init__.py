"""The command line: one command a file. Heavy imports wait inside the commands, so that help comes at once."""

from __future__ import annotations


def main() -> None:
    """Entry point of the `calispan` program."""
    from calispan.cli._app import app

    app(prog_name="calispan")
