"""The library's promises. Each is a trial on one sample from a population that tells whether the promise was broken.

A trial returns {"shown": 0 or 1, "broken": 0 or 1}, where "shown" tells whether there was an answer, such as an interval or a
verdict. If there are two wrong decisions, "broken" counts the more frequent one and "other" the less frequent one. An empty dict
means that the promise does not apply to the population.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from scipy.stats import t as student

from benchmarks.populations.population import BINS, Population
from calibrant import Predictions
from calibrant.binning import EqualMass
from calibrant.calibrators import (
    AutoCalibrator,
    Calibrator,
    IsotonicCalibration,
    StructuredMatrixScaling,
    TemperatureScaling,
)
from calibrant.evaluate import compare, compare_all, subgroups
from calibrant.metrics import ECE, NLL, Accuracy, Brier, ClasswiseECE, DebiasedECE, MeanMetric, Metric, TopLabelECE
from calibrant.operate import Monitor, abstain, check, estimate
from calibrant.statistics import interval, null_band

Outcome = dict[str, float]
Trial = Callable[[Population, int, int], Outcome]  # population, n, seed

METRICS: dict[str, Metric] = {
    "accuracy": Accuracy(),
    "nll": NLL(),
    "brier": Brier(),
    "ece": ECE(),
    "mass": ECE(EqualMass(BINS)),
    "debiased": DebiasedECE(),
    "classwise": ClasswiseECE(),
    "toplabel": TopLabelECE(),
}
GATED = {"accuracy": "minimum", "brier": "maximum", "ece": "maximum"}
FITTED: dict[str, type[Calibrator]] = {
    "temperature": TemperatureScaling,
    "isotonic": IsotonicCalibration,
    "auto": AutoCalibrator,
}
ERROR = 0.05  # the error rate among answers that abstention guarantees
HARM, LEAST_HARM = 0.01, 0.001  # smaller increases of the log-loss, relative and in nats, are negligible


def _interval(figure: str) -> Trial:
    """Test that a 95 % interval contains the true value."""

    def trial(population: Population, n: int, seed: int) -> Outcome:
        if figure == "nll" and not np.isfinite(population.nll):
            return {}
        data, metric = population.draw(n, seed), METRICS[figure]
        if figure == "mass":  # the error in the bins of this sample
            truth = population.ece_between(metric.binning.edges(data.confidence).numpy())
        else:
            truth = getattr(population, figure)
        found = interval(metric, data)
        return {"shown": 1.0, "broken": float(not found.low - 1e-9 <= truth <= found.high + 1e-9)}

    return trial


def _limit(figure: str) -> Trial:
    """Test that a calibrated model exceeds the 97.5 % limit in at most 2.5 % of samples."""

    def trial(population: Population, n: int, seed: int) -> Outcome:
        data = population.calibrated.draw(n, seed)
        band = null_band(METRICS[figure], data, draws=1000, seed=seed)
        return {"shown": 1.0, "broken": float(METRICS[figure](data) > band.high + 1e-12)}

    return trial


def _gate(figure: str) -> Trial:
    """Test that the gate passes, and fails, in at most 2.5 % of samples if the limit is the true value."""

    def trial(population: Population, n: int, seed: int) -> Outcome:
        if not population.independent:
            return {}
        limits = {GATED[figure]: {figure: min(max(population.value(figure), 0.0), 1.0)}}
        verdict = check(population.draw(n, seed), **limits).verdict  # type: ignore[arg-type]
        shown = float(verdict != "not enough evidence")
        return {"shown": shown, "broken": float(verdict == "fail"), "other": float(verdict == "pass")}

    return trial


def _power(figure: str, sign: int) -> Trial:
    """Test that the gate, 3.2 standard errors from its limit, is right in at least 80 % of the samples in which a t-test is right.

    For the ECE, its 95 % interval takes the place of the t-test. "shown" tells whether the t-test is right.
    """

    def trial(population: Population, n: int, seed: int) -> Outcome:
        if not population.independent:
            return {}
        data, metric = population.draw(n, seed), METRICS[figure]
        if isinstance(metric, MeanMetric):
            rows = metric.rows(data).double().numpy()
            value, error = float(rows.mean()), float(rows.std(ddof=1)) / math.sqrt(n)
            half = float(student.ppf(0.975, n - 1)) * error
            low, high = value - half, value + half
            limit = population.value(figure) + sign * 3.2 * _standard_error(population, metric, n)
        else:
            found = interval(metric, data)
            low, high = found.low, found.high
            limit = population.value(figure) + sign * 3.2 * _standard_error(population, metric, n)
        if not 0 <= limit <= 1:
            return {}
        verdict = check(data, **{GATED[figure]: {figure: limit}}).verdict  # type: ignore[arg-type]
        right = "pass" if (sign > 0) == (GATED[figure] == "maximum") else "fail"
        decided = high <= limit if sign > 0 else low > limit
        return {"shown": float(decided), "broken": float(decided and verdict != right)}

    return trial


@cache
def _standard_error(population: Population, metric: Metric, n: int) -> float:
    """Return the standard deviation of a metric over 200 samples."""
    return float(np.std([metric(population.draw(n, 10**6 + seed)) for seed in range(200)]))


def _advice(figure: str) -> Trial:
    """Test that an undecided gate, with the further rows that it advises, then decides in at least 70 % of samples.

    The limit is 1.5 standard errors above or below the true value, depending on the seed.
    """

    def trial(population: Population, n: int, seed: int) -> Outcome:
        if not population.independent:
            return {}
        side = 1.5 if seed % 2 else -1.5
        limit = population.value(figure) + side * _standard_error(population, METRICS[figure], n)
        if not 0 <= limit <= 1:
            return {}
        limits = {GATED[figure]: {figure: limit}}
        data = population.draw(n, seed)
        line = check(data, **limits).lines[0]  # type: ignore[arg-type]
        if line.more_rows is None or line.more_rows > 1_000_000:
            return {}
        whole = Predictions.cat([data, population.draw(line.more_rows, seed)])
        verdict = check(whole, **limits).verdict  # type: ignore[arg-type]
        return {"shown": 1.0, "broken": float(verdict == "not enough evidence")}

    return trial


def _no_worse(figure: str) -> Trial:
    """Test that a model that is worse than its baseline by exactly the margin passes in at most 2.5 % of samples."""

    def trial(population: Population, n: int, seed: int) -> Outcome:
        sharp = population.sharpened(1.6) if population.new is None else population.new
        margin = replace(population, p=sharp).value(figure) - population.value(figure)
        if not population.independent or not 0 <= margin <= 1:
            return {}
        new, old = population.drawn(n, seed, with_p=sharp)[::-1]
        verdict = check(new, baseline=old, no_worse={figure: margin}).verdict
        return {"shown": float(verdict != "not enough evidence"), "broken": float(verdict == "pass")}

    return trial


def _compare(figure: str) -> Trial:
    """Test that one of two equally good models, over- and under-confident, is called better in at most 5 % of samples."""

    def trial(population: Population, n: int, seed: int) -> Outcome:
        rivals = population.rivals(figure)
        if rivals is None:
            return {}
        a, b = replace(population, p=rivals[0]).drawn(n, seed, with_p=rivals[1])
        row = compare(a, b, metrics=[METRICS[figure]]).rows[0]
        return {"shown": float(row.p_value is not None), "broken": float(row.winner is not None)}

    return trial


def _exchangeable(population: Population, n: int, seed: int) -> Outcome:
    """Test that one of two models that are equal in every metric is called better by any metric in at most 5 % of samples."""
    source, other = population.swapped()
    rows = compare(*source.drawn(n, seed, with_p=other)).rows
    shown = float(np.mean([row.p_value is not None for row in rows]))
    return {"shown": shown, "broken": float(any(row.winner for row in rows))}


def _five(population: Population, n: int, seed: int) -> Outcome:
    """Test that, among five models that are equal in every metric, any is called better in at most 5 % of samples."""
    if not population.independent:
        return {}
    kind, labels, _, rng = population.sampled(n, seed)
    noise = np.random.default_rng(len(population.name)).normal(0, 0.7, (5, *population.p.shape))
    order = rng.permuted(np.tile(np.arange(5), (n, 1)), axis=1)  # which model has which noise, row by row
    logits = np.log(population.p.clip(1e-300)) + noise
    models = {str(m): Predictions.from_logits(torch.from_numpy(logits[order[:, m], kind]), labels) for m in range(5)}
    rows = [row for found in compare_all(models).values() for row in found.rows]
    return {"shown": 1.0, "broken": float(any(row.winner for row in rows))}


def _subgroups(population: Population, n: int, seed: int) -> Outcome:
    """Test that any group of a calibrated model is called miscalibrated in at most 5 % of samples."""
    data = population.calibrated.draw(n, seed)
    rng = np.random.default_rng([seed, n])
    features = {"even": rng.integers(4, size=n), "skewed": rng.geometric(0.4, size=n).clip(max=6)}
    found = subgroups(data, features)
    return {"shown": float(bool(found.rows)), "broken": float(found.p_value < 0.05)}


def _watched(monitor: Monitor, rows: Predictions) -> Outcome:
    """Return whether the monitor raises an alarm on 20 batches, or on batches of 500 rows."""
    step = max(500, len(rows) // 20)
    for start in range(0, len(rows), step):
        monitor.update(rows[start : start + step])
    return {"shown": 1.0, "broken": float(monitor.alarm)}


def _monitor(population: Population, n: int, seed: int) -> Outcome:
    """Test that rows from the distribution of the reference (1,000 rows) raise an alarm in at most 5 % of runs."""
    if not population.independent:
        return {}
    both = population.draw(n + 1000, seed)
    return _watched(Monitor(both[:1000]), both[1000:])


def _monitor_fitted(name: str) -> Trial:
    """Test the same with a reference of 300 rows on which a calibrator was fitted."""

    def trial(population: Population, n: int, seed: int) -> Outcome:
        if not population.independent:
            return {}
        both = population.draw(n + 300, seed)
        fitted = FITTED[name]().fit(both[:300])
        rows = both[300:].calibrated_by(fitted, allow_fit_rows=True)
        return _watched(Monitor.from_fit(fitted, both[:300]), rows)

    return trial


def _monitor_moved(population: Population, n: int, seed: int) -> Outcome:
    """Test the monitor on 20 batches of 500 rows whose scores have moved, while labels given the scores have not."""
    if population.later is None:
        return {}
    monitor = Monitor(population.draw(n, seed))
    for number in range(20):
        mass = population.later[number % len(population.later)]
        monitor.update(replace(population, mass=mass).draw(500, 1000 * seed + number))
    return {"shown": 1.0, "broken": float(monitor.alarm)}


def _estimate_moved(figure: str) -> Trial:
    """Test ``estimate`` on n rows whose scores have moved since a reference of n rows, while labels given the scores have not."""

    def trial(population: Population, n: int, seed: int) -> Outcome:
        if population.later is None:
            return {}
        window = replace(population, mass=population.later[-1]).draw(n, 10**6 + seed)
        unlabelled = Predictions.from_logits(window.logits, unchecked_kind=True)
        ends = getattr(estimate(unlabelled, reference=population.draw(n, seed)), figure)
        if ends is None:
            return {"shown": 0.0}
        seen = float(METRICS[figure](window))
        return {"shown": 1.0, "broken": float(not ends.low - 1e-9 <= seen <= ends.high + 1e-9)}

    return trial


def _estimate(figure: str) -> Trial:
    """Test that a 95 % interval computed without labels contains the value computed from the labels."""

    def trial(population: Population, n: int, seed: int) -> Outcome:
        if not population.independent:
            return {}
        both = population.draw(n + 1000, seed)
        window, reference = both[:n], both[n:]
        unlabelled = Predictions.from_logits(window.logits, unchecked_kind=True)
        ends = getattr(estimate(unlabelled, reference=reference), figure)
        if ends is None:
            return {"shown": 0.0}
        seen = float(METRICS[figure](window))
        return {"shown": 1.0, "broken": float(not ends.low - 1e-9 <= seen <= ends.high + 1e-9)}

    return trial


def _abstain(population: Population, n: int, seed: int) -> Outcome:
    """Test that, with 95 % confidence, at most 5 % of future answers are wrong."""
    if not population.independent:
        return {}
    rule = abstain(population.draw(n, seed), error=ERROR)
    answered = population.mass * (population.p.max(axis=1) >= float(torch.as_tensor(rule.threshold)))
    wrong = float(answered @ (1 - population.right)) / max(float(answered.sum()), 1e-300)
    return {"shown": float(rule.qualifies), "broken": float(wrong > ERROR + 1e-12)}


def _harm(population: Population, n: int, seed: int) -> Outcome:
    """Test that AutoCalibrator raises the log-loss of a calibrated model by more than 1 % (at least .001) in at most 5 % of samples.

    The log-loss after calibration is the exact one of the population, without the noise of a test sample.
    """
    source = population.calibrated
    if not source.independent or not np.isfinite(source.nll):
        return {}
    fitted = AutoCalibrator().fit(source.draw(n, seed))
    answers = fitted(Predictions.from_probs(torch.from_numpy(source.p)).logits).log_softmax(dim=1).numpy()
    after = -float(source.share @ np.where(source.truth > 0, source.truth * answers, 0.0).sum(axis=1))
    return {"shown": 1.0, "broken": float(after - source.nll > max(HARM * source.nll, LEAST_HARM))}


def _behind(population: Population, n: int, seed: int) -> Outcome:
    """Test that AutoCalibrator is 2 % (at least .005) behind structured matrix scaling in log-loss in at most 5 % of samples."""
    if not population.independent or not np.isfinite(population.nll):
        return {}
    rows, all_rows = population.draw(n, seed), Predictions.from_probs(torch.from_numpy(population.p))

    def loss(calibrator: Calibrator) -> float:
        logs = calibrator.fit(rows)(all_rows.logits).log_softmax(dim=1).numpy()
        return -float(population.share @ np.where(population.truth > 0, population.truth * logs, 0.0).sum(axis=1))

    best, ours = loss(StructuredMatrixScaling()), loss(AutoCalibrator())
    return {"shown": 1.0, "broken": float(ours - best > max(0.02 * best, 0.005))}


PROMISES: dict[str, Trial] = {
    **{f"interval-{figure}": _interval(figure) for figure in METRICS},
    **{f"limit-{figure}": _limit(figure) for figure in ("ece", "mass", "classwise", "toplabel", "debiased")},
    **{f"gate-{figure}": _gate(figure) for figure in GATED},
    **{f"no-worse-{figure}": _no_worse(figure) for figure in ("nll", "brier", "ece")},
    **{f"compare-{figure}": _compare(figure) for figure in ("nll", "brier")},
    **{f"pass-{figure}": _power(figure, 1) for figure in ("brier", "ece")},
    **{f"fail-{figure}": _power(figure, -1) for figure in ("brier", "ece")},
    **{f"advice-{figure}": _advice(figure) for figure in GATED},
    "compare-all": _exchangeable,
    "compare-five": _five,
    "subgroups": _subgroups,
    "monitor": _monitor,
    **{f"monitor-{name}": _monitor_fitted(name) for name in FITTED},
    "monitor-moved": _monitor_moved,
    **{f"estimate-{figure}": _estimate(figure) for figure in ("accuracy", "nll")},
    **{f"estimate-moved-{figure}": _estimate_moved(figure) for figure in ("accuracy", "nll")},
    "abstain": _abstain,
    "harm": _harm,
    "behind": _behind,
}
# how often a promise may be broken; 5 % for all other promises
ALLOWED = {"gate": 0.025, "no-worse": 0.025, "limit": 0.025, "pass": 0.2, "fail": 0.2, "advice": 0.3}


def allowed(promise: str) -> float:
    """Return how often ``promise`` may be broken."""
    return next((share for prefix, share in ALLOWED.items() if promise.startswith(prefix)), 0.05)
