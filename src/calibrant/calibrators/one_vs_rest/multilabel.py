"""A binary calibrator for each of several labels a row, rare labels shrunk towards the one of all labels."""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from calibrant._core import config as _plain
from calibrant._core.check import refuse, shown
from calibrant._core.constraints import NonNegative
from calibrant._kernels.cpu import one_thread_if_small
from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.features.columns import as_bytes, from_bytes
from calibrant.calibrators.one_vs_rest.maps import PlattScaling
from calibrant.data.leakage import part_of, row_hashes, sketch_of
from calibrant.data.multilabel import MultiLabel
from calibrant.data.predictions import Predictions
from calibrant.data.record import fitting_weights, need_positive
from calibrant.rows import MemoryRows

_LONGEST_PRIOR = (
    1e4  # imagined rows for each real one: beyond it the fit's certificate, a mean over rows, would lose its digits
)


@dataclass(frozen=True)
class LabelFit:
    """What a label's probability goes through.

    Args:
        label: Its name.
        positives: Weight of the fitting rows in which it was 1.
        negatives: Weight of those in which it was 0.
        pooled: Weight of the pool's answers in the label's fit, in [0, 1]; 1 where it keeps them.
    """

    label: str
    positives: float
    negatives: float
    pooled: float


class MultiLabelCalibrator(Learned):
    """A binary calibrator for each label, on (N, L) logits of sigmoids; a label with few events is shrunk towards the pool's.

    First ``base`` is fitted to all known labels of all rows pooled. Then a calibrator like it is fitted to each label's rows
    i and, beside them, to imagined ones that the pool answers: with the pool's probability q_i, every row stands for a further
    f q_i rows with the label and f (1 − q_i) without it, and f Σ_i w_i q_i (1 − q_i) = strength. So the pool counts as ``strength``
    events do, however rare the label is: against 3 positives it decides, against 3,000 it does not. A label without
    positives, without negatives, or without known rows keeps the pool's answers. Imagined rows only add weighted terms to
    the base's loss: a convex fit stays convex, with its certificate.

    Args:
        base: An unfitted calibrator for two classes, of which ``fit`` makes the pool's; None for ``PlattScaling()``.
        strength: Of the pool, in events, ≥ 0; 0 fits each label alone, None gives all labels the pool's calibrator.

    Attributes:
        names: The labels' names, as in ``fit``.
        labels_fitted: One ``LabelFit`` a label.

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

    uses: Tensor
    facts: Tensor
    name_bytes: Tensor

    def __init__(self, base: Calibrator | None = None, *, strength: NonNegative | None = 10.0) -> None:
        super().__init__()
        self.base = check_base(PlattScaling() if base is None else base)
        self.strength = strength
        self.own = nn.ModuleList()
        self._places: list[int] = []
        self.names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Show the configuration and what was learned, of the labels' own calibrators their number alone."""
        parts = [f"{type(self.base).__name__}({self.base.extra_repr()})", self.extra_repr()]
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def labels_fitted(self) -> tuple[LabelFit, ...]:
        """What each label's probability goes through; empty before ``fit``."""
        return tuple(LabelFit(name, *row) for name, row in zip(self.names, self.facts.tolist(), strict=True))

    def learned(self) -> str:
        """Return how many labels there are, and how many keep the pool's calibrator."""
        return f"{len(self._places)} labels, {self._places.count(0)} as the pool"

    def fit(self, predictions: Any, labels: Any = None) -> Self:
        """Fit on validation data, never on training or test data.

        Args:
            predictions: Labelled ``MultiLabel``, whose weights and groups are used; or logits (N, L).
            labels: Beside logits alone: (N, L) integers 1, 0, or -1 for a missing one.

        Raises:
            InputError: If the data are not valid, or hold no positive or no negative label at all.
            FitError: If an optimum was not reached.
        """
        if isinstance(predictions, Predictions):
            remedy = "fit its base alone, or make them with MultiLabel.from_logits"
            raise refuse("MultiLabel", "predictions of one class a row", remedy)
        if not isinstance(predictions, MultiLabel):
            if labels is None:
                raise refuse("labels beside logits", "none", "pass fit(logits, labels), or MultiLabel")
            predictions = MultiLabel.from_logits(predictions, labels, unchecked_kind=True)
        elif labels is not None:
            raise refuse("predictions alone", "labels beside them", "put them into the MultiLabel")
        data = _fitting_rows(predictions)
        with torch.no_grad(), one_thread_if_small(data.logits.numel()):
            self._fit(data)
            self.fit_rows = sketch_of(part_of(row_hashes(data.as_classes)), len(data))
        return self

    def _fit(self, data: MultiLabel) -> None:
        weight = fitting_weights(data.weights)
        weight = torch.ones(len(data), dtype=torch.float64, device=data.logits.device) if weight is None else weight
        at = torch.nonzero(data.known, as_tuple=True)
        groups = torch.arange(len(data)) if data.groups is None else data.groups
        labels = data.need_labels()
        base = _plain.renewed(self.base)
        base._learn(_two_class_rows(data.logits[at], labels[at], weight[at[0]], groups[at[0].cpu()]))
        own, uses, facts = [], [], []
        for column in range(data.logits.shape[1]):
            rows = torch.nonzero(data.known[:, column])[:, 0]
            z, y, w = data.logits[rows, column], labels[rows, column], weight[rows]
            made, fact = self._fit_label(base, z, y, w, groups[rows.cpu()])
            own += [] if made is None else [made]
            uses.append(0 if made is None else len(own))
            facts.append(fact)
        device = data.logits.device
        self.base, self.own = base, nn.ModuleList(own)
        self.uses, self.facts = (
            torch.tensor(uses, device=device),
            torch.tensor(facts, dtype=torch.float64, device=device),
        )
        self.name_bytes = as_bytes(data.names).to(device)
        self.classes = torch.tensor(len(uses), device=device)
        self._columns = len(uses)
        self._update_facts()

    def _fit_label(
        self, base: Calibrator, z: Tensor, y: Tensor, weight: Tensor, groups: Tensor
    ) -> tuple[Calibrator | None, tuple[float, float, float]]:
        """Return the calibrator of one label's rows, None for the pool's, and its facts."""
        positives, negatives = float(weight[y == 1].sum()), float(weight[y == 0].sum())
        if not positives or not negatives or self.strength is None:
            return None, (positives, negatives, 1.0)
        made = _plain.renewed(base)
        if not self.strength:
            made._learn(_two_class_rows(z, y, weight, groups))
            return made, (positives, negatives, 0.0)
        q = torch.sigmoid(_mapped_log_odds(base, z).double())
        events = float((weight * q * (1 - q)).sum())
        factor = min(self.strength / max(events, 1e-300), _LONGEST_PRIOR)
        hit = y == 1
        with_label, without = weight * (hit + factor * q), weight * (~hit + factor * (1 - q))
        both = torch.cat([with_label, without])
        outcome = torch.cat([torch.ones_like(y), torch.zeros_like(y)])
        made._learn(_two_class_rows(z.repeat(2), outcome, both, groups.repeat(2)))
        return made, (positives, negatives, factor / (1 + factor))

    def forward(self, logits: Tensor) -> Tensor:
        """Return calibrated logits: their sigmoids are the calibrated probabilities.

        Args:
            logits: (N, L) floating, L as fitted.

        Raises:
            NotFittedError: Before ``fit``.
            InputError: If L differs from the data of ``fit``.
        """
        self.check_input(logits)
        columns: list[Tensor] = list(logits.unbind(dim=1))
        pooled = [place for place, use in enumerate(self._places) if use == 0]
        if pooled:
            together = _mapped_log_odds(self.base, logits[:, pooled].reshape(-1)).reshape(-1, len(pooled))
            for at, place in enumerate(pooled):
                columns[place] = together[:, at]
        for place, use in enumerate(self._places):
            if use:
                columns[place] = _mapped_log_odds(self.own[use - 1], columns[place])
        return torch.stack(columns, dim=1)

    def _update_facts(self) -> None:
        self._places = self.uses.tolist()
        self.names = tuple(from_bytes(self.name_bytes))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        uses = state_dict.get(prefix + "uses")
        count = 0 if uses is None or not len(uses) else int(uses.max())
        held = {
            name.removeprefix(prefix + "own.").split(".")[0] for name in state_dict if name.startswith(prefix + "own.")
        }
        self.own = nn.ModuleList(_plain.renewed(self.base) for _ in range(min(count, len(held))))
        super()._load_from_state_dict(state_dict, prefix, *args)


