"""How a run ends: data on stdout, one sentence on stderr, an exit code. No traceback reaches the user.

0 done · 1 a fault of ours · 2 something the user can mend · 130 interrupted · 141 the reader of the pipe left
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from calispan.core.errors import CalispanError, CalispanWarning

DEBUG = "CALISPAN_DEBUG"


class Commands(TyperGroup):
    """The group of commands; every way out of a command goes through `main`."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **more: Any,
    ) -> Any:
        try:
            with spoken_warnings():
                code = super().main(args, prog_name, complete_var, False, windows_expand_args, **more)
            sys.stdout.flush()  # a closed pipe shows here, not while the interpreter shuts down
        except BrokenPipeError:
            code = _reader_left()
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        except Exception as error:
            code = _tell(error)
        code = code if isinstance(code, int) else 0
        if standalone_mode:
            sys.exit(code)
        return code

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # typer would end the program with 1
            raise typer.Exit(_reader_left()) from error


def _reader_left() -> int:
    """Whoever read our output has gone: what is still buffered goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def one_line(text: object) -> str:
    """A sentence as the terminal may have it: no line breaks, no control codes from a file name."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(str(text).split()))


def _tell(error: Exception) -> int:
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    if isinstance(error, CalispanError):
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    if hasattr(error, "format_message"):  # typer's own: an unknown option, a missing value
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "calispan"
        said = one_line(error.format_message()).rstrip(".")
        said += "" if said.endswith("?") else "."
        print(f"error: {said} See `{path} --help`.", file=sys.stderr)
        return 2
    said = one_line(error).rstrip(".")
    print(
        f"error: {type(error).__name__} where none was foreseen{f' ({said})' if said else ''}. "
        f"Run again with {DEBUG}=1 for the traceback, and report it.",
        file=sys.stderr,
    )
    return 1


@contextmanager
def spoken_warnings() -> Iterator[None]:
    """Our warnings as sentences on stderr, each once; other libraries' only when debugging."""
    said: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        sentence = one_line(message)
        if sentence not in said:
            said.add(sentence)
            print(f"warning: {sentence}", file=sys.stderr)

    with warnings.catch_warnings():
        if not os.environ.get(DEBUG):
            warnings.simplefilter("ignore")
        warnings.simplefilter("always", CalispanWarning)
        warnings.showwarning = show
        yield
