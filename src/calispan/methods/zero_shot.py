"""Zero-shot CLIP (Radford et al. 2021): the class directions are the text prototypes; nothing is learned."""

from __future__ import annotations

from dataclasses import dataclass

from calispan.core.contracts import Needs
from calispan.core.heads import CosineHead
from calispan.core.objective import Objective
from calispan.core.registry import method
from calispan.core.types import Problem


@method("zero-shot", paper="Radford et al. 2021")
@dataclass(frozen=True)
class ZeroShot:
    """Class directions are the text prototypes; nothing is learned."""

    needs = Needs.EMBEDDINGS
    starts_at_zero_shot = True

    def fit(self, problem: Problem, objective: Objective, *, seed: int) -> CosineHead:
        return CosineHead(problem.text, problem.logit_scale, problem.logit_bias)
