"""BiasScaling: its optimum, what its imagined rows do, and that many classes are fitted alike."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.draws import drawn
from torch import Tensor

from calibrant.calibrators import BiasScaling
from calibrant.calibrators.affine import bias_scaling


def rows(count: int = 300, classes: int = 4, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits that are twice too large, and expect class 0 too often."""
    z, y = drawn(count, classes, seed=seed, spread=2, sharp=1)
    z[:, 0] += 1
    return 2 * z, y


@pytest.mark.parametrize("prior_rows", [0.5, 5.0, 50.0])
def test_it_is_the_optimum_over_real_and_imagined_rows(prior_rows: float) -> None:
    z, y = rows()
    fitted = BiasScaling(prior_rows=prior_rows).fit(z, y)
    many = z.repeat(5, 1)  # every row once with its label, and with each class by the model's probability
    labels = torch.cat([y, *[torch.full((300,), k) for k in range(4)]])
    weight = torch.cat([torch.ones(300).double(), *(prior_rows / 300 * torch.softmax(z, 1)).T]).numpy()
    x = many.numpy()

    def loss(theta: np.ndarray) -> float:
        a = x * theta[0] + np.append(0.0, theta[1:])  # all biases may rise by the same
        top = a.max(axis=1, keepdims=True)
        log_q = a - top - np.log(np.exp(a - top).sum(axis=1, keepdims=True))
        return float(-weight @ log_q[np.arange(len(labels)), labels])

    best = minimize(loss, np.array([1.0, 0.0, 0.0, 0.0]), method="BFGS", options={"gtol": 1e-6})
    slope, bias = fitted.slope.expand(1), fitted.bias
    found = np.append(slope[:1], (bias - bias[0])[1:])
    assert loss(found) <= best.fun + 1e-5
    np.testing.assert_allclose(found, best.x, atol=2e-3)  # the reference's gradient is a difference quotient
    assert fitted.gradient < 1e-7
    assert float(bias.sum()) == pytest.approx(0, abs=1e-6)
    assert fitted.temperature == pytest.approx(1 / float(slope[0]))


def test_a_class_never_right_loses_by_how_often_it_was_expected() -> None:
    p = torch.tensor([[0.45, 0.45, 0.1 - 1e-4, 1e-4]], dtype=torch.float64).repeat(200, 1)
    y = torch.arange(200) % 2  # classes 2 and 3 are never right: expected 20 times, and .02 times
    after = torch.softmax(BiasScaling(prior_rows=5).fit(p.log(), y)(p[:1].log()), 1)[0]
    assert float(after[2]) == pytest.approx(0.1 * 5 / 205, rel=0.02)
    assert float(after[3]) == pytest.approx(1e-4 * 5 / 205, rel=0.1)


def test_many_classes_end_where_newtons_method_does(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = rows(400, 6)
    newton = BiasScaling().fit(z, y)
    monkeypatch.setattr(bias_scaling, "_NEWTON_CLASSES", 5)
    quasi = BiasScaling().fit(z, y)
    torch.testing.assert_close(quasi(z), newton(z), rtol=0, atol=1e-4)
    again = quasi.fit(*rows(400, 6, seed=1))  # from where it was
    torch.testing.assert_close(again(z), BiasScaling().fit(*rows(400, 6, seed=1))(z), rtol=0, atol=1e-4)


def test_equal_logits_and_a_single_class_have_an_answer() -> None:
    flat = BiasScaling().fit(torch.zeros(20, 3), torch.zeros(20, dtype=torch.int64))
    expected = torch.tensor([[20 + 5 / 3, 5 / 3, 5 / 3]]) / 25
    torch.testing.assert_close(torch.softmax(flat(torch.zeros(1, 3)), 1), expected, rtol=0, atol=1e-3)
