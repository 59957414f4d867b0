"""Which rows to label, and what labels say of the pool: unbiased, covered, and stopped at wrong input."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant import BinaryPairs, Predictions
from calibrant.errors import CalibrantError, FileFormatError, InputError
from calibrant.operate import Monitor, Sample, audit, plan_audit, sample
from calibrant.operate.audit.design import draw, inclusion_probabilities, scores_of
from calibrant.operate.audit.figures import Outlook, Pool
from calibrant.statistics.labelled import Drawn, Terms, interval_of, terms_of


def pool_of(rows: int = 800, *, seed: int = 0, power: float = 1.0) -> tuple[Predictions, torch.Tensor]:
    """Return three-class predictions with labels drawn from them, the log-odds then multiplied by ``power``."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(rows, 3)) * 2
    labels = (z + rng.gumbel(size=z.shape)).argmax(1)
    region = np.where(rng.random(rows) < 0.2, "north", "south")
    return Predictions.from_logits(z * power, features={"region": region}), torch.from_numpy(labels)


def test_probabilities_are_capped_at_one_and_sum_to_the_count() -> None:
    assert inclusion_probabilities(np.array([0.0, 1.0, 1.0, 2.0]), 2) == pytest.approx([0, 0.5, 0.5, 1])
    capped = inclusion_probabilities(np.array([1.0, 1.0, 1.0, 99.0]), 3)
    assert capped == pytest.approx([2 / 3, 2 / 3, 2 / 3, 1])
    assert inclusion_probabilities(np.zeros(5), 5) == pytest.approx(np.ones(5))


def test_rows_are_drawn_as_often_as_their_probabilities_say() -> None:
    rng = np.random.default_rng(0)
    inclusion = inclusion_probabilities(rng.random(40) ** 3, 12)
    order = rng.random(40)
    counts = np.zeros(40)
    for _ in range(2000):
        rows = draw(inclusion, order, rng)
        assert len(np.unique(rows)) == 12
        counts[rows] += 1
    error = np.sqrt(np.maximum(inclusion * (1 - inclusion), 1e-9) / 2000)
    assert np.abs((counts / 2000 - inclusion) / error).max() < 4


def test_an_even_draw_of_few_rows_gives_the_difference_estimate() -> None:
    drawn = Drawn(np.zeros(4, np.int64), np.full(4, 0.04), 100)
    seen, expected = np.array([1.0, 0.0, 1.0, 1.0]), np.array([0.5, 0.5, 0.9, 0.9])
    terms = terms_of(seen, expected, (np.zeros(4), np.ones(4)), drawn, 0.8)
    # mean of m over the pool, plus the mean residual of the labelled rows: .8 + (.5 − .5 + .1 + .1) / 4
    assert terms.centre == pytest.approx(0.85)
    # residuals .45, −.55, .05, .05, which could be −.95 … .45, of 3 degrees of freedom less one for the level
    ends = -0.04 / np.log(0.96) * np.array([-0.95, 0.45, np.sqrt(0.51 / 8)])
    assert (terms.low, terms.high, np.sqrt((terms.values**2).sum() / 8)) == pytest.approx(ends)
    assert drawn.weights == pytest.approx(np.full(4, 25.0))


def test_weights_of_two_batches_stand_for_the_whole_pool() -> None:
    # 2 of 10 rows evenly, then 2 of the 8 that are left, are 4 of 10 evenly: ω ∝ 2 / (10 · 8) and 2 / (8 · 6), .375 and .625
    drawn = Drawn(np.array([0, 0, 1, 1]), np.array([0.2, 0.2, 0.25, 0.25]), 10)
    assert drawn.mixing == pytest.approx([0.375, 0.625])
    assert drawn.weights == pytest.approx(np.full(4, 2.5))


