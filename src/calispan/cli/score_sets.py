"""Logits, zero-shot logits and labels of the same rows, in files: opened together, met chunk by chunk."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor

from calispan.cli.score_files import Table, open_table
from calispan.cli.score_place import Place
from calispan.core.errors import InputError
from calispan.core.types import Scores

PATIENCE = 2.0  # seconds before a progress bar is worth its line
_CHUNK_NUMBERS = 1 << 22  # logits held at a time: 16 MiB of float32


@dataclass(frozen=True)
class ScoreSet:
    """Logits, zero-shot logits and labels of the same rows, in files."""

    logits: Table
    zero_shot: Table | None
    labels: Table | None

    @classmethod
    def open(cls, logits: str, zero_shot: str | None, labels: str | None) -> ScoreSet:
        not_classes: dict[Path, set[str]] = {}
        for typed, role in ((logits, "logits"), (zero_shot, "zero-shot logits"), (labels, "labels")):
            place = None if typed is None else Place.of(typed, role)
            if place is not None and place.key is not None:  # a column chosen by name is not a class of another table
                not_classes.setdefault(place.path.resolve(), set()).add(place.key)
        files = cls(
            open_table(logits, "logits", not_classes=not_classes),
            None if zero_shot is None else open_table(zero_shot, "zero-shot logits", not_classes=not_classes),
            None if labels is None else open_table(labels, "labels"),
        )
        if files.zero_shot is not None and files.zero_shot.columns != files.classes:
            raise InputError(
                f"{files.zero_shot.source} has {files.zero_shot.columns} classes but {files.logits.source} has "
                f"{files.classes}; both must score the same classes in the same order."
            )
        files._same_rows([table.rows for table in files._tables])
        return files

    @property
    def classes(self) -> int:
        return self.logits.columns

    @property
    def rows(self) -> int | None:
        """None where only reading to the end can tell."""
        return next((table.rows for table in self._tables if table.rows is not None), None)

    @property
    def _tables(self) -> list[Table]:
        return [table for table in (self.logits, self.zero_shot, self.labels) if table is not None]

    def chunks(self, size: int | None = None) -> Iterator[tuple[Scores, Tensor | None]]:
        """Rows of all files side by side."""
        size = size or max(1, _CHUNK_NUMBERS // self.classes)
        counted = [0] * len(self._tables)
        for parts in zip_longest(*(table.read(size) for table in self._tables)):
            sizes = [0 if part is None else len(part) for part in parts]
            counted = [before + more for before, more in zip(counted, sizes, strict=True)]
            if len(set(counted)) > 1:
                continue  # one file has ended: read on only to tell how long the others are
            given = iter(parts)
            logits = next(given)
            zero_shot = None if self.zero_shot is None else next(given)
            yield Scores(logits, zero_shot), next(given, None)
        self._same_rows(counted)
        if counted[0] == 0:
            raise InputError(f"{self.logits.source} holds no rows. Write the logits again.")

    def whole(self) -> tuple[Scores, Tensor | None]:
        """Every row at once; for a held-out set that calibrators are fitted on."""
        parts = list(self.chunks())
        logits = torch.cat([scores.logits for scores, _ in parts])
        zero_shot = None if self.zero_shot is None else torch.cat([scores.zero_shot for scores, _ in parts])
        labels = [part for _, part in parts if part is not None]
        return Scores(logits, zero_shot), torch.cat(labels) if labels else None

    def with_progress(self, size: int | None = None) -> Iterator[tuple[Scores, Tensor | None]]:
        """The chunks, with a bar on stderr once they take long; none where stderr is no terminal."""
        from tqdm import tqdm

        with tqdm(
            total=self.rows,
            unit=" rows",
            unit_scale=True,
            delay=PATIENCE,
            leave=False,
            file=sys.stderr,
            disable=not sys.stderr.isatty(),
        ) as bar:
            for scores, labels in self.chunks(size):
                yield scores, labels
                bar.update(len(scores))

    @contextmanager
    def named(self) -> Iterator[None]:
        """Complaints about the values tell the file they came from."""
        try:
            yield
        except InputError as error:
            said = str(error)
            if any(table.source in said for table in self._tables):
                raise
            table = self.labels if said.startswith("Label") else self.logits
            table = self.zero_shot if said.startswith("Zero-shot") else table
            raise InputError(f"{(table or self.logits).source}: {said}") from error

    def _same_rows(self, counts: Sequence[int | None]) -> None:
        known = [(table, rows) for table, rows in zip(self._tables, counts, strict=True) if rows is not None]
        if len({rows for _, rows in known}) < 2:
            return
        told = ", ".join(f"{table.source} has {rows}" for table, rows in known)
        hint = ""
        if any(Place.of(table.source, "rows").suffix == ".csv" for table, _ in known):
            hint = " The first line of a csv file is taken as titles unless it is numbers."
        raise InputError(f"The files differ in rows: {told}. Pass files of the same rows in the same order.{hint}")
