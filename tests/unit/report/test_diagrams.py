"""The diagram shows the state's own numbers, and its file appears whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from calispan.core.errors import InputError
from calispan.core.reliability import Reliability
from calispan.core.rows import Rows
from calispan.core.types import Scores
from calispan.report import reliability_diagram, save_figure

# Two classes at these confidences, right or wrong. Bins of ten: 0.6 | 0.7 | 0.9 | 1.0
CONFIDENCE = [0.55, 0.58, 0.65, 0.85, 0.88, 0.95, 0.97, 0.99]
RIGHT = [1, 1, 0, 0, 1, 1, 1, 1]


def state(confidence: list[float] = CONFIDENCE, right: list[int] = RIGHT, bins: int = 10) -> Reliability:
    sure = torch.tensor(confidence, dtype=torch.float64)
    made = Reliability(bins)
    made.update(Rows(Scores(torch.stack([sure, 1 - sure], dim=1).log()), 1 - torch.tensor(right)))
    return made


def bars(axes: Axes, *, hatched: bool) -> list[Rectangle]:
    return [bar for container in axes.containers for bar in container if bool(bar.get_hatch()) is hatched]


def test_bars_end_at_the_accuracy_and_gaps_at_the_mean_confidence() -> None:
    axes = reliability_diagram({"before": state()}).axes[0]
    drawn = {round(bar.get_x(), 6): (bar.get_height(), bar.get_width()) for bar in bars(axes, hatched=False)}
    assert drawn.keys() == {0.5, 0.6, 0.8, 0.9}  # the other bins hold no rows
    assert [height for height, _ in drawn.values()] == pytest.approx([1, 0, 0.5, 1])
    assert {round(width, 6) for _, width in drawn.values()} == {0.1}
    gaps = {round(bar.get_x(), 6): bar for bar in bars(axes, hatched=True)}
    ends = [(gaps[x].get_y(), gaps[x].get_y() + gaps[x].get_height()) for x in (0.5, 0.6, 0.8, 0.9)]
    wanted = [(0.565, 1), (0, 0.65), (0.5, 0.865), (0.97, 1)]  # under, over, over, under
    assert ends == [pytest.approx(pair) for pair in wanted]


def test_over_and_under_confidence_differ_by_hatch_as_well_as_colour() -> None:
    axes = reliability_diagram({"": state()}).axes[0]
    under, over, *_ = sorted(bars(axes, hatched=True), key=Rectangle.get_x)
    assert under.get_hatch() != over.get_hatch()
    assert to_rgb(under.get_edgecolor()) != to_rgb(over.get_edgecolor())


def test_the_title_names_the_panel_its_error_and_its_bins() -> None:
    # By hand: (2 * 0.435 + 1 * 0.65 + 2 * 0.365 + 3 * 0.03) / 8 = 0.2925
    figure = reliability_diagram({"before": state(), "after sals": state([0.7, 0.7], [1, 0], bins=15)})
    assert [axes.get_title() for axes in figure.axes[:2]] == [
        "before\nECE 0.2925, 10 bins",
        "after sals\nECE 0.2000, 15 bins",
    ]
    assert reliability_diagram({"": state()}).axes[0].get_title() == "ECE 0.2925, 10 bins"


def test_the_panel_below_holds_shares_of_rows_and_both_means() -> None:
    axes = reliability_diagram({"before": state()}).axes[1]
    assert [bar.get_height() for bar in bars(axes, hatched=False)] == pytest.approx([2 / 8, 1 / 8, 2 / 8, 3 / 8])
    means = [float(line.get_xdata()[0]) for line in axes.lines]
    assert means == pytest.approx([sum(RIGHT) / 8, sum(CONFIDENCE) / 8])


def test_no_state_and_a_state_without_rows_are_refused() -> None:
    with pytest.raises(InputError, match="none"):
        reliability_diagram({})
    with pytest.raises(InputError, match="after"):
        reliability_diagram({"before": state(), "after": Reliability(10)})


def test_who_reads_the_old_file_keeps_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "diagram.png"
    path.write_bytes(b"old")
    with path.open("rb") as old:
        save_figure(reliability_diagram({"": state()}), path)
        assert old.read() == b"old"
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")])
def test_the_suffix_decides_the_format_and_folders_are_made(tmp_path: Path, suffix: str, start: bytes) -> None:
    path = tmp_path / "new" / "folder" / f"diagram{suffix}"
    assert save_figure(reliability_diagram({"": state()}), path) == path
    assert path.read_bytes().startswith(start)
    assert list(path.parent.iterdir()) == [path]


def test_a_figure_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "diagram.png"
    path.write_bytes(b"old")

    def half(self: Figure, target: str, **options: object) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(InputError, match="No space left"):
        save_figure(Figure(), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_names_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").mkdir()
    for path, said in [
        ("a.jpeg", r"\.png, \.svg, \.pdf"),
        ("folder.png", "is a folder"),
        ("file/a.png", "File exists"),
    ]:
        with pytest.raises(InputError, match=said):
            save_figure(Figure(), tmp_path / path)


def test_matplotlib_comes_when_asked_for_and_without_its_global_state(tmp_path: Path) -> None:
    code = "import sys, calispan.report.diagrams as d; assert 'matplotlib' not in sys.modules; "
    code += "from matplotlib.figure import Figure; d.save_figure(Figure(), sys.argv[1]); "
    code += "assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, tmp_path / "a.png"], check=True)