def test_for_a_proportion_the_interval_is_that_of_the_likelihood_ratio() -> None:
    n, hits = 200, 60
    values = np.r_[np.ones(hits), np.zeros(n - hits)]
    terms = Terms(0.3, values - 0.3, -0.3, 0.7, 0)
    low, high = interval_of(terms, alpha=0.05)
    from scipy.stats import t

    limit = t.ppf(0.975, terms.informative) ** 2 / 2 * n / (n - 1)
    for end in (low, high):
        ratio = hits * np.log(0.3 / end) + (n - hits) * np.log(0.7 / (1 - end))
        assert ratio == pytest.approx(limit, rel=1e-6)


def test_without_any_error_the_bound_is_that_of_an_event_not_seen() -> None:
    terms = Terms(1.0, np.zeros(300), -1.0, 0.0, 0)
    low, high = interval_of(terms, alpha=0.05)
    assert high == 1
    assert low == pytest.approx(0.025 ** (1 / 299), rel=1e-6)  # 300 / 299 of the logarithm
    # Where the mean of equal values is off by rounding, none of the residuals counts as information.
    drawn = Drawn(np.zeros(71, np.int64), np.full(71, 71 / 900), 900)
    assert not terms_of(np.ones(71), np.zeros(71), (np.zeros(71), np.ones(71)), drawn, 0.0).values.any()


@pytest.mark.parametrize(
    ("figure", "classes", "power"),
    [*((one, 3, 1.0) for one in ("accuracy", "nll", "brier", "cost")),
     *((one, 2, 2.0) for one in ("aurc", "event-ece", "cost-gap", "classwise-ece"))],
)  # fmt: skip
def test_estimates_are_covered_and_drawn_for_and_means_unbiased(figure: str, classes: int, power: float) -> None:
    whole, labels = pool_of(power=power)
    pool, labels = Predictions.from_logits(whole.logits[:, :classes]), labels.clamp_max(classes - 1)
    costs = [[0, 1, 4], [2, 0, 1], [1, 1, 0]] if classes == 3 else [[0, 1], [6, 0]]
    everything = sample(pool, 800, aim=figure, costs=costs)
    truth = audit(pool, everything, labels[everything.rows], figures=[figure], costs=costs).figures[figure]
    assert classes == 2 or truth.low == pytest.approx(truth.high)  # all rows are labelled
    errors, covered = [], 0
    for seed in range(40):
        drawn = sample(pool, 100, seed=seed, aim=figure, costs=costs)
        found = audit(pool, drawn, labels[drawn.rows], figures=[figure]).figures[figure]
        errors.append(found.estimate - truth.estimate)
        covered += found.low <= truth.estimate <= found.high
    assert classes == 2 or abs(np.mean(errors)) < 3.5 * np.std(errors) / np.sqrt(40)
    assert covered >= 36
    assert classes == 3 or drawn.inclusion.max() > 2 * drawn.inclusion.min()
    assert drawn.aim == figure


@pytest.mark.parametrize("batches", [(800,), (500, 300)])
@pytest.mark.parametrize("kind", ["alone", "by group", "difference"])
def test_the_truth_of_all_rows_is_the_figure_itself(kind: str, batches: tuple[int, ...]) -> None:
    from calibrant.evaluate import cost_calibration
    from calibrant.metrics import AURC, ECE, NLL, Accuracy, Brier, ClasswiseECE

    costs = [[0, 1], [6, 0]]
    metrics: dict[str, Callable[[Predictions], float]] = {
        "accuracy": Accuracy(), "nll": NLL(), "brier": Brier(), "ece": ECE(), "aurc": AURC(),
        "classwise-ece": ClasswiseECE(),
        "event-ece": lambda data: ECE()(data.one_vs_rest(1)),
        "cost-gap": lambda data: abs(cost_calibration(data, costs).difference.estimate),
    }  # fmt: skip
    whole, labels = pool_of(power=2.0)
    logits, labels = (
        whole.logits[:, :2].round(decimals=1),
        labels.clamp_max(1),
    )  # rounded, so that confidences are equal
    pool, region = replace(whole, logits=logits), np.asarray(whole.features["region"])  # type: ignore[index]
    other = Predictions.from_logits(logits * 0.3) if kind == "difference" else None
    drawn = sample(pool, batches[0], aim="aurc", other=other)
    for count in batches[1:]:
        drawn = drawn.extend(count)
    found = audit(
        pool, drawn, labels[drawn.rows], figures=list(metrics), costs=costs, by="region" if kind == "by group" else None
    )
    known = Predictions(logits, labels=labels)
    for name, metric in metrics.items():
        truth = {name: metric(known)}
        if other is not None:
            truth = {name: metric(known) - metric(Predictions(other.logits, labels=labels))}
        if kind == "by group":
            truth = {f"{name}[{one}]": metric(known[torch.from_numpy(region == one)]) for one in ("north", "south")}
        for full, value in truth.items():
            assert [found.figures[full].low, found.figures[full].high] == pytest.approx([value] * 2, abs=1e-9)


