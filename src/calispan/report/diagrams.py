"""Reliability diagram: how often the model is right against how sure it says it is, bin by bin.

A calibrated model's bars end on the diagonal. What is missing (or to spare) is shaded from the bin's accuracy to its
mean confidence; the shares of rows below say how much each bin weighs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calispan.core.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from calispan.core.reliability import Reliability

FORMATS = (".png", ".svg", ".pdf")

# Blue, vermilion and bluish green stay apart under every common colour blindness; hatches tell them apart in grey.
_RIGHT = "#9cc3e5"
_OVER = "#d55e00"
_UNDER = "#00795a"
_INK = "#333333"


@dataclass(frozen=True)
class _Bin:
    left: float
    width: float
    share: float
    confidence: float
    accuracy: float


def reliability_diagram(states: Mapping[str, Reliability]) -> Figure:
    """A panel for each state, side by side, titled with its name and its ECE."""
    from matplotlib.figure import Figure

    empty = [name for name, state in states.items() if not int(state.counts.sum())]
    if not states or empty:
        raise InputError(
            f"A reliability diagram wants states that have seen rows; came {empty or 'none'}. Update them first."
        )
    figure = Figure(figsize=(0.8 + 3.6 * len(states), 5.8 if len(states) > 1 else 6.1), dpi=150, layout="constrained")
    grid = figure.subplots(
        2, len(states), sharex=True, sharey="row", squeeze=False, gridspec_kw={"height_ratios": [3.4, 1]}
    )
    for column, (name, state) in enumerate(states.items()):
        bins = _bins(state)
        _accuracy_panel(grid[0, column], bins)
        _share_panel(grid[1, column], bins)
        title = f"ECE {state.compute():.4f}, {state.bins} bins"
        grid[0, column].set_title(f"{name}\n{title}" if name else title, color=_INK, fontsize=11)
    grid[0, 0].set_ylabel("accuracy", color=_INK)
    grid[1, 0].set_ylabel("share of rows", color=_INK)
    _legend(figure)
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as png, svg or pdf, by the suffix; folders are made, and the name is given to a whole file."""
    target = checked_path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, staged = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}.", suffix=target.suffix)
    except OSError as error:
        raise InputError(
            f"{target} cannot be written ({error.strerror}: {error.filename}). Choose another path."
        ) from error
    os.close(handle)
    try:
        figure.savefig(staged, format=target.suffix.lower().removeprefix("."))
        os.chmod(staged, 0o644)
        os.replace(staged, target)
    except OSError as error:
        raise InputError(f"{target} cannot be written ({error.strerror}). Choose another path.") from error
    finally:
        Path(staged).unlink(missing_ok=True)
    return target


def checked_path(path: str | os.PathLike[str]) -> Path:
    """A path a figure can be written to, told before any work is done."""
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise InputError(
            f"{target} ends in '{target.suffix}'; a diagram is written as {', '.join(FORMATS)}. Name it diagram.png."
        )
    if target.is_dir():
        raise InputError(f"{target} is a folder; name a file in it, such as {target / 'diagram.png'}.")
    return target


def _bins(state: Reliability) -> list[_Bin]:
    """The bins that hold rows."""
    total, width = float(state.counts.sum()), 1 / state.bins
    return [
        _Bin(index * width, width, count / total, confidence, accuracy)
        for index, (count, confidence, accuracy) in enumerate(
            zip(state.counts.tolist(), state.confidence.tolist(), state.accuracy.tolist(), strict=True)
        )
        if count
    ]


def _accuracy_panel(axes: Axes, bins: Sequence[_Bin]) -> None:
    for cell in bins:
        over = cell.confidence > cell.accuracy
        axes.bar(
            cell.left, cell.accuracy, cell.width, align="edge", color=_RIGHT, edgecolor="white", linewidth=0.8, zorder=2
        )
        axes.bar(
            cell.left,
            abs(cell.confidence - cell.accuracy),
            cell.width,
            bottom=min(cell.confidence, cell.accuracy),
            align="edge",
            color=(_OVER if over else _UNDER, 0.18),
            edgecolor=_OVER if over else _UNDER,
            hatch="////" if over else "....",
            linewidth=0.8,
            zorder=3,
        )
    axes.plot([0, 1], [0, 1], color=_INK, linestyle=(0, (4, 3)), linewidth=1, zorder=4)
    axes.set_ylim(0, 1)
    axes.set_xlim(0, 1)
    _plain(axes)


def _share_panel(axes: Axes, bins: Sequence[_Bin]) -> None:
    for cell in bins:
        axes.bar(
            cell.left, cell.share, cell.width, align="edge", color="#b8b8b8", edgecolor="white", linewidth=0.8, zorder=2
        )
    accuracy = sum(cell.share * cell.accuracy for cell in bins)
    confidence = sum(cell.share * cell.confidence for cell in bins)
    axes.axvline(accuracy, color=_INK, linewidth=1.4, zorder=4)
    axes.axvline(confidence, color=_OVER, linewidth=1.4, linestyle=(0, (2, 1.5)), zorder=4)
    axes.set_xlabel("confidence", color=_INK)
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, labelsize=9, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=_RIGHT, label="accuracy"),
        Patch(facecolor=(_OVER, 0.18), edgecolor=_OVER, hatch="////", label="over-confidence"),
        Patch(facecolor=(_UNDER, 0.18), edgecolor=_UNDER, hatch="....", label="under-confidence"),
        Line2D([], [], color=_INK, linewidth=1.4, label="mean accuracy"),
        Line2D([], [], color=_OVER, linewidth=1.4, linestyle=(0, (2, 1.5)), label="mean confidence"),
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=2 if len(figure.axes) == 2 else 5, frameon=False, fontsize=9
    )
