"""What the library promises, each as a trial on one sample of a population: was something shown, and was the promise broken?

A trial returns {"shown": 0 or 1, "broken": 0 or 1}; where two decisions would be wrong, the more frequent one is "broken", the
other "other". An empty answer says that the promise does not apply to this population.
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
ERROR = 0.05  # of the answers that abstention bounds
HARM, LEAST_HARM = 0.01, 0.001  # of the log-loss, relative and in nats: below, nobody would notice


def _interval(figure: str) -> Trial:
    """A 95 % interval contains the population's value."""

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
    """A calibrated model exceeds the 97.5 % limit in at most 2.5 %."""

    def trial(population: Population, n: int, seed: int) -> Outcome:
        data = population.calibrated.draw(n, seed)
        band = null_band(METRICS[figure], data, draws=1000, seed=seed)
        return {"shown": 1.0, "broken": float(METRICS[figure](data) > band.high + 1e-12)}

    return trial


def _gate(figure: str) -> Trial:
    """A limit that the population meets exactly: either decision is wrong, each in at most 2.5 %."""

    def trial(population: Population, n: int, seed: int) -> Outcome:
        if not population.independent:
            return {}
        limits = {GATED[figure]: {figure: min(max(population.value(figure), 0.0), 1.0)}}
        verdict = check(population.draw(n, seed), **limits).verdict  # type: ignore[arg-type]
        shown = float(verdict != "not enough evidence")
        return {"shown": shown, "broken": float(verdict == "fail"), "other": float(verdict == "pass")}

    return trial


def _power(figure: str, sign: int) -> Trial:
    """3.2 standard errors from its limit, the gate decides rightly in at least .8 of the samples in which a t-test does.

    For the ECE, its own 95 % interval stands for the t-test. "Shown" is how often the test decides rightly.
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
    """With as many more rows as the gate advises, it decides in at least .7 of the samples in which it could not decide.

    The limit lies 1.5 standard errors away, on either side by the seed.
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
    """A model that is worse than its baseline by exactly the margin passes in at most 2.5 %."""

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
    """Of an over- and an under-confident model that are equally good one is called better in at most 5 %."""

    def trial(population: Population, n: int, seed: int) -> Outcome:
        rivals = population.rivals(figure)
        if rivals is None:
            return {}
        a, b = replace(population, p=rivals[0]).drawn(n, seed, with_p=rivals[1])
        row = compare(a, b, metrics=[METRICS[figure]]).rows[0]
        return {"shown": float(row.p_value is not None), "broken": float(row.winner is not None)}

    return trial


def _exchangeable(population: Population, n: int, seed: int) -> Outcome:
    """Two models that are equal in every figure: in at most 5 % any figure calls one better."""
    source, other = population.swapped()
    rows = compare(*source.drawn(n, seed, with_p=other)).rows
    shown = float(np.mean([row.p_value is not None for row in rows]))
    return {"shown": shown, "broken": float(any(row.winner for row in rows))}


def _five(population: Population, n: int, seed: int) -> Outcome:
    """Of five models that are equal in every figure, compared in pairs, any is called better in at most 5 %."""
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
    """A calibrated model is off in no group: any is found in at most 5 %."""
    data = population.calibrated.draw(n, seed)
    rng = np.random.default_rng([seed, n])
    features = {"even": rng.integers(4, size=n), "skewed": rng.geometric(0.4, size=n).clip(max=6)}
    found = subgroups(data, features)
    return {"shown": float(bool(found.rows)), "broken": float(found.p_value < 0.05)}


def _watched(monitor: Monitor, rows: Predictions) -> Outcome:
    """Return whether the monitor alarms on 20 batches, or on batches of 500 rows."""
    step = max(500, len(rows) // 20)
    for start in range(0, len(rows), step):
        monitor.update(rows[start : start + step])
    return {"shown": 1.0, "broken": float(monitor.alarm)}


def _monitor(population: Population, n: int, seed: int) -> Outcome:
    """Rows drawn like the reference of 1,000 rows raise an alarm in at most 5 % of runs."""
    if not population.independent:
        return {}
    both = population.draw(n + 1000, seed)
    return _watched(Monitor(both[:1000]), both[1000:])


def _monitor_fitted(name: str) -> Trial:
    """The same, where the reference are 300 rows that a calibrator was fitted on."""

    def trial(population: Population, n: int, seed: int) -> Outcome:
        if not population.independent:
            return {}
        both = population.draw(n + 300, seed)
        fitted = FITTED[name]().fit(both[:300])
        rows = both[300:].calibrated_by(fitted, allow_fit_rows=True)
        return _watched(Monitor.from_fit(fitted, both[:300]), rows)

    return trial


def _monitor_moved(population: Population, n: int, seed: int) -> Outcome:
    """After a reference of n rows, 20 batches of 500 with other scores, and labels as before given the scores."""
    if population.later is None:
        return {}
    monitor = Monitor(population.draw(n, seed))
    for number in range(20):
        mass = population.later[number % len(population.later)]
        monitor.update(replace(population, mass=mass).draw(500, 1000 * seed + number))
    return {"shown": 1.0, "broken": float(monitor.alarm)}


def _estimate_moved(figure: str) -> Trial:
    """``estimate`` for n rows after a reference of n, where the scores have moved and labels given the scores have not."""

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
    """Without labels, a 95 % interval contains what the window's labels would have said."""

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
    """At most 5 % of the answers to come are wrong, with 95 % confidence."""
    if not population.independent:
        return {}
    rule = abstain(population.draw(n, seed), error=ERROR)
    answered = population.mass * (population.p.max(axis=1) >= float(torch.as_tensor(rule.threshold)))
    wrong = float(answered @ (1 - population.right)) / max(float(answered.sum()), 1e-300)
    return {"shown": float(rule.qualifies), "broken": float(wrong > ERROR + 1e-12)}


def _harm(population: Population, n: int, seed: int) -> Outcome:
    """AutoCalibrator makes the log-loss of a calibrated model worse by more than 1 % (at least .001) in at most 5 %.

    The log-loss after calibration is that of the whole population, so that no sampling of test rows adds to it.
    """
    source = population.calibrated
    if not source.independent or not np.isfinite(source.nll):
        return {}
    fitted = AutoCalibrator().fit(source.draw(n, seed))
    answers = fitted(Predictions.from_probs(torch.from_numpy(source.p)).logits).log_softmax(dim=1).numpy()
    after = -float(source.share @ np.where(source.truth > 0, source.truth * answers, 0.0).sum(axis=1))
    return {"shown": 1.0, "broken": float(after - source.nll > max(HARM * source.nll, LEAST_HARM))}


def _behind(population: Population, n: int, seed: int) -> Outcome:
    """AutoCalibrator's log-loss is above that of the structured matrix by more than 2 % (at least .005) in at most 5 %."""
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
# how often a promise may be broken; 5 % for the others
ALLOWED = {"gate": 0.025, "no-worse": 0.025, "limit": 0.025, "pass": 0.2, "fail": 0.2, "advice": 0.3}


def allowed(promise: str) -> float:
    """Return how often ``promise`` may be broken."""
    return next((share for prefix, share in ALLOWED.items() if promise.startswith(prefix)), 0.05)
