"""`calispan ls`: what there is, with the idea, the paper and the parameters of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calispan.core.errors import UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from calispan.core.registry import Entry, Registry

_FOLDERS = {name: name for name in ("methods", "metrics", "datasets", "backbones")} | {"calibrations": "calibration"}
KINDS = ("methods", "calibrations", "metrics", "datasets", "backbones")


def ls(
    kind: Annotated[str | None, typer.Argument(help=f"One of {', '.join(KINDS)}; all of them without it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list of objects on stdout.")] = False,
) -> None:
    """List methods, calibrations, metrics, datasets and backbones, with their parameters."""
    if kind is not None and kind not in KINDS:
        raise UnknownNameError(f"No kind is called '{kind}'.{did_you_mean(kind, KINDS)} Known: {', '.join(KINDS)}.")
    listed = {name: items_of(name) for name in ([kind] if kind else KINDS)}
    if as_json:
        print(json.dumps([item for items in listed.values() for item in items], indent=2))
    else:
        _show(listed)


def items_of(kind: str) -> list[dict[str, Any]]:
    """Every registered name of a kind, as plain values."""
    from calispan.core import registry

    sources: dict[str, list[tuple[Registry[Any], dict[str, str]]]] = {
        "methods": [(registry.methods, {})],
        "calibrations": [(registry.train_calibrations, {"when": "during"}), (registry.calibrators, {"when": "after"})],
        "metrics": [(registry.metrics, {})],
        "datasets": [(registry.datasets, {})],
        "backbones": [(registry.backbones, {})],
    }
    return [
        {"kind": kind.removesuffix("s"), **_item(entry, source), **extra, **_traits(kind, entry, extra)}
        for source, extra in sources[kind]
        for entry in source.entries()
    ]


def _item(entry: Entry[Any], source: Registry[Any]) -> dict[str, Any]:
    bases = [other.name for other in source.entries() if other.recipe is entry.recipe and not other.changes]
    return {
        "name": entry.name,
        "summary": entry.summary,
        "paper": entry.paper,
        "parameters": plain(entry.parameters),
        "variant_of": bases[0] if entry.changes and bases else None,
        "changes": sorted(entry.changes),
    }


def _traits(kind: str, entry: Entry[Any], extra: Mapping[str, str]) -> dict[str, Any]:
    """What else a user chooses by: what it must be given, which end is better."""
    recipe = entry.recipe
    if kind == "metrics":
        needs = {"labels": recipe.needs_labels, "zero-shot": recipe.needs_zero_shot}
        return {"needs": [name for name, wanted in needs.items() if wanted], "lower_is_better": recipe.lower_is_better}
    if kind == "methods" or extra.get("when") == "after":
        return {"needs": _flags(_own(entry, "needs"))}
    return {}


def _own(entry: Entry[Any], trait: str) -> Any:
    """A trait of the recipe as this name builds it; a recipe that cannot be built bare is asked as a class."""
    try:
        return getattr(entry.recipe(**entry.changes), trait)
    except TypeError:
        return getattr(entry.recipe, trait)


def _flags(needs: Any) -> list[str]:
    return [str(flag.name).lower().replace("_", "-") for flag in type(needs) if flag.value and flag in needs]


def plain(value: Any) -> Any:
    """A parameter as JSON can hold it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if abs(value) < float("inf") else str(value)
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case Sequence():
            return [plain(item) for item in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return plain(asdict(value))
        case _:
            return str(value)


def _show(listed: Mapping[str, list[dict[str, Any]]]) -> None:
    from rich.text import Text

    from calispan.cli._console import Page

    console = Page()
    for kind, items in listed.items():
        if not items:
            console.print(Text(f"{kind}: none yet", style="bold"))
            console.print(
                f"A file in {_FOLDERS[kind]}/ or an entry point of the group calispan.{_FOLDERS[kind]} adds one.\n"
            )
        for when in dict.fromkeys(item.get("when") for item in items):
            part = [item for item in items if item.get("when") == when]
            console.print(Text(f"{kind}{f' {when} training' if when else ''} ({len(part)})", style="bold"))
            console.print(_table(part))


def _table(items: Sequence[Mapping[str, Any]]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, leading=1)
    table.add_column("name", no_wrap=True)
    table.add_column("idea (paper), parameters with their defaults")
    for item in items:
        table.add_row(item["name"], Text("\n".join(_lines(item))))
    return table


def _lines(item: Mapping[str, Any]) -> list[str]:
    if item["variant_of"]:
        changed = ", ".join(f"{key}={_short(item['parameters'][key])}" for key in item["changes"])
        return [f"{item['variant_of']} with {changed}"]
    paper = f" ({item['paper']})" if item["paper"] else ""
    given = ", ".join(f"{key}={_short(value)}" for key, value in item["parameters"].items())
    needs = f"needs {', '.join(item['needs'])}" if item.get("needs") else ""
    return [item["summary"].rstrip(".") + paper, *filter(None, (given, needs))]


def _short(value: Any) -> str:
    return "none" if value is None else str(value)
