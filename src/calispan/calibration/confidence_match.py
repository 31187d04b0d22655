"""Confidence matching: the temperature, row by row, at which the top probability is the zero-shot model's.

With c(x) = max softmax(x), solve c(l / tau) = c(z). CoTS does so over augmented views of an image; on a single
view its loss can be driven to zero, and this is that case. The two winners need not be the same class.

It is solved for beta = 1 / tau in log-odds, h(beta) = log((1 - c) / c) = logsumexp_{k not winner} beta (l_k - max l):
convex and falling, so Newton's method, once left of the root, walks up to it and never beyond. Log-odds stay exact
where c itself rounds to 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calispan.core.contracts import Evidence, Given
from calispan.core.registry import calibrator
from calispan.core.score_maps import keep_argmax, map_logits, map_rows
from calispan.core.store import storable
from calispan.core.types import Scores

_LEAST, _MOST = math.exp(-5), math.exp(5)  # bounds of beta and of tau
_STEPS = 100  # seldom more than 8 are walked


@calibrator("confidence-match", paper="CoTS (Liang et al. 2026) on a single view")
@dataclass(frozen=True)
class ConfidenceMatch:
    """Give each row the confidence of its zero-shot logits, through a temperature of its own; no labels.

    Rows without such a temperature end at the bounds exp(-5) and exp(5): a flat zero-shot row asks for an infinite
    one, m tied winners cannot exceed 1/m. Flat rows stay as they are.
    """

    keeps_argmax = True
    needs = Evidence.NOTHING

    def fit(self, given: Given) -> ZeroShotConfidence:
        return ZeroShotConfidence()


@storable("zero-shot-confidence")
@dataclass(frozen=True)
class ZeroShotConfidence:
    """The map; logits come out with their maximum at 0, where floats are finest."""

    def __call__(self, scores: Scores) -> Scores:
        return map_logits(scores, lambda s: keep_argmax(s.logits, map_rows(_matched, s.logits, s.zero_shot)))


def _matched(logits: Tensor, zero_shot: Tensor) -> Tensor:
    below = logits - logits.amax(dim=-1, keepdim=True)
    return below * matching_inverse_temperature(logits, zero_shot)[:, None]


def matching_inverse_temperature(logits: Tensor, zero_shot: Tensor) -> Tensor:
    """beta = 1 / tau of every row, in float64. [n, c], [n, c] -> [n]"""
    logits, zero_shot = logits.double(), zero_shot.double()
    beta = torch.ones(len(logits), dtype=torch.float64, device=logits.device)
    span, span0 = (x.amax(dim=-1) - x.amin(dim=-1) for x in (logits, zero_shot))
    if logits.shape[-1] == 1:
        return beta
    gap, rest = _behind_the_winner(logits)
    target = _log_odds(*_behind_the_winner(zero_shot), beta)[0]
    active = (span > 0).nonzero()[:, 0]  # rows still on their way; a flat row has no temperature
    beta[active] = (span0 / span)[active].clamp(_LEAST, _MOST)
    for _ in range(_STEPS):
        now = beta[active]
        odds, slope = _log_odds(gap[active], rest[active], now)
        off = odds - target[active]
        new = (now - off / slope.clamp_max(-1e-300)).clamp(_LEAST, _MOST)
        going = (off.abs() > 1e-11 * (1 + target[active].abs())) & (new != now)
        active = active[going]
        if not len(active):
            break
        beta[active] = new[going]
    return beta


def _behind_the_winner(logits: Tensor) -> tuple[Tensor, Tensor]:
    """How far the second is behind the winner, and every other behind that second. [n, c] -> [n], [n, c]"""
    top, winner = logits.max(dim=-1, keepdim=True)
    others = logits.scatter(-1, winner, -math.inf)
    second = others.amax(dim=-1, keepdim=True)
    # The winner's own entry is finite and far below: its exponential is 0, and 0 times it is no NaN.
    return (top - second)[:, 0], (others - second).clamp_min(-1e30)


def _log_odds(gap: Tensor, rest: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """log((1 - c) / c) at an inverse temperature, and its slope. [n], [n, c], [n] -> [n], [n]"""
    weights = (rest * beta[:, None]).exp_()
    total = weights.sum(dim=-1)  # the second itself counts 1, so this is no smaller
    slope = torch.linalg.vecdot(weights, rest) / total - gap
    return total.log() - beta * gap, slope
