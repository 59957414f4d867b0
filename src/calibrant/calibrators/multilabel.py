"""Calibration of several labels per row: one binary calibrator per label, shrunk towards a pooled calibrator if the label is rare."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from calibrant._core import config
from calibrant._core.check import check_number, refuse
from calibrant._kernel import one_thread_if_small
from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.one_vs_rest import PlattScaling
from calibrant.data.leakage import part_of, sketch_of
from calibrant.data.multilabel import MultiLabel, label_names
from calibrant.data.record import fitting_weights
from calibrant.rows import MemoryRows

# Largest number of imagined rows per real row; with more, the certificate, which is a mean over rows, would lose digits.
_MAX_FACTOR = 1e4


@dataclass(frozen=True)
class LabelFit:
    """A summary of the fit for one label.

    Args:
        label: Name of the label.
        positives: Total weight of the fitting rows in which the label is 1.
        negatives: Total weight of the fitting rows in which the label is 0.
        pooled: Weight of the pooled probabilities in the fit, in [0, 1]; 1 if the label uses the pooled calibrator.
    """

    label: str
    positives: float
    negatives: float
    pooled: float


class MultiLabelCalibrator(Learned):
    """One binary calibrator for each of L labels, for sigmoid logits (N, L); rare labels are shrunk towards a pooled calibrator.

    First, ``base`` is fitted to all known labels of all rows together, the pool. Then a copy of ``base`` is fitted for each
    label, to the rows of that label and to imagined rows. If q_i is the pooled probability of row i, that row adds f q_i imagined
    rows with the label and f (1 − q_i) without it, where f Σ_i w_i q_i (1 − q_i) = strength. The pool therefore counts as much
    as ``strength`` positive rows, however rare the label is: it outweighs 3 positives, but not 3,000. A label without
    positives, without negatives or without known rows uses the pooled calibrator. Imagined rows only add weighted terms to the
    loss of ``base``, so a convex fit stays convex and keeps its certificate.

    Args:
        base: An unfitted calibrator for two classes that needs only logits; None for ``PlattScaling()``.
        strength: Weight ≥ 0 of the pool, in positive rows. 0 fits each label alone; None gives all labels the pooled
            calibrator.

    Attributes:
        names: The label names, as in ``fit``.
        labels_fitted: One ``LabelFit`` per label.

    Examples:
        >>> from calibrant import MultiLabel
        >>> from calibrant.calibrators import PlattScaling
        >>> z = [[1.5, -2.0]] * 60 + [[-1.0, -3.0]] * 40
        >>> y = [[1, 0]] * 45 + [[0, 1]] * 15 + [[0, 0]] * 40
        >>> data = MultiLabel.from_logits(z, y, names=["often", "rare"])
        >>> calibrator = MultiLabelCalibrator(PlattScaling(), strength=5.0).fit(data)
        >>> data.calibrated_by(calibrator, allow_fit_rows=True).logits.shape
        torch.Size([100, 2])

    References:
        Efron & Morris 1975 (shrinkage of many small problems towards what they share); Platt 1999.
    """

    multi_label = True

    facts: Tensor  # (L, 3): positives, negatives and pooled for each label

    def __init__(self, base: Calibrator | None = None, *, strength: float | None = 10.0) -> None:
        super().__init__()
        self.base = PlattScaling() if base is None else base
        if not isinstance(self.base, Calibrator) or self.base.top_label or self.base.needs_features:
            expected = "a calibrator for two classes that needs only logits"
            remedy = "pass one such as PlattScaling(), BetaCalibration() or IsotonicCalibration()"
            raise refuse(expected, type(base).__name__, remedy)
        self.strength = None if strength is None else check_number(strength, name="strength", low=0)
        self.own: Any = nn.ModuleList()  # one calibrator per label; a copy of the pooled one if the label uses that

    def __repr__(self) -> str:
        """Return the configuration and a summary of the learned state, without the calibrators of the single labels."""
        return f"{type(self).__name__}({type(self.base).__name__}({self.base.extra_repr()}), {self.extra_repr()})"

    @property
    def names(self) -> tuple[str, ...]:
        """The label names, or "label 0" … if the state was loaded without names."""
        return self.class_names or label_names(self._columns)

    @property
    def labels_fitted(self) -> tuple[LabelFit, ...]:
        """A summary of the fit for each label; empty before ``fit``."""
        return tuple(LabelFit(name, *row) for name, row in zip(self.names, self.facts.tolist(), strict=True))

    def learned(self) -> str:
        """Return, as text for the repr, the number of labels and how many of them use the pooled calibrator."""
        return f"{self._columns} labels, {int((self.facts[:, 2] == 1).sum())} as the pool"

    def fit(self, predictions: Any, labels: Any = None) -> Self:
        """Fit the calibrators on validation data, never on training or test data.

        Args:
            predictions: A labelled ``MultiLabel``, including its weights and groups; or logits (N, L).
            labels: Integers (N, L), only together with logits: 1, 0, or -1 for a missing label.

        Returns:
            The calibrator itself.

        Raises:
            InputError: If the data are invalid, or contain no positive or no negative label at all.
            FitError: If an optimum was not reached.
        """
        if not isinstance(predictions, MultiLabel):
            predictions, labels = MultiLabel.from_logits(predictions, labels, unchecked_kind=True), None
        if labels is not None:
            raise refuse("a labelled MultiLabel alone, or logits and labels", "both", "pass fit(logits, labels)")
        data = _fitting_rows(predictions)
        with torch.no_grad(), one_thread_if_small(data.logits.numel()):
            self._fit(data)
            self.fit_rows = sketch_of(part_of(data.as_classes), len(data)).to(data.logits.device)
        return self

    def _fit(self, data: MultiLabel) -> None:
        z, y = data.logits.double(), data.require_labels()
        weights = fitting_weights(data.weights)
        w = torch.ones_like(z[:, 0]) if weights is None else weights
        groups = torch.arange(len(data)) if data.groups is None else data.groups
        rows, columns = torch.nonzero(data.known, as_tuple=True)
        base = _learn(self.base, z[rows, columns], y[rows, columns], w[rows], groups[rows.cpu()])
        own, facts = list[Calibrator](), list[tuple[float, float, float]]()
        for column in range(z.shape[1]):
            at = rows[columns == column]
            hit, weight, made, pooled = y[at, column] == 1, w[at], base, 1.0
            positives, negatives = float(weight[hit].sum()), float(weight[~hit].sum())
            if positives and negatives and self.strength is not None:
                q = torch.sigmoid(_map_log_odds(base, z[at, column]))
                factor = min(self.strength / max(float((weight * q * (1 - q)).sum()), 1e-300), _MAX_FACTOR)
                # f q_i imagined rows with the label and f (1 − q_i) without it, in addition to the real row
                both = torch.cat([weight * (hit + factor * q), weight * (~hit + factor * (1 - q))])
                outcome = torch.cat([torch.ones_like(at), torch.zeros_like(at)])
                made = _learn(base, z[at, column].repeat(2), outcome, both, groups[at.cpu()].repeat(2))
                pooled = factor / (1 + factor)
            own.append(made)
            facts.append((positives, negatives, pooled))
        self.base, self.own, self.class_names = base, nn.ModuleList(map(deepcopy, own)), data.names
        self.facts = torch.tensor(facts, dtype=torch.float64, device=z.device)
        self.classes = torch.tensor(len(facts), device=z.device)
        self._columns = len(facts)

    def forward(self, logits: Tensor) -> Tensor:
        """Return calibrated logits, whose sigmoids are the calibrated probabilities.

        Args:
            logits: Floating logits (N, L), with the same L as in ``fit``.

        Returns:
            The calibrated logits (N, L).

        Raises:
            NotFittedError: If ``fit`` has not been called.
            InputError: If L is not that of the data passed to ``fit``.
        """
        self.check_input(logits)
        return torch.stack([_map_log_odds(one, z) for one, z in zip(self.own, logits.unbind(dim=1), strict=True)], 1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        labels = len(state_dict.get(prefix + "facts", ()))
        self.own = nn.ModuleList(config.renewed(self.base) for _ in range(labels))
        super()._load_from_state_dict(state_dict, prefix, *args)


def _fitting_rows(predictions: MultiLabel) -> MultiLabel:
    """Return the rows with positive weight; raise an error if no label is 1, no label is 0, or an outcome had probability 0."""
    data, labels = predictions.counted, predictions.counted.require_labels()
    for value, kind in ((1, "positive"), (0, "negative")):
        if not bool((labels == value).any()):
            raise refuse(f"at least one {kind} label to fit on", "none in any column", "use more rows")
    wrong = torch.nonzero(((labels == 1) & torch.isneginf(data.logits)) | ((labels == 0) & torch.isposinf(data.logits)))
    if len(wrong):
        row, column = wrong[0].tolist()
        got = f"{data.logits[row, column].item()} for a label {int(labels[row, column])} in row {row}, column {column}"
        raise refuse("a positive probability for every outcome", got, "clamp the logits, or drop the row")
    return data


def _learn(like: Calibrator, z: Tensor, y: Tensor, weights: Tensor, groups: Tensor) -> Calibrator:
    """Return a new calibrator with the arguments of ``like``, fitted to log-odds ``z`` (n,) and labels ``y`` (n,)."""
    made = config.renewed(like)
    made._learn(MemoryRows.of(_pair(z), y, weights=weights, groups=groups))
    return made


def _pair(z: Tensor) -> Tensor:
    """Return two-class logits (N, 2) whose difference is ``z`` (N,), without NaN if z is infinite."""
    return torch.stack([-torch.relu(z), -torch.relu(-z)], dim=1)


def _map_log_odds(calibrator: Any, z: Tensor) -> Tensor:
    """Return the calibrated log-odds (N,) for log-odds ``z`` (N,)."""
    pair: Tensor = calibrator(_pair(z))
    return pair[:, 1] - pair[:, 0]