def test_the_class_wise_error_of_all_rows_is_the_metric_of_three_classes() -> None:
    from calibrant.metrics import ClasswiseECE

    pool, labels = pool_of(power=2.0)
    drawn = sample(pool, 800, aim="classwise-ece")
    found = audit(pool, drawn, labels[drawn.rows], figures=["classwise-ece"]).figures["classwise-ece"]
    assert [found.low, found.high] == pytest.approx([ClasswiseECE()(Predictions(pool.logits, labels=labels))] * 2)


def test_the_next_batch_holds_new_rows_and_learns_the_temperature() -> None:
    pool, labels = pool_of(power=4.0)
    first = sample(pool, 100, seed=3)
    second = first.extend(100, labels=labels[first.rows])
    assert len(set(second.rows.tolist())) == 200
    assert second.batches == 2
    plain = first.extend(100)
    assert not np.array_equal(plain.rows[100:], second.rows[100:])
    found = audit(pool, second, {int(row): int(labels[row]) for row in second.rows})
    truth = float((pool.predicted == labels).double().mean())
    assert found.figures["accuracy"].low <= truth <= found.figures["accuracy"].high


def test_a_draw_for_the_log_loss_doubts_the_probabilities_less_once_labels_have_taught() -> None:
    untaught, taught = (
        scores_of(Outlook(np.zeros(2), np.array([0.0, 1.0]), flat=np.ones(2)), taught=taught)
        for taught in (False, True)
    )
    assert 0 < taught[0] / taught[1] < untaught[0] / untaught[1]
    pool, labels = pool_of()
    first = sample(pool, 100, aim="nll", seed=3)
    learned = Pool(pool).fitted_temperature(first.rows, labels[first.rows].numpy())
    second = first.extend(100, labels=labels[first.rows])
    score = scores_of(Pool(pool).outlook("nll", temperature=learned, design=True), taught=True)
    assert np.ptp(second.inclusion[100:] / score[second.rows[100:]]) < 1e-12


def test_limits_are_decided_or_more_labels_are_asked_for() -> None:
    pool, labels = pool_of(4000)
    drawn = sample(pool, 300, seed=1)
    truth = float((pool.predicted == labels).double().mean())
    clear = audit(pool, drawn, labels[drawn.rows], minimum={"accuracy": truth - 0.2})
    assert (clear.verdict, clear.more) == ("pass", 0)
    assert "decided: pass" in str(clear)
    assert audit(pool, drawn, labels[drawn.rows], maximum={"error": 0.05}).verdict == "fail"
    near = audit(pool, drawn, labels[drawn.rows], minimum={"accuracy": clear.figures["accuracy"].estimate - 0.03})
    assert near.verdict == "not enough evidence"
    # a first look's interval is ± 2.241 standard errors, a second one's ± 2.638
    line = near.lines[0]
    away = line.interval.estimate - line.limit
    half = line.interval.estimate - line.interval.low if away > 0 else line.interval.high - line.interval.estimate
    needed = 300 * (half * 2.638 / 2.241 / away) ** 2
    assert near.more == (None if needed > 4000 else pytest.approx(needed - 300, rel=0.01))
    assert audit(pool, drawn, labels[drawn.rows]).verdict is None


