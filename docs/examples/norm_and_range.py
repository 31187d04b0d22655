"""Norm against range on your own logits: change one, hold the other, and see which one confidence follows."""

import calispan as cs
from calispan.testing import feature_world

# Yours: scores = cs.Scores(np.load("logits.npy"), np.load("zero_shot.npy")); labels = np.load("labels.npy")
world = feature_world()
rows = world.domains["far shift"]
scores, labels = cs.fit(world.problem, "zs-lp", seed=0)(rows), rows.labels

METRICS = ["norm-mean", "range-mean", "mean-confidence", "accuracy", "ece-15"]


def show(what, scores):
    numbers = cs.evaluate(scores, labels, metrics=METRICS)
    print(f"{what:32}" + "".join(f"{numbers[name]:17.3f}" for name in METRICS))


print(" " * 32 + "".join(f"{name:>17}" for name in METRICS))
show("zero-shot", scores.replace(scores.zero_shot))
show("adapted", scores)

# Longer, no wider: a constant on every logit.
longer = scores.logits + 40
show("longer, same range", scores.replace(longer))

# Wider, no longer: twice the spread around the mean of the row, which moves to keep the length.
spread = 2 * (longer - longer.mean(dim=-1, keepdim=True))
room = longer.square().sum(dim=-1, keepdim=True) - spread.square().sum(dim=-1, keepdim=True)
show("as long as that, twice the range", scores.replace(spread + (room / spread.shape[-1]).sqrt()))

# The range zero-shot gave the row, and nothing else.
show("zero-shot range (SaLS)", cs.calibrate(scores, "sals"))
