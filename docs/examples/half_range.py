"""Half range: the logits of a row, held to half the zero-shot range where they exceed it."""

from dataclasses import dataclass

import calispan as cs


@cs.storable("half-range-map")
@dataclass(frozen=True)
class HalfRangeMap:
    share: float

    def __call__(self, scores: cs.Scores) -> cs.Scores:
        top = scores.logits.amax(dim=-1, keepdim=True)
        span = top - scores.logits.amin(dim=-1, keepdim=True)
        wanted = self.share * (scores.zero_shot.amax(dim=-1) - scores.zero_shot.amin(dim=-1))[..., None]
        factor = (wanted / span).nan_to_num(1.0, posinf=1.0).clamp(max=1.0)
        return scores.replace(cs.keep_argmax(scores.logits, (scores.logits - top) * factor + top))


@cs.calibrator("half-range", paper="an example")
@dataclass(frozen=True)
class HalfRange:
    """Shrink rows whose logits span more than a share of their zero-shot range."""

    share: float = 0.5

    keeps_argmax = True
    needs = cs.Evidence.NOTHING

    def fit(self, given: cs.Given) -> HalfRangeMap:
        return HalfRangeMap(self.share)