def test_groups_get_equal_numbers_of_labels_and_their_own_figures() -> None:
    pool, labels = pool_of(3000)
    drawn = sample(pool, 300, aim="worst group", by="region", seed=1)
    region = np.asarray(pool.features["region"])  # type: ignore[index]
    labels[region == "north"] = pool.predicted[region == "north"]  # of which the model is always right
    assert 120 <= (region[drawn.rows] == "north").sum() <= 180
    found = audit(pool, drawn, labels[drawn.rows], by="region")
    for name in ("north", "south"):
        members = torch.from_numpy(region == name)
        truth = float((pool.predicted == labels)[members].double().mean())
        assert found.figures[f"accuracy[{name}]"].low <= truth <= found.figures[f"accuracy[{name}]"].high


def test_a_second_model_is_compared_on_the_same_rows() -> None:
    pool, labels = pool_of()
    other = Predictions.from_logits(pool.logits.roll(1, 0))
    drawn = sample(pool, 150, other=other)
    found = audit(pool, drawn, labels[drawn.rows]).figures["accuracy"]
    truth = float((pool.predicted == labels).double().mean() - (other.predicted == labels).double().mean())
    assert found.low <= truth <= found.high
    assert found.low > 0


def test_several_models_share_the_error_of_their_limits(tmp_path: Path) -> None:
    pool, labels = pool_of()
    others = {name: Predictions.from_logits(pool.logits.roll(at + 1, 0)) for at, name in enumerate("bc")}
    for second in (None, others["c"]):
        drawn = sample(pool, 150, other=second)
        drawn.labelled(labels[drawn.rows]).save(tmp_path / "s.json")
        loaded = Sample.load(tmp_path / "s.json", pool=pool, other=others)
        found = audit(pool, loaded, minimum={"accuracy": 0.1, "brier": -1})
        assert list(found.figures) == [f"{name} minus {other}" for other in "bc" for name in ("accuracy", "brier")]
        # one look spends 1 / 2 of the allowed error, and each of four tests a quarter of that
        assert {line.interval.level for line in found.lines} == {1 - 0.05 / 8}
        alone = audit(pool, Sample.load(tmp_path / "s.json", pool=pool, other=others["c"]))
        assert alone.figures["accuracy"] == found.figures["accuracy minus c"]
    with pytest.raises(InputError, match="expected one second model to draw for, got 2"):
        sample(pool, 10, other=others)


def test_a_saved_sample_of_two_models_asks_for_the_second_again(tmp_path: Path) -> None:
    pool, labels = pool_of()
    other = Predictions.from_logits(pool.logits.roll(1, 0))
    drawn = sample(pool, 150, other=other)
    drawn = drawn.labelled(labels[drawn.rows])
    drawn.save(tmp_path / "two.json")
    loaded = Sample.load(tmp_path / "two.json")
    for call in (lambda: audit(pool, loaded), lambda: loaded.extend(10, pool=pool)):
        with pytest.raises(InputError, match=r"scores of both models .* got those of one; load it with Sample.load"):
            call()
    with pytest.raises(InputError, match="pool beside other"):
        Sample.load(tmp_path / "two.json", other=other)
    with pytest.raises(InputError, match="scores that the sample was drawn from"):
        Sample.load(tmp_path / "two.json", pool=other, other=pool)
    loaded = Sample.load(tmp_path / "two.json", pool=pool, other=other)
    assert audit(pool, loaded).figures == audit(pool, drawn).figures
    assert loaded.extend(10).rows.tolist() == drawn.extend(10).rows.tolist()


