"""Tables for people, on stdout."""

from __future__ import annotations

from rich.console import Console


class Page(Console):
    """A rich console without guessed colours; NO_COLOR, the width and plain pipes are rich's business."""

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def on_broken_pipe(self) -> None:
        """Say so, as print does; rich would end the program by itself."""
        raise BrokenPipeError
