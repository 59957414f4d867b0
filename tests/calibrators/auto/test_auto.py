"""AutoCalibrator: what it chooses, when it abstains, that it does no harm, and that its weights are those of its formula."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.draws import drawn
from torch import Tensor

from calibrant import Predictions, load, save_predictions
from calibrant.adapters.onnx import export
from calibrant.calibrators import (
    AutoCalibrator,
    Calibrator,
    Chain,
    EnsembleTemperatureScaling,
    FocalTemperatureScaling,
    Identity,
    IsotonicCalibration,
    MatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
)
from calibrant.calibrators.auto.auto import CONSTANTS, stacked
from calibrant.calibrators.auto.cross_fitting import HeldOutScores
from calibrant.calibrators.auto.projection import project
from calibrant.calibrators.base.folds import fold_of
from calibrant.errors import FitError, InputError, UsageWarning
from calibrant.rows import Chunk, MemoryRows, RowSource
from calibrant.scale import batches
from calibrant.theory import focal_map


def sample(rows: int = 600, classes: int = 4, *, seed: int = 0, sharpness: float = 2.5) -> tuple[Tensor, Tensor]:
    """Return logits that are ``sharpness`` times too large."""
    true, y = drawn(rows, classes, seed=seed, spread=1.5, sharp=1)
    return sharpness * true, y


def quick() -> list[Calibrator]:
    """Return two quick candidates, where the test is about what lies before or behind all of them."""
    return [TemperatureScaling(prior=0.5), StructuredVectorScaling()]


def loss(logits: Tensor, labels: Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(logits, labels))


def test_it_calibrates_what_is_over_confident() -> None:
    fitted = AutoCalibrator().fit(*sample())
    z, y = sample(seed=1)
    assert loss(fitted(z), y) < loss(z, y) - 0.3
    assert loss(fitted(z), y) < loss(TemperatureScaling().fit(*sample())(z), y) + 0.01


def test_an_all_correct_validation_set_means_abstain() -> None:
    z, _ = sample()
    fitted = AutoCalibrator().fit(z, z.argmax(1))
    assert torch.equal(fitted(z), z)
    assert fitted.evidence.verdict.startswith("abstained: 0 wrong rows are too few")
    assert fitted.weights.tolist() == [1.0] + [0.0] * (len(fitted.weights) - 1)


def test_logits_whose_log_loss_is_no_number_are_refused() -> None:
    z, y = (part[:60].clone() for part in sample())
    z = z.double()
    z[:9] = torch.finfo(torch.float64).max * torch.eye(4, dtype=torch.float64)[(y[:9] + 1) % 4]
    with pytest.raises(FitError, match="a finite log-loss of the logits as they are, got inf"):
        AutoCalibrator(candidates=[TemperatureScaling()]).fit(z, y)


def test_two_wrong_rows_abstain_and_three_may_not() -> None:
    z = 20 * torch.eye(3, dtype=torch.float64).repeat(100, 1)
    y = z.argmax(1)
    for wrong, abstains in ((2, True), (3, False)):
        labels = y.clone()
        labels[:wrong] = (labels[:wrong] + 1) % 3
        evidence = AutoCalibrator().fit(z, labels).evidence
        assert evidence.verdict.startswith("abstained" if abstains else "calibrated")


def test_calibrated_logits_are_hardly_touched() -> None:
    fitted = AutoCalibrator().fit(*sample(300, sharpness=1.0))
    z, y = sample(5000, seed=1, sharpness=1.0)
    assert loss(fitted(z), y) < loss(z, y) * 1.005


def test_weights_are_those_of_the_formula() -> None:
    z, y = sample(200, sharpness=1.15)
    candidates = [TemperatureScaling(prior=0.5), StructuredVectorScaling()]
    fitted = AutoCalibrator(folds=4, candidates=candidates).fit(z, y)
    fold = fold_of(Chunk(z, labels=y), 4)
    total = np.zeros(3)
    for k in range(4):
        held = fold == k
        for m, method in enumerate((Identity(), TemperatureScaling(prior=0.5), StructuredVectorScaling())):
            total[m] += loss(method.fit(z[~held], y[~held])(z[held]), y[held]) * int(held.sum())
    odds = CONSTANTS.identity_odds * (1 + CONSTANTS.few_errors / int((z.argmax(1) != y).sum()))
    raw = np.array([odds, 1.0, 1.0]) * np.exp(CONSTANTS.rate * (total[0] - total))
    expected = raw / raw.sum()
    assert expected.min() > 0.01  # else some would have been left out
    np.testing.assert_allclose(fitted.weights.numpy(), expected, atol=1e-6)  # folds are fitted to 1e-8 nats
    np.testing.assert_allclose([t.loss for t in fitted.evidence.trials], total / 200, atol=1e-8)
    # and the answer is the weighted mean of the members' probabilities
    p = sum(w * torch.softmax(m.fit(z, y)(z), 1) for w, m in zip(expected, (Identity(), *candidates), strict=True))
    torch.testing.assert_close(torch.softmax(fitted(z), 1), p, rtol=0, atol=1e-7)  # the members were warm-started


class _Counted(Calibrator):
    """A power of the probabilities that counts its fits."""

    power_of: Tensor
    fits = 0

    def __init__(self, power: float = 1.0) -> None:
        super().__init__()
        self.power = power

    def _fit(self, rows: RowSource) -> None:
        type(self).fits += 1
        self.power_of = torch.tensor(self.power, dtype=torch.float64)

    def _transform(self, logits: Tensor) -> Tensor:
        return logits * self.power_of.to(logits.dtype)


def test_a_candidate_far_behind_is_given_up_and_one_that_is_not_sees_all_folds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    z, y = sample(2000)
    monkeypatch.setattr(_Counted, "fits", 0)
    hopeless = AutoCalibrator(candidates=[TemperatureScaling(), _Counted(0.0)]).fit(z, y)
    assert _Counted.fits == 1  # of five folds
    given_up = hopeless.evidence.trials[2]
    assert given_up.weight == 0
    assert given_up.loss == pytest.approx(np.log(4), abs=1e-9 + 3 * given_up.error)
    monkeypatch.setattr(_Counted, "fits", 0)
    useful = AutoCalibrator(candidates=[TemperatureScaling(), _Counted(0.4)]).fit(z, y)
    assert _Counted.fits == 6  # five folds, and all rows
    assert float(useful.weights[2]) > 0.1


def test_chains_that_begin_alike_share_their_first_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = sample(300)
    monkeypatch.setattr(_Counted, "fits", 0)
    chains = [Chain(_Counted(0.9), StructuredVectorScaling(prior=prior)) for prior in (0.5, 1.0)]
    fitted = AutoCalibrator(folds=4, candidates=[_Counted(0.9), *chains]).fit(z, y)
    used = sum(weight > 0 for weight in fitted.weights.tolist()[1:])
    assert _Counted.fits == 4 + used
    alone = AutoCalibrator(folds=4, candidates=[chains[1]]).fit(z, y)
    torch.testing.assert_close(fitted.losses[3], alone.losses[1], rtol=0, atol=1e-9)


DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def test_the_nearest_answers_that_keep_a_decision_and_a_ranking_by_hand() -> None:
    p, z = torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]]).double(), torch.tensor([[3.0, 1, 2], [3.0, 2, 1]])
    # {.2, .5, .3}: with .5 the mean is .35, above .3; {.6, .1, .3}: the decision is the largest already
    torch.testing.assert_close(
        project(p.log(), z, "argmax").exp(), torch.tensor([[0.35, 0.35, 0.3], [0.6, 0.1, 0.3]]).double()
    )
    # ranking 0, 2, 1: .2 | .3 .5 → all violate, mean 1/3; ranking 0, 1, 2: .1 and .3 are pooled
    torch.testing.assert_close(
        project(p.log(), z, "order").exp(),
        torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.6, 0.2, 0.2]]).double(),
        rtol=0,
        atol=2e-6,  # ties are broken
    )


@pytest.mark.parametrize("classes", [3, 20, 60])
@pytest.mark.parametrize("keep", ["argmax", "order"])
def test_no_answer_that_keeps_them_is_nearer(keep: Any, classes: int) -> None:
    g = torch.Generator().manual_seed(classes)
    p, z = torch.softmax(3 * torch.randn(40, classes, generator=g).double(), 1), torch.randn(40, classes, generator=g)
    best = project(p.log(), z, keep)
    assert float((best.exp().sum(1) - 1).abs().max()) < 1e-3 if keep == "order" else 1e-12
    order = z.argsort(dim=1, descending=True)
    for share in (0.5, 0.05, 0.005):  # towards other answers that keep the ranking, and so the decision
        other = torch.softmax(torch.randn(40, classes, generator=g).double(), 1).sort(dim=1, descending=True).values
        mixed = (1 - share) * best.exp() + share * torch.empty_like(other).scatter(1, order, other)
        assert bool(((p * mixed.log()).sum(1) <= (p * best).sum(1) + 1e-4 * (keep == "order") + 1e-12).all())


@pytest.mark.parametrize("keep", ["argmax", "order"])
def test_the_decision_and_the_ranking_are_kept_in_every_precision(keep: Any) -> None:
    z, y = sample()
    y = torch.where(y == 3, 0, y)[torch.arange(600)]  # class 0 is often right where 3 is decided
    y[0] = 3
    fitted, free = (AutoCalibrator(keep=one, candidates=quick()).fit(z, y) for one in (keep, None))
    assert fitted.preserves_argmax
    new = torch.cat([sample(2000, seed=1)[0], torch.tensor([[1.0, 1.0001, 0.9999, 1.0002], [0.0, 0, 0, 0]]).double()])
    assert float((free(new).argmax(1) != new.argmax(1)).double().mean()) > 0.05  # many answers are projected
    for dtype in DTYPES:
        logits = new.to(dtype)
        answer = fitted(logits)
        assert answer.dtype == dtype
        for kept in (answer, answer.float(), torch.softmax(answer, 1), torch.softmax(answer.float(), 1)):
            assert torch.equal(kept.argmax(1), logits.argmax(1))
        if keep == "order":
            order = torch.sort(logits, dim=1, descending=True, stable=True).indices
            assert bool((answer.gather(1, order).double().diff(dim=1) <= 0).all())
            if dtype in DTYPES[:2]:  # narrower ones round neighbours that differ by 1e-4 to one value
                assert torch.equal(answer[:-1].argsort(dim=1), logits[:-1].argsort(dim=1))


@pytest.mark.filterwarnings("ignore:expected a row of every class")  # options E and F are the truth of no row
def test_a_kept_decision_costs_less_than_candidates_that_keep_it(data: Path) -> None:
    with np.load(data / "logits" / "oodcv-monkey.npz") as file:
        z, y, new, labels = (torch.from_numpy(file[f"{s}_{k}"]) for s in ("val", "test") for k in ("logits", "labels"))
    kept = loss(AutoCalibrator(keep="argmax").fit(z, y)(new), labels)
    assert loss(AutoCalibrator().fit(z, y)(new), labels) < kept
    assert kept < loss(EnsembleTemperatureScaling(prior=0.5).fit(z, y)(new), labels) - 0.3  # of one that keeps it


@pytest.mark.parametrize(
    "settings",
    [{"keep": "argmax"}, {"keep": "order"}],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_what_is_set_is_saved_and_streamed(settings: Any, tmp_path: Path) -> None:
    (z, y), new = sample(300), sample(200, seed=1)[0]
    fitted = AutoCalibrator(candidates=quick(), **settings).fit(z, y)
    fitted.save(tmp_path / "c.safetensors")
    again = load(tmp_path / "c.safetensors")
    assert torch.equal(again(new), fitted(new))
    assert again.config() == fitted.config()
    save_predictions(tmp_path / "rows.parquet", {"all": Predictions.from_logits(z, y)})
    streamed = AutoCalibrator(candidates=quick(), **settings).fit(batches(tmp_path / "rows.parquet"))
    torch.testing.assert_close(streamed(new), fitted(new), rtol=0, atol=1e-5)


def exported(fitted: AutoCalibrator, new: Tensor, folder: Path) -> Tensor:
    """Return what onnxruntime answers, whose probabilities are ours."""
    runtime = pytest.importorskip("onnxruntime")
    export(fitted, folder / "c.onnx")
    session = runtime.InferenceSession(folder / "c.onnx", providers=["CPUExecutionProvider"])
    got = torch.from_numpy(session.run(None, {"input": new.numpy()})[0])
    torch.testing.assert_close(torch.softmax(got, 1), torch.softmax(fitted(new), 1), rtol=0, atol=1e-5)
    return got


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["argmax", "order"])
def test_a_kept_decision_is_exported(keep: Any, tmp_path: Path) -> None:
    new = sample(200, seed=1)[0].float()
    got = exported(AutoCalibrator(keep=keep, candidates=[StructuredVectorScaling()]).fit(*sample(300)), new, tmp_path)
    assert torch.equal(got.argmax(1), new.argmax(1))


def test_what_focal_loss_does_to_a_model_is_undone_without_moving_decisions() -> None:
    """Logits whose focal map is the truth: no temperature repairs them, focal temperature scaling does."""
    g = torch.Generator().manual_seed(0)
    z = 4 * torch.randn(4000, 5, generator=g, dtype=torch.float64)
    y = torch.multinomial(focal_map(z, -0.8).exp(), 1, generator=g)[:, 0]
    kept = AutoCalibrator(keep="argmax").fit(z[:2000], y[:2000])
    plain = TemperatureScaling().fit(z[:2000], y[:2000])
    best = loss(focal_map(z[2000:], -0.8), y[2000:])
    assert loss(kept(z[2000:]), y[2000:]) < best + 0.2 * (loss(plain(z[2000:]), y[2000:]) - best)
    assert torch.equal(kept(z).argmax(1), z.argmax(1))


def test_the_evidence_survives_saving(tmp_path: Path) -> None:
    fitted = AutoCalibrator(candidates=[TemperatureScaling(), IsotonicCalibration(floor=0.01)]).fit(*sample())
    fitted.save(tmp_path / "auto.safetensors")
    loaded = load(tmp_path / "auto.safetensors")
    assert isinstance(loaded, AutoCalibrator)
    assert loaded.evidence == fitted.evidence
    shown = str(loaded.evidence).splitlines()
    assert shown[0].startswith("calibrated: ")
    assert "600 rows" in shown[1]
    assert [line.split("(")[0].strip() for line in shown[3:]] == [
        "Identity",
        "TemperatureScaling",
        "IsotonicCalibration",
    ]


def test_what_is_in_use_is_named_with_its_stages() -> None:
    fitted = AutoCalibrator(candidates=[Chain(Identity(), TemperatureScaling())]).fit(*sample(200))
    assert fitted.learned() == "uses 1.00 Chain(Identity, TemperatureScaling)"


def test_a_candidate_that_fails_is_left_out_and_said_so() -> None:
    z, y = sample()
    z[:, 3] = torch.where(y == 3, z[:, 3], -torch.inf)
    sharp = torch.tensor([[50.0, 0, 0, 0]], dtype=torch.float64).repeat(20, 1)
    fitted = AutoCalibrator(candidates=[TemperatureScaling(), IsotonicCalibration(floor=0.0)]).fit(
        torch.cat([z, sharp]), torch.cat([y, torch.randint(1, 4, (20,), generator=torch.Generator().manual_seed(0))])
    )
    isotonic = fitted.evidence.trials[2]
    assert (isotonic.loss, isotonic.weight) == (float("inf"), 0.0)  # a zero under a true class
    assert "not tried" in str(fitted.evidence)


def rounded(z: Tensor, low: float = 0.03) -> Tensor:
    """Return log-probabilities of which those below ``low`` are exact zeros."""
    log_p = torch.log_softmax(z, 1)
    return torch.where(log_p < np.log(low), -torch.inf, log_p)


def test_exact_zeros_get_the_probability_that_the_rows_show(tmp_path: Path) -> None:
    (z, y), (new, labels) = (sample(2000, seed=seed, sharpness=1.0) for seed in (0, 1))
    fitted = AutoCalibrator(candidates=quick()).fit(rounded(z), y)
    assert fitted.floor.exp().tolist()[1] == pytest.approx(0.03, abs=1e-3)  # just below the least probability above 0
    assert loss(fitted(rounded(new)), labels) < loss(new, labels) + 0.03  # nearly what was before rounding
    q = torch.softmax(fitted(rounded(z)), 1)  # the zeros together, in rows with several classes left
    zero = torch.isneginf(rounded(z)) & (torch.isfinite(rounded(z)).sum(1, keepdim=True) > 1)
    assert float(q[zero].sum()) == pytest.approx(float(zero[torch.arange(2000), y].sum()), rel=0.02)
    kept = AutoCalibrator(candidates=quick(), keep="argmax").fit(rounded(z), y)
    assert torch.equal(kept(rounded(new)).argmax(1), rounded(new).argmax(1))
    fitted.save(tmp_path / "auto.safetensors")
    assert torch.equal(load(tmp_path / "auto.safetensors")(rounded(new)), fitted(rounded(new)))
    # where an excluded class was never true, in rows that leave several, it stays excluded
    masked = torch.where((torch.arange(4) == (y[:, None] + 1) % 4) & (y[:, None] > 1), -torch.inf, z)
    fitted = AutoCalibrator(candidates=quick()).fit(masked, y)
    assert fitted.floor[1] == -torch.inf
    assert torch.equal(torch.isneginf(fitted(masked)), torch.isneginf(masked))


def test_exact_ones_are_as_good_as_the_best_clipping_and_stay_above_all_others() -> None:
    (z, y), (new, labels) = (sample(1500, seed=seed, sharpness=2.0) for seed in (0, 1))
    g = torch.Generator().manual_seed(2)

    def ones(logits: Tensor, low: float) -> Tensor:
        p = torch.softmax(logits, 1)
        return (
            torch.where(p.amax(1, keepdim=True) < 0.99, p, (p == p.amax(1, keepdim=True)).double()).clamp_min(low).log()
        )

    fitted = AutoCalibrator(candidates=quick()).fit(ones(z, 0.0), y)
    own = loss(fitted(ones(new, 0.0)), labels)
    clipped = [
        loss(AutoCalibrator(candidates=quick()).fit(ones(z, low), y)(ones(new, low)), labels)
        for low in (1e-3, 1e-5, 1e-8)
    ]
    assert own < min(clipped) * 1.005
    # a producer whose small probabilities are noise: beside exact ones they are blurred, as much as the rows say
    noisy, fresh = (
        ones(logits, 0.0) + 4 * torch.randn(1500, 4, generator=g) * (ones(logits, 0.0) < -4) for logits in (z, new)
    )
    blurred = AutoCalibrator(candidates=quick()).fit(noisy, y)
    assert float(blurred.floor[2]) > -torch.inf
    assert loss(blurred(fresh), labels) < loss(
        AutoCalibrator(candidates=quick()).fit(noisy.clamp_min(-20), y)(fresh.clamp_min(-20)), labels
    )
    confidence = torch.softmax(fitted(ones(new, 0.0)), 1).amax(1)
    certain = torch.isneginf(ones(new, 0.0)).sum(1) == 3
    assert float(confidence[certain].mean()) > float(confidence[~certain].quantile(0.98))


def test_classes_without_a_row_keep_their_odds_and_are_named() -> None:
    (z, y), (new, labels) = sample(1500, 6), sample(3000, 6, seed=1)
    z, y, few = z[y < 4], y[y < 4], [TemperatureScaling(), StructuredVectorScaling()]
    with pytest.warns(UsageWarning, match="got none of 4, 5: they keep the model's odds; add"):
        fitted = AutoCalibrator(candidates=few).fit(z, y)
    temperature = TemperatureScaling(prior=0.5).fit(z, y)
    assert loss(fitted(new), labels) < loss(temperature(new), labels) * 1.01
    torch.testing.assert_close(torch.softmax(fitted(new), 1)[:, 4:], torch.softmax(temperature(new), 1)[:, 4:])
    # a letter that is no answer: the model gives it a share of every row and hardly ever decides for it
    never = torch.cat([z[:, :4], z[:, :4].logsumexp(1, keepdim=True) - 1 + 0.1 * z[:, 4:]], dim=1)
    with pytest.warns(UsageWarning, match="got none of 4, 5: 4, 5 become as rare as the rows say; add"):
        learned = AutoCalibrator(candidates=few).fit(never, y)
    assert float(torch.softmax(learned(never), 1)[:, 4:].mean()) < 0.02
    with pytest.warns(UsageWarning, match="they keep"):
        kept = AutoCalibrator(candidates=few, absent_classes="keep").fit(never, y)
    assert float(torch.softmax(kept(never), 1)[:, 4:].mean()) > 0.1
    # expects them a few times, at the temperature of the rows
    sure = 3 * torch.cat([z[:, :4], never[:, 4:] - 3], dim=1)
    with pytest.warns(UsageWarning, match="4, 5 become as rare"):
        assert AutoCalibrator(candidates=few, absent_classes="learn").fit(sure, y).absent.numel() == 0
    small = sample(30, 40)  # some have no row by chance
    with pytest.warns(UsageWarning, match="they keep"):
        by_chance = AutoCalibrator(candidates=few).fit(*small)
    assert int(by_chance.absent.sum()) == 40 - len(small[1].unique())


@pytest.mark.filterwarnings("ignore:expected a row of every class")
def test_classes_without_a_row_go_with_all_settings() -> None:
    (z, y), new = sample(1500, 6), sample(3000, 6, seed=1)[0]
    kept = AutoCalibrator(candidates=quick(), keep="argmax", top_label=True, absent_classes="keep").fit(
        z[y < 4], y[y < 4]
    )
    assert torch.equal(kept(new).argmax(1), new.argmax(1))
    one = AutoCalibrator(candidates=quick(), absent_classes="keep").fit(z[:100, :2], torch.zeros(100, dtype=torch.long))
    assert bool(torch.isfinite(one(new[:, :2])).all())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:expected a row of every class")
def test_the_focal_map_of_rows_without_a_class_is_exported_in_the_float64_of_a_pool(tmp_path: Path) -> None:
    z, y = sample(1500, 6)
    focal = AutoCalibrator(candidates=[FocalTemperatureScaling()]).fit(z[y < 4], y[y < 4])
    assert int(focal.absent.sum()) == 2
    exported(focal, sample(300, 6, seed=1)[0].float(), tmp_path)


@pytest.mark.parametrize(("rows", "matrix"), [(900, True), (40_000, False)])
def test_what_is_tried_depends_on_the_time_it_takes(rows: int, matrix: bool) -> None:
    few = MemoryRows.of(torch.zeros(1, 214), [0])
    few.count = rows
    auto = AutoCalibrator()
    tried = [one for m, one in enumerate(auto.candidates, 1) if auto._suits(m, few)]
    assert any("StructuredMatrix" in repr(one) and "Focal" in repr(one) for one in tried) == matrix


def test_folds_follow_content_groups_and_labels() -> None:
    z, y = sample(200)
    fold = fold_of(Chunk(z, labels=y), 5)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(3))
    assert torch.equal(fold_of(Chunk(z[order], labels=y[order]), 5), fold[order])
    doubled = fold_of(Chunk(torch.cat([z, z]), labels=torch.cat([y, y])), 5)
    assert torch.equal(doubled, torch.cat([fold, fold]))
    count = torch.bincount(fold, minlength=5)
    assert 20 < int(count.min()) <= int(count.max()) < 65  # 40 each, binomial
    assert not torch.equal(fold, fold_of(Chunk(z, labels=(y + 1) % 4), 5))
    groups = torch.arange(200) // 20
    grouped = fold_of(Chunk(z, labels=y, groups=groups), 5)
    assert all(len(grouped[groups == g].unique()) == 1 for g in range(10))


def test_binary_problems_are_tried_with_binary_methods() -> None:
    fitted = AutoCalibrator().fit(*sample(400, 2))
    tried = {trial.name.split("(")[0] for trial in fitted.evidence.trials if trial.loss < float("inf")}
    assert {"BetaCalibration", "SplineCalibration"} <= tried
    z, y = sample(seed=1, classes=2)
    assert loss(fitted(z), y) < loss(z, y) - 0.1


def test_bad_settings_are_refused() -> None:
    for wrong in (["TemperatureScaling"], [TemperatureScaling], TemperatureScaling, "auto"):
        with pytest.raises(InputError, match="pass a list of instances"):
            AutoCalibrator(candidates=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="name at least one"):
        AutoCalibrator(candidates=[])
    assert len(AutoCalibrator(candidates=TemperatureScaling()).members) == 2  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected type to be one of"):
        AutoCalibrator(candidates=[{"type": "os.system"}])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:expected a row of every class")  # mmbench has no rows of its last classes
@pytest.mark.parametrize("name", ["mmbench-monkey", "news20-crossval"])
def test_real_sets_gain(data: Path, name: str) -> None:
    with np.load(data / "logits" / f"{name}.npz") as file:
        val, test = [
            (torch.from_numpy(file[f"{s}_logits"]), torch.from_numpy(file[f"{s}_labels"])) for s in ("val", "test")
        ]
    val = (val[0][:800], val[1][:800])
    best = loss(TemperatureScaling().fit(*val)(test[0]).double(), test[1])
    assert loss(AutoCalibrator().fit(*val)(test[0]).double(), test[1]) < 0.85 * best


def test_without_any_gain_the_verdict_says_so() -> None:
    """Calibrated rows: candidates close to doing nothing keep some weight, but nobody is told that they gained."""
    seen = set()
    for seed in range(20):
        z, y = drawn(300, 3, seed=seed, spread=2, sharp=1, dtype=torch.float32)
        evidence = AutoCalibrator(candidates=[TemperatureScaling()]).fit(z, y).evidence
        gained = any(trial.gain > 0 for trial in evidence.trials if trial.weight > 0)
        words = ("calibrated",) if gained else ("hardly changed", "abstained")
        assert evidence.verdict.startswith(words)
        seen.add(evidence.verdict.split(":")[0])
    assert {"calibrated", "hardly changed"} <= seen


@pytest.mark.filterwarnings("ignore:expected a row of every class")
@pytest.mark.parametrize("groups", [None, [7] * 60])
def test_where_no_row_can_be_left_out_it_abstains(groups: list[int] | None) -> None:
    z, y = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    z, y = (z[:1], y[:1]) if groups is None else (z, y)
    auto = AutoCalibrator().fit(z, y, groups=groups)
    assert auto.weights[0] == 1
    torch.testing.assert_close(torch.softmax(auto(z), 1), torch.softmax(z, 1))
    assert auto.evidence.verdict.startswith("abstained")


def test_tied_scores_do_not_hide_a_gain() -> None:
    # folds by score and label would show every fit the opposite labels of each score: all looked worse than nothing
    rng = np.random.default_rng(0)
    p = rng.choice(np.arange(0.05, 1, 0.05), 1500)
    y = (rng.random(1500) < p**2).astype(int)
    z = torch.from_numpy(np.stack([np.zeros(1500), np.log(p / (1 - p))], axis=1))
    fitted = AutoCalibrator(candidates=[TemperatureScaling(), StructuredVectorScaling()]).fit(z, y)
    assert fitted.evidence.trials[2].gain > 0.02
    assert loss(fitted(z), torch.from_numpy(y)) < loss(z, torch.from_numpy(y)) - 0.02


def test_stacked_weights_are_those_of_the_best_mixture() -> None:
    g = torch.Generator().manual_seed(0)
    gain = torch.cat([torch.zeros(500, 1), torch.randn(500, 2, generator=g) + torch.tensor([0.2, 0.1])], dim=1)
    gain = torch.cat([gain, torch.full((500, 1), torch.nan)], dim=1)  # given up
    ones = torch.ones(500).double()
    weights = stacked(HeldOutScores(ones, gain.double(), ones, ones), torch.ones(4).double() / 4)
    assert weights[3] == 0
    assert float(weights.sum()) == pytest.approx(1)
    grid = [(a / 50, b / 50) for a in range(51) for b in range(51 - a)]
    loss_at = {
        (a, b): -float(((1 - a - b) + a * gain[:, 1].exp() + b * gain[:, 2].exp()).log().mean()) for a, b in grid
    }
    best = min(loss_at, key=lambda pair: loss_at[pair])
    np.testing.assert_allclose(weights[1:3].numpy(), best, atol=0.02)


def test_weights_are_stacked_from_a_thousand_rows_where_doing_nothing_is_out() -> None:
    candidates = [TemperatureScaling(), StructuredVectorScaling(), IsotonicCalibration(floor=1e-3)]
    few, many = (AutoCalibrator(candidates=candidates).fit(*sample(rows)) for rows in (800, 1600))
    for fitted, stack in ((few, False), (many, True)):
        assert fitted.weights[0] == 0
        gain = torch.tensor([trial.gain for trial in fitted.evidence.trials]) * fitted.evidence.rows * CONSTANTS.rate
        plain = torch.softmax(gain, dim=0).double()
        assert torch.allclose(fitted.weights, plain, atol=0.02) != stack
    calibrated = AutoCalibrator(candidates=candidates).fit(*sample(1600, sharpness=1.0))
    assert float(calibrated.weights[0]) > 0.5


def test_zeros_that_no_row_of_the_fit_had_leave_the_other_classes_their_odds() -> None:
    g = torch.Generator().manual_seed(0)
    z = 4 * torch.randn(3000, 6, generator=g, dtype=torch.float64)
    mixed = z @ (0.4 * torch.eye(6).double() + 0.1 * torch.randn(6, 6, generator=g, dtype=torch.float64)).T
    y = torch.softmax(mixed, dim=1).multinomial(1, generator=g)[:, 0]
    calibrator = AutoCalibrator(candidates=[MatrixScaling()]).fit(z, y)
    assert float(calibrator.weights[1]) > 0.5
    p = torch.softmax(z, dim=1)
    rounded = torch.where(p < 1e-5, 0.0, p)
    assert float((rounded == 0).any(dim=1).double().mean()) > 0.3
    whole, answer = (torch.softmax(calibrator(one.log()), dim=1) for one in (p, rounded))
    assert bool((answer[rounded == 0] == 0).all())
    left = whole.masked_fill(rounded == 0, 0.0)
    assert float((answer - left / left.sum(dim=1, keepdim=True)).abs().mean()) < 0.02
