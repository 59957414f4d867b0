"""Prior shift: classes that are more or less frequent where a model is used than where it was calibrated."""

import math
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import as_tensor, check_choice, check_logits, refuse
from calibrant._core.warn import warn_user
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.mixture import fit_mixture_weights
from calibrant.data.predictions import Predictions
from calibrant.errors import BoundWarning
from calibrant.rows import Batch, RowSource

_HEAVY = 1e6
_SMALLEST = 1e-8  # singular value of a confusion matrix, below which its classes are indistinguishable


class PriorShift(Calibrator):
    """softmax(z + log q − log π): calibrated logits z of a source with priors π, for new rows with priors q.

    Right where the classes' frequencies have changed and the rows of each class have not (label shift). π are the label
    frequencies of ``fit``, the logits must be calibrated there: ``Chain(VectorScaling(), PriorShift())``. The new priors
    are given, follow from how the source was sampled, or are estimated by ``adapt`` from unlabelled rows, where each is at least half a
    row. Before ``adapt`` it changes nothing.

    Args:
        priors: (K,) new priors, ≥ 0, Σ = 1; None to estimate them.
        method: "em": the priors of highest likelihood, the maximum certified; sharper, and as right as the calibration.
            "bbse": from the confusion matrix of the source; it needs no calibration, and rows of every class.
        rates: (K,) share in (0, 1] of each class that was kept when the source was sampled; see ``from_sampling_rates``.

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
    confusion: Tensor
    certificate: Tensor

    def __init__(
        self,
        priors: Sequence[float] | None = None,
        *,
        method: Literal["em", "bbse"] = "em",
        rates: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if priors is not None and rates is not None:
            raise refuse("priors or rates", "both", "pass one of them")
        self.priors, self.rates = (
            None if given is None else [float(one) for one in given] for given in (priors, rates)
        )
        if self.priors and (min(self.priors) < 0 or abs(sum(self.priors) - 1) > 1e-6):
            raise refuse("priors ≥ 0 that sum to 1", f"{self.priors}", "divide by the sum")
        self.method = check_choice(method, name="method", choices=("em", "bbse"))
        if self.rates:  # all that there is to know
            if not all(0 < rate <= 1 for rate in self.rates):
                raise refuse("rates in (0, 1]", f"{self.rates}", "divide all by the largest")
            self.offset = -torch.tensor(self.rates, dtype=torch.float64).log()
            self.classes.fill_(len(self.rates))
            self._columns = len(self.rates)

    @classmethod
    def from_sampling_rates(cls, rates: Any) -> Self:
        """Return one that undoes resampling, without a fit: of class k the source kept the share ``rates[k]``, so q_k ∝ π_k / rates[k].

        Args:
            rates: (K,) in (0, 1]; for classes that were repeated pass all rates divided by the largest.

        Examples:
            >>> shift = PriorShift.from_sampling_rates([0.1, 1.0])
            >>> shift(torch.zeros(1, 2)).softmax(dim=1)
            tensor([[0.9091, 0.0909]])
        """
        return cls(rates=rates)

    @property
    def gap(self) -> float:
        """Nats by which the mean log-likelihood is at most below its maximum; NaN where none was maximised."""
        return float(self.certificate) if self.certificate.numel() else math.nan

    def learned(self) -> str:
        """Return the new priors, of many classes the first ten."""
        return f"new_priors={[round(q, 4) for q in self.new_priors.tolist()[:10]]}"

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
        self._check_seen()
        source = self.source_priors
        if self.method == "em":
            # the concave mean of log Σ_k q_k p_ik / π_k, whose gradient entries bound the distance from the maximum
            ratios = torch.softmax(z.detach().double(), dim=1) / source
            q = fit_mixture_weights(ratios, ratios.new_ones(len(ratios)))
            self.certificate = (ratios / (ratios @ q)[:, None]).mean(dim=0).max() - 1
        else:
            q = _by_confusion(z.argmax(dim=1), self.confusion).to(source.device)
        floor = 0.5 / len(z)
        gone = torch.nonzero(q <= 0.01 * floor)[:, 0].tolist()
        if gone:
            expected = "expected every class among the new rows, got a prior of 0"
            warn_user(f"{expected} for {_few_of(gone)}; {floor:.2g}, half a row, is used instead", BoundWarning)
        raised = q.clamp_min(floor)
        self._shift_to(raised / raised.sum())
        return self

    def _fit(self, rows: RowSource) -> None:
        given = self.priors or self.rates
        if given is not None and len(given) != rows.classes:
            raise refuse(f"{rows.classes} priors or rates, one a class", f"{len(given)}", "pass one for every logit")
        self.source_priors = rows.total(label_mass, rows.classes) / rows.mass
        self.certificate = self.source_priors.new_empty(0)
        self.confusion = rows.total(_confusion, rows.classes) if self.method == "bbse" else self.certificate
        new = self.source_priors
        if self.priors is not None:
            self._check_seen()
            new = new.new_tensor(self.priors)
        elif self.rates is not None:
            new = new / new.new_tensor(self.rates)
        self._shift_to(new / new.sum())

    def _shift_to(self, new: Tensor) -> None:
        self.new_priors = new
        if self.rates is None:
            # a class without labels keeps its logit: nothing says how it changed
            self.offset = torch.where(self.source_priors > 0, new.log() - self.source_priors.log(), 0.0)

    def _check_seen(self) -> None:
        missing = torch.nonzero(self.source_priors == 0)[:, 0].tolist()
        if missing:
            raise refuse("labels of every class in fit", f"none of {_few_of(missing)}", "fit on rows of each class")

    def _transform(self, logits: Tensor) -> Tensor:
        return logits + self.offset.to(logits.dtype)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return ones, and log q − log π."""
        return torch.ones_like(self.offset), self.offset


