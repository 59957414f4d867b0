"""Prior shift: classes that are more or less frequent where a model is used than where it was calibrated."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import as_tensor, check_logits, refuse
from calibrant._core.constraints import Each, Number
from calibrant._core.warn import warn_user
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.mixture import fit_mixture_weights
from calibrant.data.predictions import Predictions
from calibrant.errors import BoundWarning, InputError, NoIntervalError, NotFittedError
from calibrant.rows import Batch, RowSource
from calibrant.statistics.means import Interval

# Class priors of unlabelled rows: by maximum likelihood from calibrated probabilities, and by a confusion matrix.

_Z = 1.959963984540054  # of a 95 % interval
_RIDGE = 1e-12  # of an information matrix's diagonal: classes that cannot be told apart get the interval [0, 1]
_SMALLEST = 1e-8  # singular value of a confusion matrix, below which its classes cannot be told apart


@dataclass(frozen=True)
class Priors:
    """Estimated priors with 95 % intervals.

    Args:
        priors: (K,) ≥ 0, Σ = 1.
        low: (K,) lower ends.
        high: (K,) upper ends.
        gap: How far the mean log-likelihood may at most lie below its maximum, in nats; NaN for a confusion matrix.
    """

    priors: Tensor
    low: Tensor
    high: Tensor
    gap: float


def by_likelihood(logits: Tensor, source: Tensor, *, rows: float) -> Priors:
    """Return the priors q that maximise Σ_i log Σ_k q_k p_ik / π_k, which is concave: what EM converges to.

    The interval is that of the moment equations mean g_k = 1, g_k = (p_k / π_k) / Σ_j q_j p_j / π_j, whose expectation over
    the new rows and, class by class, over the source rows is estimated; so an error of p that is the same for all new
    rows counts as far as ``rows`` labelled source rows could leave it unnoticed.

    Args:
        logits: (N, K) calibrated on the source, floating.
        source: (K,) priors π > 0 of the source, float64.
        rows: Labelled source rows.
    """
    ratios = torch.softmax(logits.double(), dim=1) / source.to(logits.device)
    q = fit_mixture_weights(ratios, ratios.new_ones(len(ratios))).cpu()
    means = (ratios / (ratios @ q.to(ratios))[:, None]).mean(dim=0)
    low, high = _prior_interval(q, _covariance_of_priors(ratios.cpu(), q, source, rows=rows))
    return Priors(q, low, high, float(means.max() - 1))


def by_confusion(decisions: Tensor, confusion: Tensor) -> Priors:
    """Return the priors q with C q = the frequencies of the decisions, C the source's confusion matrix (Lipton et al. 2018).

    Args:
        decisions: (N,) int64, the decided classes of the new rows.
        confusion: (K, K) weights of the source rows by decision and label.

    Raises:
        InputError: If classes cannot be told apart by the decisions.
    """
    per_label = confusion.sum(dim=0)
    table = confusion / per_label
    smallest = float(torch.linalg.matrix_norm(table, ord=-2))
    if smallest < _SMALLEST:
        raise InputError(
            "a confusion matrix that tells the classes apart",
            f"one of smallest singular value {smallest:.1g}",
            'use method="em", or fit on more rows',
        )
    count = len(decisions)
    seen = torch.bincount(decisions.cpu(), minlength=len(table)).double() / count
    q = _on_simplex(table, seen)
    noise = _multinomial(seen) / count
    # of few rows some decisions are never seen: one imagined row more, spread over all, keeps their variance above 0
    smooth = (confusion + 1 / len(table)) / (per_label + 1)
    for label, prior in enumerate(q.tolist()):
        noise += prior**2 * _multinomial(smooth[:, label]) / (per_label[label] - 1).clamp_min(0.5)
    inverse = torch.linalg.inv(table)
    low, high = _prior_interval(q, inverse @ noise @ inverse.T)
    return Priors(q, low, high, float("nan"))


def _covariance_of_priors(p: Tensor, q: Tensor, source: Tensor, *, rows: float) -> Tensor:
    """Return the covariance (K, K) of q: H⁻¹ (Cov_new(g) / N + Cov_source(w_y (E[g | y] − g)) / rows) H⁻¹, H = E g gᵀ.

    The source's part is computed from the new rows, of which class y has the probability q_y g_y, since a source row of
    label y counts w_y = q_y / π_y times as a new one.
    """
    count, weight = len(p), q / source
    g = p / (p @ q)[:, None]
    stake = (g * q * weight).sum(dim=1)  # Σ_y P(y | x) w_y
    second, outer, cross = g.T @ g, (g * stake[:, None]).T @ g, g.T @ (g * q * weight)
    second, outer, cross = second / count, outer / count, cross / count
    of_new = second - 1
    of_source = outer - cross @ second - (cross @ second).T + (second * (q * weight)) @ second
    scale = second.diagonal().rsqrt()
    scaled = second * scale[:, None] * scale + _RIDGE * torch.eye(len(q), dtype=torch.float64)
    inverse = torch.linalg.inv(scaled) * scale[:, None] * scale
    covariance: Tensor = inverse @ (of_new / count + of_source / rows) @ inverse
    return covariance


def _prior_interval(q: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    half = _Z * covariance.diagonal().clamp_min(0).sqrt()
    return (q - half).clamp(0, 1), (q + half).clamp(0, 1)


def _multinomial(p: Tensor) -> Tensor:
    spread: Tensor = torch.diag(p) - p[:, None] * p
    return spread


def _on_simplex(table: Tensor, seen: Tensor) -> Tensor:
    """Return the q ≥ 0, Σ q = 1, with the least ‖C q − seen‖: the solution itself where that is not negative."""
    from scipy.optimize import nnls

    exact: Tensor = torch.linalg.solve(table, seen)
    if bool((exact >= 0).all()):
        return exact / exact.sum()
    heavy = 1e6  # of the row that makes the sum 1
    system = np.vstack([table.numpy(), np.full((1, len(seen)), heavy)])
    found: Tensor = torch.from_numpy(nnls(system, np.append(seen.numpy(), heavy))[0])
    return found / found.sum()


# Simulated on 300 source rows of 2 to 6 classes recognised in 36 to 90 %: where the rarest class of the source has r rows, the class
# with the worst interval has 81 % coverage for r = 10, 86 % for 20, 88 % for 30, and 92 % for 40 and 60.
_FEWEST_OF_CLASS = 40
_AT_ZERO = 1e-8  # a prior below is one that the likelihood drives to 0


class PriorShift(Calibrator):
    """softmax(z + log q − log π): calibrated logits z of a source with priors π, for new rows with priors q.

    Right where the classes' frequencies have changed and the rows of each class have not (label shift). π are the label
    frequencies of ``fit``, the logits must be calibrated there: ``Chain(VectorScaling(), PriorShift())``. The new priors
    are given, follow from how the source was sampled, or are estimated by ``adapt`` from unlabelled rows. Before
    ``adapt`` it changes nothing.

    Args:
        priors: (K,) new priors, ≥ 0, Σ = 1; None to estimate them.
        method: "em": the priors of highest likelihood, the maximum certified; sharper, and as right as the calibration.
            "bbse": from the confusion matrix of the source; it needs no calibration, and rows of every class.
        rates: (K,) share in (0, 1] of each class that was kept when the source was sampled; see ``from_sampling_rates``.
        floor: Smallest prior that ``adapt`` gives; None for half a row of the new ones. With 0 a class may vanish.

    Attributes:
        source_priors: (K,) π.
        new_priors: (K,) q; π before ``adapt``.
        gap: How far the mean log-likelihood at q is at most below its maximum, in nats: the certificate of "em".

    Raises:
        InputError: For priors that are none, or both priors and rates.

    Examples:
        >>> z = torch.tensor([[1.4, 0.0]] * 5 + [[0.0, 1.4]] * 5).log_softmax(dim=1)
        >>> shift = PriorShift().fit(z, [0, 0, 0, 0, 1, 0, 1, 1, 1, 1])
        >>> rare = shift.adapt(torch.cat([z[:5]] * 2 + [z[5:]]))
        >>> [round(p, 2) for p in rare.new_priors.tolist()]
        [0.78, 0.22]
        >>> PriorShift(priors=(0.9, 0.1)).fit(z, [0] * 5 + [1] * 5)(torch.zeros(1, 2)).softmax(dim=1)
        tensor([[0.9000, 0.1000]])

    References:
        Saerens, Latinne, Decaestecker 2002, Adjusting the Outputs of a Classifier to New a Priori Probabilities, eq. 2.4,
        2.9; Alexandari, Kundaje, Shrikumar 2020 (that the likelihood is concave, and needs calibration); Lipton, Wang,
        Smola 2018, Detecting and Correcting for Label Shift with Black Box Predictors, §3.
    """

    source_priors: Tensor
    new_priors: Tensor
    offset: Tensor
    low: Tensor
    high: Tensor
    confusion: Tensor
    source_rows: Tensor
    certificate: Tensor

    def __init__(
        self,
        priors: Annotated[Sequence[float], Each(Number(0, 1), least=1)] | None = None,
        *,
        method: Literal["em", "bbse"] = "em",
        rates: Annotated[Sequence[float], Each(Number(0, 1, open_low=True))] | None = None,
        floor: Annotated[float, Number(0, 1, open_high=True)] | None = None,
    ) -> None:
        super().__init__()
        if priors is not None and rates is not None:
            raise refuse("priors or rates", "both", "pass one of them")
        if priors is not None and (len(priors) < 2 or abs(sum(priors) - 1) > 1e-6):
            got = f"{len(priors)} that sum to {sum(priors):g}"
            raise refuse("at least two priors that sum to 1", got, "divide by the sum")
        self.priors, self.rates = priors, rates
        self.method = method
        self.floor = floor

    @classmethod
    def from_sampling_rates(cls, rates: Any) -> Self:
        """Return one that undoes resampling: of class k the source kept the share ``rates[k]``, so q_k ∝ π_k / rates[k].

        Args:
            rates: (K,) in (0, 1]; for classes that were repeated pass all rates divided by the largest.

        Examples:
            >>> PriorShift.from_sampling_rates([0.1, 1.0]).fit(torch.eye(2) * 3, [0, 1]).new_priors
            tensor([0.9091, 0.0909], dtype=torch.float64)
        """
        return cls(rates=rates)

    @property
    def gap(self) -> float:
        """Nats by which the mean log-likelihood is at most below its maximum; NaN where none was maximised."""
        return float(self.certificate) if self.fitted and self.certificate.numel() else math.nan

    @property
    def intervals(self) -> list[Interval]:
        """A 95 % interval of each new prior: what the new rows and the number of source rows leave open.

        Raises:
            NotFittedError: Before ``adapt``.
            NoIntervalError: For "bbse" with a class of fewer than 40 source rows.
        """
        if not self.low.numel():
            raise NotFittedError("estimated priors", "none", "call adapt(new_logits) first")
        fewest = float(self.confusion.sum(dim=0).min()) if self.confusion.numel() else math.inf
        if fewest < _FEWEST_OF_CLASS:
            raise NoIntervalError(
                f'at least {_FEWEST_OF_CLASS} source rows of each class for an interval by "bbse"',
                f"{fewest:g} of the rarest",
                'fit on more rows, or use method="em"',
            )
        ends = zip(self.new_priors.tolist(), self.low.tolist(), self.high.tolist(), strict=True)
        return [Interval(q, min(low, q), max(high, q), 0.95, f"normal ({self.method})") for q, low, high in ends]

    def learned(self) -> str:
        """Return the new priors, or how many."""
        if len(self.new_priors) > 10:
            return f"new_priors of {len(self.new_priors)} classes"
        return f"new_priors=[{', '.join(f'{q:.3g}' for q in self.new_priors.tolist())}]"

    def adapt(self, logits: Any) -> Self:
        """Estimate the priors of new rows and use them from here on; labels, if there are any, are not read.

        Args:
            logits: (N, K) calibrated logits of unlabelled rows, or ``Predictions``.

        Raises:
            NotFittedError: Before ``fit``.
            InputError: If priors or rates were given, a class has no label in ``fit``, or decisions cannot tell classes apart.
        """
        z = unweighted_logits(logits)
        self.check_input(z)
        if self.priors is not None or self.rates is not None:
            raise refuse("priors to estimate", "given ones", "make PriorShift() without priors and rates")
        _check_seen(self.source_priors)
        source = self.source_priors.cpu()
        if self.method == "em":
            found = by_likelihood(z.detach(), source, rows=float(self.source_rows))
        else:
            found = by_confusion(z.argmax(dim=1), self.confusion.cpu())
        place = self.source_priors.device
        self.certificate = torch.tensor([] if math.isnan(found.gap) else [found.gap], dtype=torch.float64, device=place)
        self.low, self.high = found.low.to(place), found.high.to(place)
        self._set(self._floored(found.priors, rows=len(z)).to(place))
        return self

    def _fit(self, rows: RowSource) -> None:
        counts = rows.total(label_mass, rows.classes)
        mass = float(counts.sum())
        squares = float(rows.total(_squared_mass)) if rows.weighted else mass
        self.source_priors = counts / mass
        self.source_rows = torch.tensor(mass**2 / squares, dtype=torch.float64, device=rows.device)
        self.low, self.high, self.certificate = (self.source_priors.new_empty(0) for _ in range(3))
        if self.method == "bbse" and self.priors is None and self.rates is None:
            self.confusion = rows.total(_confusion, rows.classes)
        else:
            self.confusion = self.source_priors.new_empty(0)
        self._set(self._given(rows.classes))

    def _given(self, classes: int) -> Tensor:
        """Return the new priors (K,) that are known without new rows: those of the source unless others were given."""
        for values in (self.priors, self.rates):
            if values is not None and len(values) != classes:
                raise InputError(
                    f"{classes} priors or rates, one a class", f"{len(values)}", "pass one for every logit"
                )
        if self.priors is not None:
            _check_seen(self.source_priors)
            return torch.tensor(self.priors, dtype=torch.float64, device=self.source_priors.device)
        if self.rates is not None:
            raw = self.source_priors / torch.tensor(self.rates, dtype=torch.float64, device=self.source_priors.device)
            return raw / raw.sum()
        return self.source_priors

    def _set(self, new: Tensor) -> None:
        seen = self.source_priors > 0  # a class without labels keeps its logit: nothing says how it changed
        self.new_priors = new
        self.offset = torch.where(seen, new.log() - self.source_priors.log(), 0.0)
        if self.rates is not None:  # known for every class, up to a constant
            self.offset = -torch.tensor(self.rates, dtype=torch.float64, device=new.device).log()

    def _floored(self, q: Tensor, *, rows: int) -> Tensor:
        floor = 0.5 / rows if self.floor is None else self.floor
        if floor * len(q) >= 1:
            raise refuse(f"a floor below 1/{len(q)}", f"{floor:g}", "lower it, or pass more rows")
        gone = torch.nonzero(q <= _AT_ZERO)[:, 0].tolist()
        if gone:
            kept = f"{floor:.2g} is used instead" if floor > 0 else "their probability is now 0"
            warn_user(
                f"expected every class among the new rows, got a prior of 0 for {_few_of(gone)}; {kept}, and the intervals say what "
                "the rows allow",
                BoundWarning,
            )
        raised = torch.where(q <= _AT_ZERO, 0.0, q).clamp_min(floor)
        return raised / raised.sum()

    def _transform(self, logits: Tensor) -> Tensor:
        return logits + self.offset.to(logits.dtype)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return ones, and log q − log π."""
        return torch.ones_like(self.offset), self.offset


