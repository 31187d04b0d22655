"""Names to plug-ins. A file in its folder registers itself; this is the only place that imports dynamically.

A plug-in of ours lives in `calispan/<folder>/`; one from outside declares an entry point in the group
`calispan.<folder>`. Both use the same decorators.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Generic, TypeVar, cast

from calispan.core.contracts import Backbone, Calibrator, Dataset, Method, Metric, TrainCalibration
from calispan.core.errors import CalispanWarning, RecipeError, UnknownNameError, did_you_mean

T = TypeVar("T")
P = TypeVar("P")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered name: a recipe class and the fields this name changes from the class's defaults."""

    kind: str
    name: str
    recipe: type[T]
    changes: Mapping[str, Any]
    paper: str

    @property
    def summary(self) -> str:
        """First sentence of the class's docstring."""
        return " ".join((self.recipe.__doc__ or "").split("\n\n")[0].split())

    @property
    def parameters(self) -> dict[str, Any]:
        """Hyper-parameters with the values this name gives them."""
        return {**_defaults(self.recipe), **self.changes}


def _defaults(recipe: type[Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in fields(recipe):
        if field.default is not MISSING:
            values[field.name] = field.default
        elif field.default_factory is not MISSING:
            values[field.name] = field.default_factory()
        else:
            values[field.name] = None
    return values


class Registry(Generic[T]):
    """The plug-ins of one kind."""

    def __init__(self, kind: str, folder: str) -> None:
        self.kind = kind
        self.folder = folder
        self._entries: dict[str, Entry[T]] = {}

    def register(
        self, name: str, *, paper: str = "", also: Mapping[str, Mapping[str, Any]] | None = None
    ) -> Callable[[type[P]], type[P]]:
        """Decorator for a recipe class. `also` names variants: {"ece-10": {"bins": 10}}."""

        def add(recipe: type[P]) -> type[P]:
            for variant, changes in {name: {}, **(also or {})}.items():
                known = self._entries.get(variant)
                if known is not None and known.recipe.__qualname__ != recipe.__qualname__:
                    raise ValueError(f"Two {self.kind}s want the name '{variant}': {known.recipe} and {recipe}.")
                self._entries[variant] = Entry(self.kind, variant, cast(type[T], recipe), changes, paper)
            return recipe

        return add

    def entries(self) -> list[Entry[T]]:
        """Every registered name, sorted."""
        load_folder(self.folder)
        return [self._entries[name] for name in sorted(self._entries)]

    def names(self) -> list[str]:
        return [entry.name for entry in self.entries()]

    def entry(self, name: str) -> Entry[T]:
        load_folder(self.folder)
        if name not in self._entries:
            known = ", ".join(sorted(self._entries))
            raise UnknownNameError(
                f"No {self.kind} is called '{name}'.{did_you_mean(name, self._entries)} Known: {known}."
            )
        return self._entries[name]

    def build(self, spec: str | T, **parameters: Any) -> T:
        """A recipe from a name, from `name:key=value,key=value`, or the recipe itself."""
        if not isinstance(spec, str):
            if not any(isinstance(spec, entry.recipe) for entry in self.entries()):
                raise RecipeError(
                    f"A {type(spec).__name__} came where a {self.kind} was wanted; pass a name or one of its recipes."
                )
            return spec
        name, given = parse_spec(spec)
        entry = self.entry(name)
        return build_recipe(entry, {**given, **parameters})

    def name_of(self, recipe: T) -> str:
        """The shortest spec that builds this recipe again."""
        candidates = [entry for entry in self.entries() if entry.recipe is type(recipe)]
        if not candidates:
            return type(recipe).__name__

        def differing(entry: Entry[T]) -> dict[str, Any]:
            return {k: getattr(recipe, k) for k, v in entry.parameters.items() if getattr(recipe, k) != v}

        best = min(candidates, key=lambda entry: (len(differing(entry)), len(entry.changes)))
        changed = ",".join(f"{key}={value}" for key, value in differing(best).items())
        return f"{best.name}:{changed}" if changed else best.name


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """`"sals:span=0.5"` -> `("sals", {"span": "0.5"})`."""
    name, _, rest = spec.strip().partition(":")
    given: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise RecipeError(f"'{part}' in '{spec}' is not key=value. Write {name}:key=value,key=value.")
        given[key.strip().replace("-", "_")] = value.strip()
    return name.strip(), given


def build_recipe(entry: Entry[T], given: Mapping[str, Any]) -> T:
    """The recipe with some fields set; text is read as the field's type, and a bad value is told by name."""
    known = {field.name for field in fields(entry.recipe)}  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            raise RecipeError(
                f"{entry.kind} '{entry.name}' has no parameter '{key}'.{did_you_mean(key, known)} "
                f"Known: {', '.join(sorted(known)) or 'none'}."
            )
    values = {**entry.changes, **given}
    if not given:
        return entry.recipe(**values)
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(entry.recipe).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "its values"
        said = re.sub(r"^(Value|Assertion) error, ", "", first["msg"]).rstrip(".")
        raise RecipeError(f"{entry.kind} '{entry.name}', {where}: {said} (came: {first['input']!r}).") from error


methods: Registry[Method] = Registry("method", "methods")
train_calibrations: Registry[TrainCalibration] = Registry("train calibration", "calibration")
calibrators: Registry[Calibrator] = Registry("calibrator", "calibration")
metrics: Registry[Metric] = Registry("metric", "metrics")
datasets: Registry[Dataset] = Registry("dataset", "datasets")
backbones: Registry[Backbone] = Registry("backbone", "backbones")

REGISTRIES: tuple[Registry[Any], ...] = (methods, train_calibrations, calibrators, metrics, datasets, backbones)

M = TypeVar("M", bound=Method)
C = TypeVar("C", bound=TrainCalibration)
A = TypeVar("A", bound=Calibrator)
E = TypeVar("E", bound=Metric)
Variants = Mapping[str, Mapping[str, Any]]


def method(name: str, *, paper: str = "", also: Variants | None = None) -> Callable[[type[M]], type[M]]:
    """Register a method."""
    return cast("Callable[[type[M]], type[M]]", methods.register(name, paper=paper, also=also))


def train_calibration(name: str, *, paper: str = "", also: Variants | None = None) -> Callable[[type[C]], type[C]]:
    """Register a calibration that acts inside the training loss."""
    return cast("Callable[[type[C]], type[C]]", train_calibrations.register(name, paper=paper, also=also))


def calibrator(name: str, *, paper: str = "", also: Variants | None = None) -> Callable[[type[A]], type[A]]:
    """Register a calibration that acts on scores."""
    return cast("Callable[[type[A]], type[A]]", calibrators.register(name, paper=paper, also=also))


def metric(name: str, *, paper: str = "", also: Variants | None = None) -> Callable[[type[E]], type[E]]:
    """Register a metric."""
    return cast("Callable[[type[E]], type[E]]", metrics.register(name, paper=paper, also=also))


_loaded: set[str] = set()


def load_folder(folder: str) -> None:
    """Import every plug-in file of a folder, and the entry points of its group, once."""
    if folder in _loaded:
        return
    _loaded.add(folder)
    for module in sorted(_modules(_path(folder))):
        importlib.import_module(f"calispan.{folder}.{module}")
    for point in importlib.metadata.entry_points(group=f"calispan.{folder}"):
        try:
            point.load()
        except Exception as error:  # another package's fault must not take this one down
            warnings.warn(f"Plug-in '{point.name}' ({point.value}) did not load: {error!r}.", CalispanWarning, 3)


def _path(folder: str) -> Any:
    try:
        return importlib.import_module(f"calispan.{folder}").__path__
    except ModuleNotFoundError as error:
        if error.name != f"calispan.{folder}":
            raise
        return []  # a kind of which we bring none: entry points alone may fill it


def _modules(path: Any) -> Iterator[str]:
    return (found.name for found in pkgutil.iter_modules(path) if not found.name.startswith("_"))


def load_everything() -> None:
    """Import the plug-ins of every kind."""
    for registry in REGISTRIES:
        load_folder(registry.folder)


def recipe(spec: str, **parameters: Any) -> Any:
    """A recipe of any kind by its name: `recipe("sals", span=0.5)`."""
    name, given = parse_spec(spec)
    known: list[str] = []
    for registry in REGISTRIES:
        if name in registry.names():
            return build_recipe(registry.entry(name), {**given, **parameters})
        known += registry.names()
    raise UnknownNameError(f"Nothing is called '{name}'.{did_you_mean(name, known)} See `calispan ls`.")
