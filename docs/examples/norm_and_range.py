"""Norm against range on your own logits: which of the two carries the overconfidence?"""

import calispan as cs
from calispan.testing import feature_world

# Yours: scores = cs.Scores(np.load("logits.npy"), np.load("zero_shot.npy")); labels = np.load("labels.npy")
world = feature_world()
rows = world.domains["far shift"]
scores, labels = cs.fit(world.problem, "zs-lp", seed=0)(rows), rows.labels


def show(what, scores):
    names = ["norm-mean", "range-mean", "mean-confidence", "accuracy", "ece-15"]
    numbers = cs.evaluate(scores, labels, metrics=names)
    print(f"{what:34}" + "".join(f"{numbers[name]:9.3f}" for name in names))


print(" " * 34 + "     norm    range     conf      acc      ece")
show("zero-shot", scores.replace(scores.zero_shot))
show("adapted", scores)

# Longer, but no wider: a constant on every logit.
show("adapted + 40", scores.replace(scores.logits + 40))

# Wider, but no longer: twice the spread, moved to where the length is the old one.
middle = scores.logits.mean(dim=-1, keepdim=True)
spread = 2 * (scores.logits - middle)
room = scores.logits.square().sum(-1, keepdim=True) - spread.square().sum(-1, keepdim=True)
show("adapted, twice as wide, as long", scores.replace(spread + (room / spread.shape[-1]).clamp(min=0).sqrt()))

# The range of each row put back to what zero-shot gave it.
show("adapted, zero-shot range (SaLS)", cs.calibrate(scores, "sals"))


def by_quarter(what, order):
    """Confidence minus accuracy in each quarter of the rows."""
    gaps = [
        cs.evaluate(scores.rows(part), labels[part], metrics=["overconfidence"])["overconfidence"]
        for part in order.argsort().chunk(4)
    ]
    print(f"{what:34}" + "".join(f"{gap:9.3f}" for gap in gaps))


def span(logits):
    return logits.amax(dim=-1) - logits.amin(dim=-1)


print("\noverconfidence, rows from low to high  first   second    third   fourth quarter")
by_quarter("by norm of the logits", scores.logits.norm(dim=-1))
by_quarter("by range", span(scores.logits))
by_quarter("by range over zero-shot range", span(scores.logits) / span(scores.zero_shot))
