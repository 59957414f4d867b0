"""The leakage guard: which overlap with the fitting data is refused, and what is no leak."""

import pytest
import torch
from tests.draws import drawn
from torch import Tensor

from calibrant import Predictions
from calibrant.calibrators import Identity
from calibrant.data.leakage import check_not_fitted_on, part_of, rows_in_sketch, sketch_of
from calibrant.errors import LeakError


def rows(count: int, *, seed: int, classes: int = 5) -> tuple[Tensor, Tensor]:
    return drawn(count, classes, seed=seed, sharp=1, dtype=torch.float32)


FORMS = {
    "as they are": lambda z: z,
    "in float64": lambda z: z.double(),
    "after a float16 round trip": lambda z: z.half().float(),
    "as log-probabilities": lambda z: z.log_softmax(dim=1),
    "with a constant a row": lambda z: z + torch.arange(len(z))[:, None] % 7,
}


@pytest.mark.parametrize("classes", [2, 300])
@pytest.mark.parametrize("form", FORMS)
def test_shuffled_fitting_rows_are_refused_in_every_form_and_new_rows_are_not(form: str, classes: int) -> None:
    z, y = rows(2000, seed=0, classes=classes)
    calibrator, order = Identity().fit(z, y), torch.randperm(2000, generator=torch.Generator().manual_seed(1))
    again = FORMS[form](z[order])
    with pytest.raises(
        LeakError, match=r"[0-9] rows that were; evaluate on other rows \(in Python, allow_fit_rows=True"
    ):
        Predictions.from_logits(again, y[order], unchecked_kind=True).calibrated_by(calibrator)
    fresh, labels = rows(2000, seed=2, classes=classes)
    new = Predictions.from_logits(FORMS[form](fresh), labels, unchecked_kind=True)
    assert len(new.calibrated_by(calibrator)) == 2000


@pytest.mark.parametrize(
    ("count", "coincide", "leaks"),
    # of 1,000 rows 3 more may have occurred twice: 6 are expected again, and 6 + 4 √6 = 15.8; at least 8 rows and 1 % leak
    [(1000, 15, False), (1000, 16, True), (40, 7, False), (40, 8, True), (5000, 50, False), (5000, 51, True)],
)
def test_a_few_texts_that_occur_twice_are_no_leak(count: int, coincide: int, leaks: bool) -> None:
    (z, y), (fresh, labels) = rows(1000, seed=7), rows(count - coincide, seed=8)
    calibrator = Identity().fit(z, y)
    mixed = Predictions.from_logits(torch.cat([fresh, z[:coincide]]), torch.cat([labels, y[:coincide]]))
    if leaks:
        with pytest.raises(LeakError, match=f"{coincide} of {count} rows"):
            mixed.calibrated_by(calibrator)
    else:
        assert len(mixed.calibrated_by(calibrator)) == count


def test_saturated_and_tied_outputs_that_coincide_are_no_leak() -> None:
    generator = torch.Generator().manual_seed(0)

    def partly_saturated(count: int) -> tuple[Tensor, Tensor]:
        logits = torch.randn(count, 4, generator=generator)
        common = 20 * torch.eye(4)[torch.randint(0, 4, (count,), generator=generator)]
        saturated = torch.rand(count, generator=generator) < 0.5
        return torch.where(saturated[:, None], common, logits), torch.randint(0, 4, (count,), generator=generator)

    (z, y), votes = partly_saturated(3000), torch.linspace(0.01, 0.99, 50).logit()
    fitted = Identity().fit(*partly_saturated(3000))
    assert torch.equal(Predictions.from_logits(z, y).calibrated_by(fitted).logits, z)
    assert torch.equal(Predictions.from_logits(z).calibrated_by(fitted).logits, z)
    for count in (40, 3000):  # a forest's votes: of few rows all outputs of the fit occur among new rows
        forest, new = (
            Predictions.from_binary_logits(votes[torch.randint(50, (n,), generator=generator)], torch.arange(n) % 2)
            for n in (count, 4000)
        )
        assert len(new.calibrated_by(Identity().fit(forest))) == 4000


def test_a_row_under_another_label_is_another_example() -> None:
    z, y = rows(200, seed=5)
    calibrator = Identity().fit(z, y)
    assert len(Predictions.from_logits(z, (y + 1) % 5).calibrated_by(calibrator)) == 200
    with pytest.raises(LeakError):
        Predictions.from_logits(z).calibrated_by(calibrator)


def test_of_many_rows_a_bounded_sample_is_kept_that_joins_in_any_parts() -> None:
    z, y = rows(200_000, seed=7)
    parts = [part_of(*pair) for pair in zip(z.split(60_000), y.split(60_000), strict=True)]
    one, other = (sketch_of((a + b) + (c + d), len(z)) for a, b, c, d in (parts, parts[::-1]))
    assert torch.equal(one, other)
    assert len(one) < 70_000
    assert (rows_in_sketch(one), rows_in_sketch(one[:0])) == (200_000, 0)
    calibrator = Identity().fit(z, y)
    assert len(calibrator.fit_rows) < 70_000
    order = torch.randperm(200_000, generator=torch.Generator().manual_seed(0))
    for sketch in (one, calibrator.fit_rows):
        with pytest.raises(LeakError):
            check_not_fitted_on(z[order[:50_000]], sketch, y[order[:50_000]])
    fresh, labels = rows(29_400, seed=9)
    assert len(Predictions.from_logits(fresh, labels).calibrated_by(calibrator)) == 29_400
    with pytest.raises(LeakError):  # 2 % of the rows, of which a third has hashes as low as those that are kept
        check_not_fitted_on(torch.cat([fresh, z[:600]]), one, torch.cat([labels, y[:600]]))


def test_the_guard_survives_state_dicts() -> None:
    z, y = rows(100, seed=0)
    calibrator, other = Identity().fit(z, y), Identity()
    other.load_state_dict(calibrator.state_dict())
    with pytest.raises(LeakError):
        Predictions.from_logits(z).calibrated_by(other)