def check_base(base: Any) -> Calibrator:
    """Return ``base`` if it is a calibrator of probabilities of both classes by the logits alone.

    Raises:
        InputError: If it is not.
    """
    remedy = "pass one such as PlattScaling(), BetaCalibration() or IsotonicCalibration()"
    if not isinstance(base, Calibrator):
        raise refuse("base as a calibrator", shown(base), remedy)
    if base.top_label:
        raise refuse(
            "a calibrator of an event's probability", f"{type(base).__name__}, which is of the top label", remedy
        )
    if base.needs_features:
        raise refuse(
            "a calibrator that goes by the logits alone", f"{type(base).__name__}, which needs features", remedy
        )
    return base


def _fitting_rows(predictions: MultiLabel) -> MultiLabel:
    """Return the rows of positive weight, if they hold a positive and a negative label and none that was certainly wrong."""
    need_positive(predictions.weights)
    data = predictions if predictions.weights is None else predictions[predictions.weights > 0]
    labels = data.need_labels()
    for value, kind in ((1, "positive"), (0, "negative")):
        if not bool((labels == value).any()):
            raise refuse(f"at least one {kind} label to fit on", "none in any column", "use more rows")
    wrong = ((labels == 1) & torch.isneginf(data.logits)) | ((labels == 0) & torch.isposinf(data.logits))
    if bool(wrong.any()):
        row, column = (int(at) for at in torch.nonzero(wrong)[0])
        got = f"{data.logits[row, column].item()} for a label {int(labels[row, column])} in row {row}, column {column}"
        raise refuse("a positive probability of what happened", got, "clamp the logits, or drop the row")
    return data


def _two_class_rows(z: Tensor, y: Tensor, weight: Tensor, groups: Tensor) -> MemoryRows:
    return MemoryRows.of(_pair(z.double()), y, weights=weight, groups=groups)


def _pair(z: Tensor) -> Tensor:
    """Return two-class logits (N, 2) whose difference is ``z`` (N,); neither is NaN where z is infinite."""
    return torch.stack([-torch.relu(z), -torch.relu(-z)], dim=1)


def _mapped_log_odds(calibrator: Any, z: Tensor) -> Tensor:
    """Return the calibrated log-odds (N,) of log-odds ``z`` (N,)."""
    pair: Tensor = calibrator(_pair(z))
    return pair[:, 1] - pair[:, 0]
