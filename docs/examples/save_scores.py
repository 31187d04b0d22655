"""Scores in files, as `calispan evaluate` reads them. Random numbers stand in for a model under shift."""

import numpy as np

draws = np.random.default_rng(0)


def scores(rows, classes=20):
    labels = draws.integers(0, classes, rows)
    zero_shot = draws.normal(size=(rows, classes))
    zero_shot[np.arange(rows), labels] += 1.5
    adapted = 1.9 * zero_shot + 1.4 * draws.normal(size=(rows, classes))
    return adapted, zero_shot, labels


adapted, zero_shot, labels = scores(rows=2000)
np.save("logits.npy", adapted.astype(np.float32))
np.save("zero-shot.npy", zero_shot.astype(np.float32))
np.save("labels.npy", labels)

adapted, zero_shot, labels = scores(rows=500)
np.savez("held-out.npz", logits=adapted, zero_shot=zero_shot, labels=labels)
