"""Calibrators that learn: from a held-out set, or from the shots themselves."""

import calispan as cs
from calispan.testing import feature_world

world = feature_world(classes=20, rows=1000)
problem, rows = world.problem, world.domains["photo"]
model = cs.fit(problem, "zs-lp:epochs=60")
val, test = rows.rows(slice(0, 500)), rows.rows(slice(500, 1000))

warm = cs.calibrate(model(test), "temperature", held_out=(model(val), val.labels))
print(cs.evaluate(warm, test.labels, metrics=["ece-15", "nll"]))

# 16 photos a class and no held-out set: the pipeline scores each shot by a head that never saw it.
own = cs.fit(problem, "zs-lp:epochs=60", after=["temperature:fit_on=support"])
print(cs.evaluate(own(test), test.labels, metrics=["ece-15", "nll"]))

# Is one calibration better than another on these very rows?
print(cs.compare(model(test), warm, test.labels, metric="ece-15"))
