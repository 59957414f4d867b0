"""The gate: three verdicts, together at 5 %, and one sentence for what it cannot decide."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from calibrant import Pairs, Predictions
from calibrant.errors import InputError
from calibrant.metrics import ECE, Accuracy
from calibrant.operate import assert_calibrated, check
from calibrant.operate.bounds import mean_ends, share_ends


def binary(*, rows: int, confidence: float = 0.9, accuracy: float = 0.9, seed: int = 0) -> Predictions:
    right = np.zeros(rows, dtype=np.int64)
    right[: round(accuracy * rows)] = 1
    return Predictions.from_binary_probs([confidence] * rows, np.random.default_rng(seed).permutation(right))


@pytest.mark.parametrize(
    ("rows", "accuracy", "verdict"),
    [(6000, 0.9, "pass"), (2000, 0.8, "fail"), (100, 0.9, "not enough evidence"), (1, 1.0, "not enough evidence")],
)
def test_three_verdicts(rows: int, accuracy: float, verdict: str) -> None:
    found = check(binary(rows=rows, accuracy=accuracy), maximum={"ece": 0.05})
    assert found.verdict == verdict
    line = found.lines[0]
    assert line.low <= line.value <= line.high
    assert line.value == pytest.approx(ECE()(binary(rows=rows, accuracy=accuracy)))


def test_a_bound_at_the_limit_keeps_it() -> None:
    low, high = share_ends(900, 1000, alpha=0.025)
    verdicts = [check(binary(rows=1000), minimum={"accuracy": limit}).verdict for limit in (low, high)]
    assert verdicts == ["pass", "not enough evidence"]


@pytest.mark.parametrize("limits", [{"minimum": {"accuracy": 0.88}}, {"maximum": {"ece": 0.04, "brier": 0.2}}])
def test_the_rows_that_are_advised_do_decide(limits: dict[str, dict[str, float]]) -> None:
    decided, rng = [], np.random.default_rng(0)
    for _ in range(60):
        p = rng.choice([0.85, 0.95], 60_300)
        y = (rng.random(len(p)) < p - 0.01).astype(int)
        for line in check(Predictions.from_binary_probs(p[:300], y[:300]), **limits).lines:
            if line.verdict == "not enough evidence" and line.more_rows <= 60_000:
                assert line.more in str(line)
                more = Predictions.from_binary_probs(p[: 300 + line.more_rows], y[: 300 + line.more_rows])
                kind, alpha = {line.kind: {line.metric: line.limit}}, check(more, **limits).alpha
                decided.append(check(more, **kind).lines[0].verdict != "not enough evidence" or alpha < 0.025)
    assert len(decided) > 20
    assert np.mean(decided) > 0.7


def test_the_gate_passes_a_brier_score_where_a_t_test_would() -> None:
    rng, passed = np.random.default_rng(1), 0
    for _ in range(60):
        p = rng.choice([0.85, 0.95], 500)
        data = Predictions.from_binary_probs(p, (rng.random(500) < p).astype(int))
        # E = .175 with a standard deviation of .456 a row: 3.2 standard errors from the limit, where t passes in .89
        passed += check(data, maximum={"brier": 0.175 + 3.2 * 0.456 / 500**0.5}).verdict == "pass"
    assert passed / 60 > 0.7


def test_a_line_among_many_needs_more_evidence() -> None:
    data = binary(rows=1000)
    alone = check(data, maximum={"ece": 0.05})
    among = check(data, maximum={"ece": 0.05, "error": 0.3, "brier": 0.5}, minimum={"accuracy": 0.5})
    assert (alone.alpha, among.alpha) == (0.025, 0.0125)
    assert among.lines[0].high > alone.lines[0].high


def test_few_rows_have_the_bounds_of_means_within_their_ranges() -> None:
    data = binary(rows=40, confidence=0.95, accuracy=0.4)
    found = check(data, maximum={"brier": 0.1, "event-ece": 0.1})
    gaps = 0.95 - data.require_labels().double().numpy()
    brier, event = found.lines
    assert (brier.low, brier.high) == pytest.approx(mean_ends(2 * gaps**2, low=0, high=2, alpha=found.alpha))
    # a binned error is at least the gap over all rows, of which both sides are bounded
    assert (event.low, event.high) == pytest.approx((mean_ends(gaps, low=-1, high=1, alpha=found.alpha / 2)[0], 1))
    assert 0 < event.low < event.value


def test_pairs_have_no_brier_but_an_ece() -> None:
    pairs = Pairs.from_top_label([0.9] * 2000, [1] * 2000, [1] * 1800 + [0] * 200)
    assert check(pairs, maximum={"ece": 0.06}).verdict == "pass"
    with pytest.raises(InputError, match="over all classes"):
        check(pairs, maximum={"brier": 0.2})


def test_an_assertion_fails_skips_or_returns_the_check() -> None:
    found = assert_calibrated(binary(rows=6000), ece=0.05, maximum={"error": 0.2})
    assert [(line.metric, line.verdict) for line in found.lines] == [("error", "pass"), ("ece", "pass")]
    with pytest.raises(AssertionError, match="fail"):
        assert_calibrated(binary(rows=2000, accuracy=0.8), ece=0.05)
    with pytest.raises(pytest.skip.Exception):
        assert_calibrated(binary(rows=100), ece=0.05)


def test_the_worst_group_fails_alone_and_is_named() -> None:
    data = Predictions.cat([binary(rows=3000), binary(rows=3000, accuracy=0.75, seed=1)])
    region = np.array(["north"] * 3000 + ["south"] * 3000)
    found = check(data, maximum={"worst-group-ece": 0.05}, features={"region": region})
    assert found.verdict == "fail"
    assert "worst group region = south (3,000 rows)" in found.lines[0].note
    good = binary(rows=6000)
    assert check(good, maximum={"worst-group-ece": 0.05}, features={"region": region}).verdict == "pass"
    lopsided = np.array(["north"] * 5990 + ["south"] * 10)
    found = check(good, maximum={"worst-group-ece": 0.05}, features={"region": lopsided})
    assert found.verdict == "not enough evidence"
    named = replace(good, features={"region": region})
    assert check(named, minimum={"worst-group-accuracy": 0.85}, features=["region"]).verdict == "pass"


def test_a_baseline_holds_the_same_rows() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(3000, 3)) * 2
    labels = (z + rng.gumbel(size=z.shape)).argmax(1)
    old, sharper = Predictions.from_logits(z, labels), Predictions.from_logits(z * 1.02, labels)
    worse = Predictions.from_logits(z * 3, labels)
    margins = {"nll": 0.02, "brier": 0.02, "accuracy": 0.01}
    assert check(sharper, no_worse=margins, baseline=old).verdict == "pass"
    found = check(worse, no_worse={"nll": 0.02, "brier": 0.005, "ece": 0.01}, baseline=old)
    assert [line.verdict for line in found.lines] == ["fail"] * 3
    turned = Predictions.from_logits(np.where(np.arange(3000)[:, None] < 300, z[:, ::-1], z), labels)
    (line,) = check(turned, no_worse={"accuracy": 0.01}, baseline=old).lines
    assert line.value == pytest.approx(Accuracy()(old) - Accuracy()(turned))
    other = Predictions.from_logits(z[:2000], labels[:2000])
    for wrong in (other, Predictions.from_logits(z, np.roll(labels, 1))):
        with pytest.raises(InputError, match="the same rows in the same order"):
            check(sharper, no_worse=margins, baseline=wrong)
    named = Predictions.from_logits(z, labels, class_names=["a", "b", "c"])
    turned = Predictions.from_logits(z[:, ::-1].copy(), 2 - labels, class_names=["c", "b", "a"])
    with pytest.raises(InputError, match=r"the classes of the model, in order: a, b, c.*c, b, a"):
        check(named, no_worse=margins, baseline=turned)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "such as a maximum of 0.03 for ece (`maximum=`, or `--max` on the command line)"),
        ({"maximum": {"nll": 0.3}}, "'nll' cannot have a maximum; give a limit against a baseline instead"),
        ({"minimum": {"ece": 0.03}}, "'ece' cannot have a minimum; give a maximum instead (`maximum=`, or `--max`"),
        ({"no_worse": {"f1": 0.3}}, "choose one of accuracy, error, brier, ece, event-ece, nll"),
        ({"maximum": {"ece": 1.3}}, "the limit of ece must lie in [0, 1], not 1.3; 1.3 % is 0.013"),
        ({"maximum": {"worst-group-ece": 0.1}}, "needs the columns that define groups (`features=`, or `--by`"),
    ],
)
def test_what_cannot_be_checked_is_one_sentence(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        check(binary(rows=100), **arguments)


def test_plain_is_json_without_infinities() -> None:
    one, other = (binary(rows=1, confidence=p, accuracy=1.0) for p in (0.9, 0.8))
    found = check(one, maximum={"ece": 0.05}, no_worse={"nll": 0.1}, baseline=other)
    assert json.loads(json.dumps(found.plain(), allow_nan=False))["verdict"] == "not enough evidence"


def test_advised_rows_say_from_which_value_they_are_counted() -> None:
    logits = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.multinomial(torch.softmax(logits, 1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
    line = check(Predictions.from_logits(logits, labels), maximum={"ece": 0.04}).lines[0]
    assert line.verdict == "not enough evidence"
    # a calibrated model of 400 rows shows the noise of its bins alone
    counted = re.search(r"counted from (0\.\d+), the value without the sampling noise in its bins", line.note)
    assert counted is not None
    assert float(counted.group(1)) < 0.04 < line.value


def test_log_losses_of_few_errors_are_not_enough_evidence() -> None:
    new = Predictions.from_binary_probs([0.999] * 2, [1, 1])
    old = Predictions.from_binary_probs([0.9] * 2, [1, 1])
    line = check(new, baseline=old, no_worse={"nll": 0.0}).lines[0]
    assert line.verdict == "not enough evidence"
    assert line.more_rows == 62
    assert "20 wrong decisions with different" in line.note


def test_expected_changes_widen_the_error_of_a_log_loss() -> None:
    labels = [1] * 380 + [0] * 20
    new, old = (Predictions.from_binary_probs([p] * 400, labels) for p in (0.999, 0.9))
    line = check(new, baseline=old, no_worse={"nll": 0.0}).lines[0]
    # 20 rows lost 4.6 nats, of which the old model expects 40 to do so
    gain, loss = (math.log(a / b) - line.value for a, b in ((0.9, 0.999), (0.1, 0.001)))
    assert (line.high - line.low) / 2 == pytest.approx(2 * (360 * gain**2 + 40 * loss**2) ** 0.5 / 400, rel=0.1)
    reach = []
    for p in (0.999, 0.9):  # as many events of size S / V as the upper bound of a Poisson count allows
        second, third = (400 * ((1 - p) * loss**k + p * gain**k) for k in (2, 3))
        count = second**3 / third**2
        reach.append(abs(third) / second * (stats.chi2.ppf(0.975, 2 * (count + 1)) / 2 - count) / 400)
    assert line.high - line.value == pytest.approx(max(reach), rel=1e-9)


def test_an_event_fails_its_limit_where_its_decisions_cancel() -> None:
    g = torch.Generator().manual_seed(0)
    truth = torch.tensor([0.3, 0.5], dtype=torch.float64).repeat(3000)
    labels = torch.bernoulli(truth, generator=g).long()
    said = truth + 0.1  # decisions with confidence .6, right in 70 % against the event and in 50 % for it
    model = Predictions.from_probs(torch.stack([1 - said, said], dim=1), labels)
    limits = {"ece": 0.05, "event-ece": 0.05, "worst-group-event-ece": 0.05}
    found = check(model, maximum=limits, features={"half": np.arange(6000) // 3000})
    assert [line.verdict for line in found.lines[:2]] == ["pass", "fail"]
    assert {line.verdict for line in found.lines[2:]} == {"fail"}
    line = found.lines[1]
    assert abs(line.value - ECE()(model.one_vs_rest(1))) < 1e-12
    assert check(Pairs.from_probs(said, labels), maximum={"event-ece": 0.05}).lines[0].value == line.value
    right = Predictions.from_probs(torch.stack([1 - truth, truth], dim=1), labels)
    assert check(right, maximum={"event-ece": 0.05}).verdict == "pass"
    assert check(model, no_worse={"event-ece": 0.01}, baseline=right).verdict == "fail"
    three = Predictions.from_logits(torch.randn(50, 3, generator=g), torch.zeros(50, dtype=torch.int64))
    with pytest.raises(InputError, match="event-ece needs two classes"):
        check(three, maximum={"event-ece": 0.02})


@pytest.mark.parametrize("rows", [1, 30])
def test_an_unchanged_model_is_no_worse(rows: int) -> None:
    model = Predictions.from_probs([[0.5, 0.5]] * rows, [0] * rows)
    same = Predictions.from_logits(torch.full((rows, 2), 3.0), [0] * rows)
    for line in check(same, baseline=model, no_worse=dict.fromkeys(("nll", "ece", "brier", "accuracy"), 0.0)).lines:
        assert (line.verdict, line.low, line.high, line.more_rows) == ("pass", 0.0, 0.0, None)
    pairs = Pairs.from_probs([0.5] * rows, [0] * rows)
    assert check(pairs, baseline=pairs, no_worse={"event-ece": 0.0}).verdict == "pass"
    with pytest.raises(InputError, match="event-ece needs two classes"):
        three = Predictions.from_logits([[0.0, 1.0, 2.0]], [0])
        check(three, baseline=three, no_worse={"event-ece": 0.0})


def test_models_with_few_telling_rows_have_bounded_losses() -> None:
    half = Predictions.from_probs([[0.5, 0.5]] * 30, [0] * 30)
    sure = Predictions.from_probs([[1.0, 0.0]] * 30, [0] * 30)
    huge = Predictions.from_logits(torch.tensor([[1e200, 0.0]] * 30, dtype=torch.float64), [0] * 30)
    near = Predictions.from_probs([[0.5, 0.5]] * 29 + [[0.6, 0.4]], [0] * 30)
    lines = [check(new, baseline=half, no_worse={"nll": 0.0}).lines[0] for new in (sure, huge, near)]
    assert [line.verdict for line in lines] == ["not enough evidence"] * 3
    assert lines[0].high == lines[1].high == math.inf
    assert 0 < lines[2].high < math.log(2)
    assert "this assumes that no row changes by more than 0.916" in lines[2].note
    assert check(near, baseline=half, no_worse={"nll": 0.5}).verdict == "pass"


def test_models_whose_losses_differ_for_no_label_need_evidence() -> None:
    one, other = (Predictions.from_probs([[0.2, *rest]] * 30, [0] * 30) for rest in ((0.3, 0.5), (0.5, 0.3)))
    line = check(one, baseline=other, no_worse={"nll": 0.01}).lines[0]
    assert (line.value, line.verdict) == (0.0, "not enough evidence")
    assert line.more_rows > 30