def test_a_saved_sample_keeps_its_costs(tmp_path: Path) -> None:
    pool, labels = pool_of()
    classes = pool.classes
    costs = (5 * torch.arange(1.0, classes + 1)[:, None] * (1 - torch.eye(classes))).tolist()
    drawn = sample(pool, 100, aim="cost", costs=costs)
    drawn = drawn.labelled(labels[drawn.rows])
    drawn.save(tmp_path / "costs.json")
    loaded = Sample.load(tmp_path / "costs.json")
    found = audit(pool, loaded, figures=["cost"]).figures
    assert found == audit(pool, drawn, figures=["cost"]).figures
    assert found["cost"].estimate > audit(pool, loaded, figures=["error"]).figures["error"].estimate
    assert loaded.extend(20, pool=pool).rows.tolist() == drawn.extend(20).rows.tolist()
    old = json.loads((tmp_path / "costs.json").read_text())
    for name in ("costs", "paired", "seal"):  # as the first version wrote it
        del old[name]
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert Sample.load(tmp_path / "old.json").costs is None


def test_ece_is_bounded_and_top_label_pairs_are_taken() -> None:
    pool, labels = pool_of(3000, power=3.0)
    pairs = BinaryPairs.from_decisions(pool.confidence, (pool.predicted == labels).long())
    drawn = sample(pairs, 300, aim="ece")
    found = audit(pairs, drawn, pairs.y[drawn.rows].long(), figures=["ece", "accuracy", "aurc"]).figures
    from calibrant.metrics import AURC, ECE

    truth = float(ECE()(pairs))
    assert found["aurc"].low <= AURC()(pairs) <= found["aurc"].high
    assert found["ece"].low <= truth <= found["ece"].high
    assert found["ece"].low > 0.02
    events = BinaryPairs.from_probs(pairs.p, pairs.y.long())
    of_event = audit(events, replace(drawn, pool=None), pairs.y[drawn.rows].long(), figures=["event-ece"])
    assert of_event.figures["event-ece"] == found["ece"]
    with pytest.raises(InputError, match="decisions, right or wrong, for accuracy, got events"):
        sample(events, 300)
    for figure in ("nll", "event-ece", "classwise-ece", "cost-gap"):
        with pytest.raises(InputError, match=f"probabilities of all classes for {figure}"):
            audit(pairs, drawn, pairs.y[drawn.rows].long(), figures=[figure])


def test_a_sample_is_saved_loaded_and_merged(tmp_path: Path) -> None:
    pool, labels = pool_of()
    drawn = sample(pool, 40)
    again = sample(pool, 40)
    assert np.array_equal(drawn.rows, again.rows)
    half, other = labels[drawn.rows].clone(), labels[drawn.rows].clone()
    half[20:], other[:20] = -1, -1
    whole = drawn.labelled(half).merge(drawn.labelled(other))
    assert (whole.labels >= 0).all()
    whole.save(tmp_path / "s.json")
    back = Sample.load(tmp_path / "s.json")
    assert np.array_equal(back.labels, whole.labels)
    assert np.array_equal(back.extend(5, pool=pool).rows, whole.extend(5).rows)
    with pytest.raises(InputError, match="expected the pool of a sample that was loaded"):
        back.extend(5)
    wrong = half.clone()
    wrong[0] = (wrong[0] + 1) % 3
    with pytest.raises(InputError, match="expected one label a row, got"):
        drawn.labelled(half).merge(drawn.labelled(wrong))


def test_a_saved_sample_whose_rows_were_moved_by_hand_is_refused(tmp_path: Path) -> None:
    pool, _ = pool_of()
    sample(pool, 40).save(tmp_path / "s.json")
    content = json.loads((tmp_path / "s.json").read_text())
    content["rows"] = content["rows"][::-1]  # inclusion probabilities now belong to other rows
    (tmp_path / "s.json").write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match="expected a saved sample"):
        Sample.load(tmp_path / "s.json", pool=pool)


def test_withdrawn_labels_count_as_left_out_by_chance() -> None:
    pool, labels = pool_of(3000)
    drawn = sample(pool, 300)
    told = labels[drawn.rows].clone()
    told[::3] = -1
    found = audit(pool, drawn, told)
    assert (found.labels, found.unlabelled) == (200, 100)
    truth = float((pool.predicted == labels).double().mean())
    assert found.figures["accuracy"].low <= truth <= found.figures["accuracy"].high
    assert "100 drawn rows have no label" in str(found)


