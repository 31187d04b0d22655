import importlib.metadata
from dataclasses import dataclass

import pytest

from calispan.core import registry
from calispan.core.errors import CalispanWarning, RecipeError, UnknownNameError
from calispan.core.registry import REGISTRIES, Registry, methods, parse_spec, recipe


def test_every_name_is_unique_across_kinds():
    names = [name for reg in REGISTRIES for name in reg.names()]
    assert len(names) == len(set(names))


def test_every_plug_in_says_what_it_is():
    for reg in REGISTRIES:
        for entry in reg.entries():
            assert len(entry.summary) > 10, entry.name
            assert not entry.summary.startswith(entry.recipe.__name__ + "("), f"{entry.name} lacks a docstring"
            assert entry.name == entry.name.lower().replace("_", "-")


def test_names_specs_and_recipes_build_the_same():
    by_spec = methods.build("task-res:alpha=0.7,epochs=3")
    assert by_spec == methods.build("task-res", alpha=0.7, epochs=3) == recipe("task-res", alpha=0.7, epochs=3)
    assert methods.build(by_spec) is by_spec
    assert methods.name_of(by_spec) == "task-res:epochs=3,alpha=0.7"
    assert methods.build(methods.name_of(by_spec)) == by_spec


def test_variants_are_shortest_names():
    assert methods.name_of(methods.build("zs-lp")) == "zs-lp"
    assert methods.name_of(methods.build("tip-adapter-f@paper")) == "tip-adapter-f@paper"
    assert methods.entry("zs-lp").parameters["start"] == "zero-shot"


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("tip_adaptor", UnknownNameError, "Did you mean 'tip-adapter'?"),
        ("nothing-like-it", UnknownNameError, "Known: clap"),
        ("task-res:alfa=1", RecipeError, "Did you mean 'alpha'?"),
        ("task-res:alpha=much", RecipeError, "alpha: Input should be a valid number"),
        ("task-res:alpha", RecipeError, "not key=value"),
        ("task-res:epochs=-3", RecipeError, "epochs >= 0"),
        (42, RecipeError, "A int came where a method was wanted"),
    ],
)
def test_bad_specs_are_told(spec, error, said):
    with pytest.raises(error) as caught:
        methods.build(spec)
    assert said in str(caught.value)
    assert str(caught.value) == str(caught.value.args[0]), "no quotes around the sentence"


def test_specs_parse():
    assert parse_spec("a:b=1, c-d=x") == ("a", {"b": "1", "c_d": "x"})
    assert parse_spec("a") == ("a", {})


def test_unknown_name_of_any_kind():
    with pytest.raises(UnknownNameError, match="Did you mean 'task-res'"):
        recipe("taskres")


def test_two_plug_ins_cannot_share_a_name():
    shelf = Registry("thing", "methods")
    shelf.register("same")(dataclass(type("First", (), {})))
    with pytest.raises(ValueError, match="Two things want the name 'same'"):
        shelf.register("same")(dataclass(type("Second", (), {})))


def test_plug_ins_from_outside_come_by_entry_point(monkeypatch):
    class Point:
        name, value = "outside", "somewhere:Outside"

        def load(self):
            methods.register("outside-method")(dataclass(type("Outside", (), {"__doc__": "A method from outside."})))

    class Broken(Point):
        name = "broken"

        def load(self):
            raise ImportError("gone")

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [Point(), Broken()])
    monkeypatch.setattr(registry, "_loaded", set())
    monkeypatch.setattr(methods, "_entries", dict(methods._entries))
    with pytest.warns(CalispanWarning, match="'broken'.*did not load"):
        assert "outside-method" in methods.names()
