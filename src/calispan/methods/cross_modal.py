"""Cross-modal adaptation (Lin et al. 2023): the text prototypes are training rows too, beside the images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from calispan.core.adapting import zero_shot_logits
from calispan.core.contracts import Needs
from calispan.core.heads import CosineHead, cosine_logits
from calispan.core.objective import Objective, cross_entropy
from calispan.core.registry import method
from calispan.core.sampling import generator
from calispan.core.training import Bank, Training, minimise
from calispan.core.types import Problem, Scores


@method("cross-modal", paper="Lin et al. 2023")
@dataclass(frozen=True)
class CrossModal(Training):
    """A linear probe from the prototypes whose batches hold as many text rows as image rows."""

    needs = Needs.EMBEDDINGS
    starts_at_zero_shot = True

    def fit(self, problem: Problem, objective: Objective, *, seed: int) -> CosineHead:
        weights = problem.text.detach().clone().requires_grad_()
        prototypes = F.normalize(problem.text, dim=-1)
        zero_shot = zero_shot_logits(problem)
        bank = Bank.of(problem.support)
        text_of = self._text_rows(problem, len(bank.features), seed)
        scale, bias = problem.logit_scale, problem.logit_bias

        def loss_of(features: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
            drawn = text_of.index_select(0, rows)
            both = torch.cat([features, prototypes[drawn]])
            logits = cosine_logits(both, weights, scale, bias)
            scores = Scores(logits, lambda: zero_shot(both))
            return objective(cross_entropy, scores, torch.cat([labels, drawn]))

        minimise(self, [weights], bank, loss_of, seed=seed)
        return CosineHead(weights.detach(), scale, bias)

    def _text_rows(self, problem: Problem, count: int, seed: int) -> Tensor:
        """The class whose text goes into a batch beside each row of the bank: every class equally often, shuffled.

        The published batch is half image, half text. Classes are counted by name, not by position, so their order
        changes nothing.
        """
        by_name = torch.tensor(sorted(range(len(problem.classes)), key=problem.classes.__getitem__))
        order = torch.randperm(count, generator=generator(seed, "text rows"))
        return by_name[order % len(by_name)].to(problem.text.device)