def test_a_pool_of_certain_rows_is_drawn_evenly_and_bounded() -> None:
    pool = Predictions.from_probs(torch.tensor([[1.0, 0.0]]).expand(500, 2))
    drawn = sample(pool, 100)
    assert drawn.inclusion == pytest.approx(np.full(100, 0.2))
    figures = audit(pool, drawn, np.zeros(100, int), figures=["accuracy", "ece"]).figures
    found = figures["accuracy"]
    assert (found.estimate, found.high) == (1, 1)
    assert 0.95 < found.low < 0.98
    assert figures["ece"].high == pytest.approx(1 - found.low)  # of errors that no label has shown
    for told in (np.r_[1, np.zeros(99, int)], np.zeros(100, int)):
        with pytest.raises(InputError, match="expected a finite nll of every row"):
            audit(pool, drawn, told, figures=["nll"])


Call = Callable[[Predictions, Sample, torch.Tensor], object]
WRONG: list[tuple[Call, str]] = [
    (lambda pool, drawn, told: audit(pool, drawn, {7: 1}), "expected labels of rows that were drawn, got one of row 7"),
    (lambda pool, drawn, told: audit(Predictions.from_logits(pool.logits * 1.01), drawn, told), "their digests differ"),
    (lambda pool, drawn, told: audit(pool[:700], drawn, told), "expected the pool of 800 rows"),
    (lambda pool, drawn, told: audit(pool, drawn, told[:39]), "expected labels (40,)"),
    (lambda pool, drawn, told: audit(pool, drawn, told + 1), "expected labels from 0 to 2"),
    (lambda pool, drawn, told: audit(pool, drawn), "expected at least 10 labelled rows, got 0"),
    (lambda pool, drawn, told: audit(pool, drawn, -torch.ones(40)), "expected at least 10 labelled rows, got 0"),
    (lambda pool, drawn, told: audit(pool, drawn, figures=()), "expected at least 10 labelled rows, got 0"),
    (lambda pool, drawn, told: audit(pool, replace(drawn, inclusion=np.zeros(40)), told), "probabilities from 1e-12 to 1"),
    (lambda pool, drawn, told: audit(pool, replace(drawn, inclusion=np.full(40, 1e-300)), told), "probabilities from 1e-12 to 1"),
    (lambda pool, drawn, told: audit(pool, replace(drawn, rows=drawn.rows[[0, *range(39)]]), told), "each row of the pool at most once"),
    (lambda pool, drawn, told: drawn.labelled(told).merge(drawn.labelled(told).labelled((told + 1) % 3)), "one label a row"),
    (lambda pool, drawn, told: audit(pool, drawn, ["a"] * 40), "expected class indices as a numeric tensor"),
    (lambda pool, drawn, told: audit(pool, drawn, told, minimum={"accuracy": 90}), "expected a limit of accuracy from 0 to 1"),
    (lambda pool, drawn, told: drawn.merge(sample(pool, 40, seed=9)), "expected two samples of the same draw"),
    (lambda pool, drawn, told: audit(pool, drawn, told, figures=["event-ece"]), "expected two classes for event-ece, got 3"),
    (lambda pool, drawn, told: Pool(Predictions.from_logits(torch.zeros(9, 101))).means("classwise-ece"), "at most 100 classes"),
    (lambda pool, drawn, told: plan_audit(pool, aim="event-ece"), "expected aim as one of accuracy, error, nll, brier, cost, aurc"),
    (lambda pool, drawn, told: sample(pool, 801), "budget"),
    (lambda pool, drawn, told: drawn.extend(761), "count"),
    (lambda pool, drawn, told: sample(pool, 10, aim="worst group"), "worst group"),
    (lambda pool, drawn, told: sample(pool, 10, aim="worst group", by="age"), "a feature of the pool"),
    (lambda pool, drawn, told: sample(Predictions.from_probs(torch.ones(100, 1)), 10), "K ≥ 2 classes, got K = 1"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_wrong_input_is_one_sentence(call: Call, message: str) -> None:
    pool, labels = pool_of()
    drawn = sample(pool, 40)
    assert 7 not in drawn.rows
    with pytest.raises(InputError, match=re.escape(message)):
        call(pool, drawn, labels[drawn.rows])


def test_a_state_that_was_cut_or_changed_answers_as_before_or_in_one_sentence(tmp_path: Path) -> None:
    pool, labels = pool_of()
    drawn = sample(pool, 40, seed=2)
    path = tmp_path / "x.json"
    drawn.labelled(labels[drawn.rows]).save(path)
    whole = path.read_text()
    for cut in range(0, len(whole), 10):
        path.write_text(whole[:cut])
        with pytest.raises(FileFormatError, match="expected a saved sample"):
            Sample.load(path)
    content, rng = json.loads(whole), random.Random(0)
    hostile = [None, True, -1, 1.5, "x", "", [], {}, [[1]], ["a"], 10**30, float("nan"), float("inf")]
    hostile += [[value] * 40 for value in (None, True, 0, -1, 0.5, "1", 10**30)]
    for _ in range(80):
        name, value = rng.choice(list(content)), rng.choice(hostile)
        path.write_text(json.dumps({**content, name: value}))
        try:
            changed = Sample.load(path)
            found = audit(pool, changed)
            changed.extend(5, pool=pool)
        except CalibrantError:
            continue
        assert found.labels == 40
        assert name in ("inclusion", "labels", "by", "costs", "digest", "seed")


def test_equal_confidences_are_nothing_to_regress_on() -> None:
    right = torch.arange(1500) % 10 > 0
    side = torch.arange(1500) % 2
    pool = Predictions.from_binary_probs(torch.where(side == 1, 0.93, 0.07))  # .93 and 1 − .07 differ by rounding
    drawn = sample(pool, 100)
    found = audit(pool, drawn, torch.where(right, side, 1 - side)[drawn.rows]).figures["accuracy"]
    assert found.estimate == pytest.approx(0.9, abs=0.08)


@pytest.mark.parametrize("pairs", [False, True])
def test_labelled_rows_carry_the_weights_by_which_they_stand_for_the_pool(pairs: bool) -> None:
    from calibrant.calibrators import TemperatureScaling
    from calibrant.metrics import NLL, Accuracy

    whole, labels = pool_of(3000, power=2.0)
    pool = BinaryPairs.from_decisions(whole.confidence, torch.zeros(3000, dtype=torch.int64)) if pairs else whole
    labels = (whole.predicted == labels).long() if pairs else labels
    drawn = sample(pool, 300).extend(300)
    drawn = drawn.labelled(labels[drawn.rows])
    rows = drawn.predictions()
    assert len(rows) == 600
    assert float(drawn.weights.sum()) == pytest.approx(3000, rel=0.1)
    assert Accuracy()(rows) == pytest.approx(audit(pool, drawn).figures["accuracy"].estimate, abs=0.05)
    if isinstance(rows, Predictions):
        assert torch.equal(rows.need_labels(), labels[drawn.rows])
        assert 1.5 < float(TemperatureScaling().fit(rows).temperature) < 2.7  # the log-odds were doubled
        assert NLL()(rows) == pytest.approx(float(torch.nn.functional.cross_entropy(whole.logits, labels)), rel=0.2)
    with pytest.raises(InputError, match="expected labelled rows, got none"):
        sample(pool, 20).predictions()


@pytest.mark.parametrize("spread", [False, True])
def test_a_streamed_pool_gives_the_sample_and_the_figures_of_the_pool_in_memory(tmp_path: Path, spread: bool) -> None:
    import pyarrow.parquet as pq

    from calibrant import save_predictions
    from calibrant.scale.rows import ParquetRows

    pool, labels = pool_of(3000)
    for part in range(3):
        rows, path = torch.arange(1000 * part, 1000 * (part + 1)), tmp_path / f"{part}.parquet"
        save_predictions(path, {"all": pool[rows]})
        if spread:  # one column for each class
            table = pq.read_table(path).drop(["logits"])
            for at in (2, 0, 1):
                table = table.append_column(f"logit_{at}", [pool.logits[rows, at].numpy()])
            pq.write_table(table, path)
    streamed = ParquetRows(tmp_path)
    settings = {"aim": "worst group", "by": "region"}
    one, two = (sample(source, 200, **settings) for source in (pool, streamed))
    assert (one.rows.tolist(), one.digest) == (two.rows.tolist(), two.digest)
    one, two = (drawn.extend(50, labels=labels[drawn.rows]) for drawn in (one, two))
    assert one.rows.tolist() == two.rows.tolist()
    for figures in (["accuracy", "nll"], ["ece", "aurc", "classwise-ece"]):
        told = [
            audit(source, drawn, labels[drawn.rows], figures=figures)
            for source, drawn in ((pool, one), (streamed, two))
        ]
        assert told[0].figures == told[1].figures
    assert audit(streamed, two, labels[two.rows], by="region").figures.keys() == {"accuracy[north]", "accuracy[south]"}
    assert torch.equal(two.labelled(labels[two.rows]).predictions().logits, pool.logits[two.rows])
    with pytest.raises(InputError, match="expected a streamed pool of one model, without weights, got a second model"):
        sample(streamed, 10, other=pool)


def test_a_plan_tells_the_labels_with_and_without_the_scores_and_holds_in_an_audit() -> None:
    pool, labels = pool_of(6000)
    plan = plan_audit(pool, half_width=0.04, price=0.5)
    assert plan.labels < 0.85 * plan.labels_even
    drawn = sample(pool, plan.labels, seed=1)
    found = audit(pool, drawn, labels[drawn.rows]).figures["accuracy"]
    assert (found.high - found.low) / 2 == pytest.approx(0.04, rel=0.2)
    # A proportion p of n simple random rows: 1.96 √(p (1 − p) / n), about.
    p, point = found.estimate, plan.curve[2]
    assert point.even == pytest.approx(1.96 * np.sqrt(p * (1 - p) / point.labels), rel=0.1)
    assert point.money == 0.5 * point.labels
    assert f"{plan.labels} labels, {0.5 * plan.labels:,.2f} in money" in str(plan)
    # of a pool of 700 rows 400 and 566 leave so few that the half-width falls faster than 1 / √labels
    few = pool_of(700)[0]
    small = plan_audit(few, half_width=0.02)
    wide = [one.labels for one in small.curve if one.even > 0.02]
    assert small.labels_even is not None
    assert max(wide) < small.labels_even <= min(one.labels for one in small.curve if one.even <= 0.02)
    for aim in ("nll", "cost", "aurc"):
        assert plan_audit(few, aim=aim, costs=[[0, 1, 4], [2, 0, 1], [1, 1, 0]], draws=2).half_width is None
    assert plan_audit(Predictions(pool.logits, labels=labels).top_label(), half_width=0.04).labels == pytest.approx(
        plan.labels, rel=0.15
    )


def test_a_monitor_watches_rows_of_a_sample_as_evenly_drawn_ones() -> None:
    from calibrant.operate.rows import even_rows

    pool, labels = pool_of(20000)
    drawn = sample(pool, 4000, seed=1)
    rows = drawn.labelled(labels[drawn.rows]).predictions(pool)
    kept = even_rows(rows)
    assert kept.weights is None
    # An even sample of the pool: its mean confidence is the pool's, which that of the drawn rows is not.
    error = float(pool.confidence.std()) / len(kept) ** 0.5
    assert abs(float(kept.confidence.mean() - pool.confidence.mean())) < 3.5 * error
    assert abs(float(rows.confidence.mean() - pool.confidence.mean())) > 5 * error
    assert torch.equal(even_rows(rows).logits, kept.logits)
    monitor = Monitor(Predictions(pool.logits[:5000], labels=labels[:5000]))
    assert monitor.update(rows).rows == len(kept)
    assert not monitor.alarm
    with pytest.raises(InputError, match="new rows"):
        monitor.update(rows)
