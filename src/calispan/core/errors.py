"""Every error a user may meet: a sentence that says what came, what was wanted and what to do next.

CalispanError
├── InputError          data that does not fit: shapes, labels, NaN rows, missing or unreadable files
├── UnknownNameError    no plug-in answers to that name
├── RecipeError         a recipe's parameter is unknown or out of its range
├── NeedsError          a plug-in asks for something that was not given
├── StoreError          a stored value is damaged, or of a version this program cannot read
└── MissingExtraError   an optional package is not installed

The command line turns each into one line on stderr and exit code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CalispanError",
    "CalispanWarning",
    "InputError",
    "MissingExtraError",
    "NeedsError",
    "RecipeError",
    "StoreError",
    "UnknownNameError",
    "did_you_mean",
]


class CalispanError(Exception):
    """Anything the user can mend; raise one of its children."""


class InputError(CalispanError, ValueError):
    """Data that does not fit."""


class UnknownNameError(CalispanError, KeyError):
    """No plug-in by that name."""

    __str__ = Exception.__str__  # KeyError would print the sentence in quotes


class RecipeError(CalispanError, ValueError):
    """A recipe with an unknown parameter or a value out of its range."""


class NeedsError(CalispanError):
    """A plug-in was not given what it asks for."""


class StoreError(CalispanError):
    """A stored value cannot be trusted or read."""


class MissingExtraError(CalispanError, ImportError):
    """An optional package is missing; the sentence names the extra that brings it."""


class CalispanWarning(UserWarning):
    """The result is defined, but probably not what was meant."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'tip-adapter'?"`, or nothing where no known name is near."""
    plain = {candidate.lower().replace("_", "-"): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower().replace("_", "-"), plain, n=1, cutoff=0.6)
    return f" Did you mean '{plain[near[0]]}'?" if near else ""
