"""The README's first steps, on features drawn from a small world (put your own in their place)."""

import calispan as cs
from calispan.testing import feature_world

world = feature_world()
names, prototypes = world.problem.classes, world.problem.text
x, y = world.problem.support.views, world.problem.labels
test_x, test_y = world.domains["far shift"].views, world.domains["far shift"].labels

problem = cs.Problem(classes=names, support=cs.Embeddings(x, y), text=prototypes, logit_scale=60.0)
model = cs.fit(problem, "task-res", seed=0)  # names or recipe objects
scores = model(cs.Embeddings(test_x))  # logits, and zero-shot logits of the same rows
print(cs.evaluate(scores, test_y, metrics=["accuracy", "ece-15", "range-inflation"]))

held = cs.calibrate(scores, "sals")  # no labels, same predictions
print(cs.evaluate(held, test_y, metrics=["accuracy", "ece-15", "range-inflation"]))

both = cs.fit(problem, "task-res", during=["zs-norm"], after=["sals"], seed=0)
both.save("runs/task-res")
again = cs.load("runs/task-res")
probabilities = again(cs.Embeddings(test_x)).probabilities()
