import pytest
import torch

from calispan.core import steps
from calispan.core.objective import Objective
from calispan.core.registry import methods, train_calibrations
from calispan.core.steps import make_step, plain_step, set_rate
from calispan.testing.methods import small_world


def test_a_plain_step_is_forward_backward_update():
    weight = torch.tensor([3.0], requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    step = make_step(optimizer, [weight], lambda rows: (weight * rows.sum()).sum(), 2)
    step(torch.tensor([1, 1]))
    assert float(weight.detach()) == 2.0
    step(torch.tensor([2, 2]))
    assert float(weight.detach()) == 0.0


def test_rates_are_set_as_numbers_and_in_place_in_tensors():
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    set_rate(optimizer, 0.7)
    assert optimizer.param_groups[0]["lr"] == 0.7
    held = torch.tensor(0.1)
    optimizer.param_groups[0]["lr"] = held
    set_rate(optimizer, 0.25)
    assert float(held) == 0.25


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card: graphs are recorded there only")
@pytest.mark.parametrize(
    "method", ["zs-lp", "task-res", "clip-adapter", "tip-adapter-f", "clap-adaptive", "cross-modal"]
)
@pytest.mark.parametrize("during", ["none", *train_calibrations.names()])
def test_recorded_steps_train_as_plain_ones(method, during, monkeypatch):
    problem = small_world().problem.to(torch.device("cuda"))
    objective = Objective(() if during == "none" else (train_calibrations.build(during),))
    recipe = methods.build(method, epochs=6)
    recorded = []
    real = steps.recorded_step
    monkeypatch.setattr(steps, "recorded_step", lambda *args: recorded.append(real(*args)) or recorded[-1])
    graphed = recipe.fit(problem, objective, seed=0)
    assert recorded, "the step was recorded, not only tried"
    monkeypatch.setattr(
        steps, "make_step", lambda optimizer, weights, loss_of, _: plain_step(optimizer, weights, loss_of)
    )
    monkeypatch.setattr("calispan.core.training.make_step", steps.make_step)
    plain = recipe.fit(problem, objective, seed=0)
    queries = small_world().domains["photo"].to(torch.device("cuda"))
    torch.testing.assert_close(graphed(queries), plain(queries), rtol=1e-9, atol=1e-9)
