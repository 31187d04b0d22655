"""`calispan demo`: the whole story in under a minute, on a world made of features.

Few shots raise accuracy where they were taken and widen the logits; under shift the wider logits are wrong with
confidence; holding their range to zero-shot's mends that without moving a prediction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from calispan.core.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

METHODS = ("zero-shot", "zs-lp", "clip-adapter", "tip-adapter-f", "task-res")
CURES: tuple[tuple[str, dict[str, tuple[str, ...]]], ...] = (
    ("none", {}),
    ("zs-norm", {"during": ("zs-norm",)}),
    ("penalty", {"during": ("penalty",)}),
    ("sals", {"after": ("sals",)}),
)
METRICS = ("accuracy", "ece-10", "ece-15", "nll", "brier", "range-inflation")
BACKBONE = "feature-world"
SOURCE = "photo"
OUT = Path("runs/demo")


def demo(
    out: Path = typer.Option(OUT, "--out", help="Folder for results and pictures."),
    shots: int = typer.Option(16, "--shots", min=1, help="Labelled rows a class."),
    seeds: int = typer.Option(1, "--seeds", min=1, help="How many worlds and trainings."),
    as_json: bool = typer.Option(False, "--json", help="The records on stdout instead of the table."),
) -> None:
    """Adapt, shift, calibrate: watch accuracy rise, confidence break, and SaLS mend it."""
    from rich.console import Console

    from calispan.core.reliability import Reliability
    from calispan.report.diagrams import reliability_diagram, save_figure

    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; --out wants a folder. Choose another path.")
    out.mkdir(parents=True, exist_ok=True)
    states = {name: Reliability(bins=15) for name in ("zero-shot", "zs-lp", "zs-lp, sals")}
    records = list(run(shots, seeds, states))
    results, picture = out / "results.json", out / "reliability.png"
    results.write_text(json.dumps(records, indent=2) + "\n")
    save_figure(reliability_diagram(states), picture)
    if as_json:
        print(json.dumps(records, indent=2))
        return
    console = Console()
    console.print(table(records))
    console.print(
        "Adapters learn the source and widen their logits: range is that of the logits over that of the zero-shot "
        "logits. Under shift the width is false confidence, and ECE grows with it. sals holds the range afterwards, "
        "with no labels and without moving a prediction; zs-norm and penalty act while training. In the source "
        "itself a head held by sals can be less sure than it is right.",
        highlight=False,
    )
    console.print(f"Records: {results}\nReliability under shift: {picture}", highlight=False)


def run(shots: int, seeds: int, states: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every cell of the demo as a record. A cell that differs only after training is not trained again."""
    import calispan as cs
    from calispan.core.training import progress
    from calispan.testing.world import feature_world

    cells = [(seed, method, cure) for seed in range(seeds) for method in METHODS for cure in CURES]
    worlds = {seed: feature_world(shots=shots, seed=seed) for seed in range(seeds)}
    models: dict[Any, cs.Model] = {}
    for number in progress(range(len(cells)), "demo"):
        seed, method, (cure, calibration) = cells[number]
        during, after = calibration.get("during", ()), calibration.get("after", ())
        if method == "zero-shot" and cure != "none":
            continue
        if (seed, method, during) not in models:
            models[seed, method, during] = cs.fit(worlds[seed].problem, method, during=during, seed=seed)
        for domain, rows in worlds[seed].domains.items():
            assert rows.labels is not None
            scores = models[seed, method, during](rows)
            if after:
                scores = cs.calibrate(scores, after)
            shown = f"{method}, {cure}" if cure != "none" else method
            if shown in states and domain != SOURCE:
                states[shown].update(cs.Rows(scores, rows.labels))
            yield {
                "backbone": BACKBONE,
                "method": method,
                "during": list(during),
                "after": list(after),
                "dataset": domain,
                "shots": shots,
                "seed": seed,
                "metrics": cs.evaluate(scores, rows.labels, metrics=METRICS),
            }


def table(records: list[dict[str, Any]]) -> Table:
    """Means over seeds: the source, and the mean of the shifts. Arrows compare with the same method uncalibrated."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    shown = Table(box=SIMPLE_HEAD, pad_edge=False, title=f"{records[0]['shots']} shots a class", title_justify="left")
    for heading in ("method", "calibration"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("photo\nacc", "\nECE", "\nrange", "shifts\nacc", "\nECE", "\nrange"):
        shown.add_column(heading, justify="right", no_wrap=True)

    def mean(method: str, cure: str, metric: str, *, shifted: bool) -> float:
        values: list[float] = [
            record["metrics"][metric]
            for record in records
            if record["method"] == method
            and (record["dataset"] != SOURCE) == shifted
            and "+".join(record["during"] + record["after"]) == ("" if cure == "none" else cure)
        ]
        return sum(values) / len(values)

    for method in METHODS:
        for cure, _ in CURES if method != "zero-shot" else CURES[:1]:
            cells: list[str] = []
            for shifted in (False, True):
                ece, before = (mean(method, name, "ece-15", shifted=shifted) for name in (cure, "none"))
                arrow = " " if cure == "none" or abs(ece - before) < 0.001 else "↓" if ece < before else "↑"
                cells += [
                    f"{100 * mean(method, cure, 'accuracy', shifted=shifted):.1f}",
                    f"{100 * ece:.1f} {arrow}",
                    f"x{mean(method, cure, 'range-inflation', shifted=shifted):.2f}",
                ]
            shown.add_row(method if cure == "none" else "", cure, *cells, end_section=cure == CURES[-1][0])
    return shown
