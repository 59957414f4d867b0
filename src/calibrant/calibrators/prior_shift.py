"""Correction for prior shift, where the class frequencies in use differ from those in the calibration data."""

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from calibrant._core.check import as_tensor, check_logits, refuse
from calibrant._core.warn import warn_user
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.temperature import fit_mixture_weights
from calibrant.data.predictions import Predictions
from calibrant.errors import BoundWarning
from calibrant.rows import Batch, RowSource


class PriorShift(Calibrator):
    """softmax(z + log q − log π): adapts calibrated logits z from class frequencies π (the priors) to new frequencies q.

    This correction is right if the class frequencies have changed but the rows within each class have not (label shift). π are
    the label frequencies in the fitting data, on which the logits must be calibrated, as in
    ``Chain(VectorScaling(), PriorShift())``. The new priors can be given, can follow from the sampling rates of the source, or
    can be estimated by ``adapt`` from unlabelled rows (each prior is at least half a row). Without priors and rates, the
    logits stay unchanged until ``adapt`` is called.

    Args:
        priors: New priors (K,) ≥ 0 with sum 1; None to estimate them by maximum likelihood.
        rates: The fraction of each class, in (0, 1], that was kept when the source was sampled (K,). The sampling is reversed
            by q_k ∝ π_k / rates[k], which needs no fit. If classes were repeated, divide all rates by the largest.

    Attributes:
        source_priors: The priors π (K,).
        new_priors: The priors q (K,); equal to π before ``adapt``.
        gap: Upper bound on how far the mean log-likelihood at q is below its maximum, in nats: the certificate of ``adapt``.

    Raises:
        InputError: If ``priors`` are not ≥ 0 with sum 1, or both ``priors`` and ``rates`` are given.

    Examples:
        >>> z = torch.tensor([[1.4, 0.0]] * 5 + [[0.0, 1.4]] * 5).log_softmax(dim=1)
        >>> shift = PriorShift().fit(z, [0, 0, 0, 0, 1, 0, 1, 1, 1, 1])
        >>> rare = shift.adapt(torch.cat([z[:5]] * 2 + [z[5:]]))
        >>> [round(p, 2) for p in rare.new_priors.tolist()]
        [0.78, 0.22]
        >>> PriorShift(priors=(0.9, 0.1)).fit(z, [0] * 5 + [1] * 5)(torch.zeros(1, 2)).softmax(dim=1)
        tensor([[0.9000, 0.1000]])
        >>> PriorShift(rates=[0.1, 1.0])(torch.zeros(1, 2)).softmax(dim=1)
        tensor([[0.9091, 0.0909]])

    References:
        Saerens, Latinne, Decaestecker 2002, Adjusting the Outputs of a Classifier to New a Priori Probabilities, eq. 2.4,
        2.9; Alexandari, Kundaje, Shrikumar 2020 (that the likelihood is concave, and needs calibration).
    """

    shows = ("new_priors",)

    source_priors: Tensor
    new_priors: Tensor
    offset: Tensor
    certificate: Tensor

    def __init__(self, priors: Sequence[float] | None = None, *, rates: Sequence[float] | None = None) -> None:
        super().__init__()
        self.priors, self.rates = (None if one is None else [float(q) for q in one] for one in (priors, rates))
        if self.priors and self.rates:
            raise refuse("either priors or rates", "both", "pass one of them")
        if self.priors and (min(self.priors) < 0 or abs(sum(self.priors) - 1) > 1e-6):
            raise refuse("priors ≥ 0 that sum to 1", f"{self.priors}", "divide them by their sum")
        if self.rates:  # rates determine the shift without a fit
            if not all(0 < rate <= 1 for rate in self.rates):
                raise refuse("rates in (0, 1]", f"{self.rates}", "divide them all by the largest")
            self.offset = -torch.tensor(self.rates, dtype=torch.float64).log()
            self.classes.fill_(len(self.rates))
            self._columns = len(self.rates)

    @classmethod
    def from_sampling_rates(cls, rates: Sequence[float]) -> Self:
        """Return ``PriorShift(rates=rates)``, which reverses the subsampling of classes and needs no fit.

        Args:
            rates: The fraction of each class, in (0, 1], that was kept (K,).

        Returns:
            The correction.

        Raises:
            InputError: If a rate lies outside (0, 1].
        """
        return cls(rates=rates)

    @property
    def gap(self) -> float:
        """Upper bound in nats on how far the mean log-likelihood is below its maximum; NaN before ``adapt``."""
        return float(self.certificate) if self.certificate.numel() else math.nan

    def adapt(self, logits: Any) -> Self:
        """Estimate the priors of new rows, and use them from now on. Labels are ignored.

        Args:
            logits: Calibrated logits (N, K) of unlabelled rows, or ``Predictions``.

        Returns:
            The calibrator itself.

        Raises:
            NotFittedError: If ``fit`` has not been called.
            InputError: If priors or rates were given, or if a class had no label in ``fit``.
        """
        z = logits if not isinstance(logits, Predictions) else logits.logits
        if isinstance(logits, Predictions) and logits.weights is not None:
            raise refuse("new rows without weights", "weighted predictions", "pass their logits, each row once")
        z = check_logits(as_tensor(z, name="logits"))
        self.check_input(z)
        if self.priors is not None or self.rates is not None:
            raise refuse(
                "a PriorShift that estimates its priors", "given ones", "use PriorShift() without priors or rates"
            )
        self._check_seen()
        # maximises the concave mean of log Σ_k q_k p_ik / π_k, whose gradient entries bound the distance from the maximum
        ratios = torch.softmax(z.double(), dim=1) / self.source_priors
        q = fit_mixture_weights(ratios, ratios.new_ones(len(ratios)))
        self.certificate = (ratios / (ratios @ q)[:, None]).mean(dim=0).max() - 1
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
            raise refuse(f"{rows.classes} priors or rates, one per class", f"{len(given)}", "pass one per class")
        self.source_priors = rows.total(_label_mass, rows.classes) / rows.mass
        self.certificate = self.source_priors.new_empty(0)
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
            # a class without labels keeps its logit, because its change is unknown
            self.offset = torch.where(self.source_priors > 0, new.log() - self.source_priors.log(), 0.0)

    def _check_seen(self) -> None:
        missing = torch.nonzero(self.source_priors == 0)[:, 0].tolist()
        if missing:
            raise refuse(
                "labels of every class in fit", f"none of class {_few_of(missing)}", "fit on rows of each class"
            )

    def _transform(self, logits: Tensor) -> Tensor:
        return logits + self.offset.to(logits.dtype)


def _label_mass(batch: Batch, classes: int) -> Tensor:
    """Return the total weight (K,) of the rows of each class."""
    return torch.bincount(batch.labels, batch.row_weights, minlength=classes)


def _few_of(classes: Sequence[int]) -> str:
    return ", ".join(map(str, classes[:8])) + " …" * (len(classes) > 8)
