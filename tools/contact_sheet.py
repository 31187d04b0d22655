"""Draw a contact sheet of every domain of the embedded world into docs/pictures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

import torch
from PIL import Image

from calispan.datasets.shapes import Domain, Shapes


def sheet(domain: Domain, *, columns: int = 10, rows: int = 6, size: int = 64) -> Image.Image:
    """Rows of different forms, every colour once a row."""
    world = Shapes(domain=domain, size=size)
    classes = len(world.classes)
    forms = classes // 10
    # One row a form, another image of the class on each of its turns.
    indices = [
        (row * 10 + column) % classes + classes * (row // forms) for row in range(rows) for column in range(columns)
    ]
    images, _ = world.draw("test", indices)
    grid = images.view(rows, columns, 3, size, size).permute(0, 3, 1, 4, 2).reshape(rows * size, columns * size, 3)
    return Image.fromarray(grid.contiguous().numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--rows", type=int, default=6)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for domain in get_args(Domain):
        rows = 10 if domain == "photo" else arguments.rows
        path = arguments.out / f"world-{domain}.png"
        sheet(domain, rows=rows).quantize(192, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)
        print(path, f"{path.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