def _by_confusion(decisions: Tensor, confusion: Tensor) -> Tensor:
    """Return the priors q ≥ 0, Σ q = 1, of least ‖C q − frequencies of the decisions‖, C the source's confusion matrix."""
    from scipy.optimize import nnls

    table = (confusion / confusion.sum(dim=0)).cpu()
    smallest = float(torch.linalg.matrix_norm(table, ord=-2))
    if smallest < _SMALLEST:
        got = f"one of smallest singular value {smallest:.1g}"
        raise refuse("a confusion matrix that tells the classes apart", got, 'use method="em", or fit on more rows')
    seen = torch.bincount(decisions.cpu(), minlength=len(table)).double() / len(decisions)
    # a heavy equation makes the sum 1
    system = torch.cat([table, torch.full_like(table[:1], _HEAVY)]).numpy()
    found: Tensor = torch.from_numpy(nnls(system, np.append(seen.numpy(), _HEAVY))[0])
    return found / found.sum()


def unweighted_logits(logits: Any) -> Tensor:
    """Return checked logits (N, K) of new rows, given as such or as predictions without weights."""
    if not isinstance(logits, Predictions):
        return check_logits(as_tensor(logits, name="logits"))
    if logits.weights is not None:
        raise refuse("new rows without weights", "weighted predictions", "pass their logits, each row once")
    return logits.logits


def label_mass(batch: Batch, classes: int) -> Tensor:
    """Return the weight (K,) of each class's rows."""
    return torch.bincount(batch.labels, batch.row_weights, minlength=classes)


def _confusion(batch: Batch, classes: int) -> Tensor:
    """Return the weights (K, K) by decision and label."""
    cells = batch.logits.argmax(dim=1) * classes + batch.labels
    return torch.bincount(cells, batch.row_weights, minlength=classes**2).view(classes, classes)


def _few_of(classes: Sequence[int]) -> str:
    return ", ".join(map(str, classes[:8])) + " …" * (len(classes) > 8)