def unweighted_logits(logits: Any) -> Tensor:
    """Return checked logits (N, K) of new rows, given as such or as predictions without weights."""
    if not isinstance(logits, Predictions):
        z = as_tensor(logits, name="logits")
        check_logits(z)
        return z
    if logits.weights is not None:
        raise refuse("new rows without weights", "weighted predictions", "pass their logits, each row once")
    return logits.logits


def label_mass(chunk: Batch, classes: int) -> Tensor:
    """Return the weight (K,) of each class's rows."""
    return torch.bincount(chunk.labels, chunk.row_weights, minlength=classes)


def _squared_mass(chunk: Batch) -> Tensor:
    return chunk.row_weights.square().sum()


def _confusion(chunk: Batch, classes: int) -> Tensor:
    """Return the weights (K, K) by decision and label."""
    cells = chunk.logits.argmax(dim=1) * classes + chunk.labels
    return torch.bincount(cells, chunk.row_weights, minlength=classes**2).view(classes, classes)


def _check_seen(source: Tensor) -> None:
    missing = torch.nonzero(source == 0)[:, 0].tolist()
    if missing:
        raise InputError(
            "labels of every class in fit", f"none of {_few_of(missing)}", "fit on rows that hold each class"
        )


def _few_of(classes: Sequence[int]) -> str:
    return ", ".join(map(str, classes[:8])) + " …" * (len(classes) > 8)
