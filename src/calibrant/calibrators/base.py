"""The base classes of calibrators, which map logits to logits, check their input, and can be saved.

A calibrator keeps its arguments as attributes and its learned state in buffers; it never contains the model. This module also
defines ``Identity``, ``Chain`` and the operations on logits that several calibrators share.
"""

import inspect
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from calibrant import _files as files
from calibrant._core.check import as_tensor, check_logits, kind_of, refuse, shown
from calibrant._core.config import config_of, own_version
from calibrant._core.config import shown as settings_in_words
from calibrant._core.notebook import to_html
from calibrant._core.numerics import apply_in_precision, computing_on, in_row_chunks, is_transformed
from calibrant._core.warn import warn_user
from calibrant._kernel import one_thread_if_small
from calibrant.data.leakage import KeptHashes, part_of, sketch_of
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions
from calibrant.data.record import Features, check_features, taken
from calibrant.errors import InputError, NotFittedError, UsageWarning
from calibrant.rows import Batch, MemoryRows, RowSource

FORMAT = "calibrant-calibrator-1.0"  # the file format of a saved calibrator
LOWEST = -100.0  # lower log-probabilities (below 4e-44) carry no information, and products with them would lose digits
# Log-odds that mean certainty in every precision, yet are small enough that 32-bit products and sums do not overflow
_CERTAIN = 1e20


class Learned(nn.Module, ABC):
    """A module that is fitted on validation data and saved as one file."""

    shows: ClassVar[tuple[str, ...]] = ()  # names of the learned numbers and vectors that the repr shows
    multi_label: ClassVar[bool] = False  # whether a row can have several labels, each with its own probability
    class_names: tuple[str, ...] = ()  # class names in the fitting data, in order, if they are known
    classes: Tensor
    fit_rows: Tensor  # hashes of the fitting rows, for the leakage guard
    _repr_html_ = to_html

    def __init__(self) -> None:
        super().__init__()
        self._columns = 0  # K as a plain number, so that a traced forward pass does not depend on a tensor's value
        # on the CPU whatever the default device is; a fit moves the buffers to the device that its rows are on
        self.register_buffer("classes", torch.tensor(0, dtype=torch.int64, device="cpu"))
        self.register_buffer("fit_rows", torch.empty(0, dtype=torch.int64, device="cpu"))
        self.register_load_state_dict_post_hook(_after_loading)
        for cls in type(self).__mro__[: type(self).__mro__.index(Learned)]:
            for name, kind in inspect.get_annotations(cls).items():
                if kind in (Tensor, "Tensor", "torch.Tensor"):  # strings if annotations are not evaluated
                    self.register_buffer(name, torch.empty(0, dtype=torch.float64, device="cpu"))

    def _update_facts(self) -> None:
        """Set attributes that depend on the learned state, such as ``preserves_argmax``, after fitting and loading."""

    def config(self) -> dict[str, Any]:
        """Return the constructor arguments as plain JSON values."""
        return config_of(self)

    def learned(self) -> str:
        """Return, as text for the repr, the learned values that ``shows`` names."""
        values = ((name, getattr(self, name)) for name in self.shows)
        return ", ".join(
            f"{k}={[round(x, 4) for x in v.tolist()[:8]] if isinstance(v, Tensor) else f'{v:.4g}'}" for k, v in values
        )

    @property
    def fitted(self) -> bool:
        """Whether ``fit`` has been called."""
        return self._columns > 0

    def _unfitted(self) -> NotFittedError:
        return NotFittedError(f"a fitted {type(self).__name__}", "an unfitted one", "call fit first")

    def check_input(self, logits: Tensor) -> None:
        """Raise an error unless the calibrator is fitted and ``logits`` are floating, of shape (N, K), with the same K as in ``fit``.

        Args:
            logits: The logits to calibrate.

        Raises:
            NotFittedError: If ``fit`` has not been called.
            InputError: If K is not that of the data passed to ``fit``.
        """
        if not self._columns:
            raise self._unfitted()
        known = isinstance(logits, Tensor) and logits.is_floating_point() and not logits.is_nested
        if not known or logits.dim() != 2 or logits.shape[1] != self._columns:
            remedy = "pass outputs of the same model with classes on axis 1, logits[None] for one row; predict_proba takes arrays"
            raise refuse(f"floating logits of shape (N, {self._columns}) as in fit", kind_of(logits), remedy)

    def predict_proba(self, logits: Any, features: Features | None = None) -> np.ndarray:
        """Return calibrated probabilities (N, K) as a float64 NumPy array.

        The probabilities of a row sum to 1, except for a multi-label calibrator, where each label has its own probability.

        Args:
            logits: Logits as an array, list or tensor of shape (N, K), (N, K, d1, …), or (K,) for one row, with the same K as in
                ``fit``.
            features: Named columns (N,) for a calibrator with ``needs_features``; None for any other.

        Returns:
            The probabilities, with classes on axis 1 as in ``logits``.

        Raises:
            NotFittedError: If ``fit`` has not been called.
            InputError: If these are not logits for K classes, if a logit is NaN or +inf, or if all logits of a row are −inf. A
                multi-label calibrator returns NaN for a NaN logit instead.
        """
        rows = torch.atleast_2d(as_tensor(logits, name="logits")).to(self.classes.device, torch.float64)
        if not self.multi_label:  # multi-label logits may be +inf or −inf
            check_logits(rows.movedim(1, -1).flatten(0, -2), unchecked_kind=True)
        with torch.no_grad():
            calibrated = self(rows) if features is None else self(rows, features)
            probabilities = torch.sigmoid(calibrated) if self.multi_label else torch.softmax(calibrated, dim=1)
        return np.asarray(probabilities.cpu().numpy())

    def extra_repr(self) -> str:
        """Return the configuration and the learned values as text, for the repr."""
        learned = self.learned() if self.fitted else ""
        return ", ".join(part for part in (settings_in_words(self), learned) if part)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the calibrator as one safetensors file, written atomically.

        The file holds the class, the configuration, the learned state and hashes of the fitting rows.

        Args:
            path: A path that ends in .safetensors.

        Raises:
            NotFittedError: If ``fit`` has not been called.
            InputError: If ``path`` has another suffix.
        """
        if not self.fitted:
            raise self._unfitted()
        files.check_suffix(path, [".safetensors"], what="a saved calibrator")
        metadata = {
            "format": FORMAT,
            "type": type(self).__name__,
            "config": json.dumps(self.config(), sort_keys=True),
            "versions": json.dumps({"calibrant": own_version(), "torch": torch.__version__}, sort_keys=True),
            "class_names": json.dumps(self.class_names),
        }
        arrays = {name: value.detach().cpu().contiguous().numpy() for name, value in self.state_dict().items()}
        files.write_arrays(path, arrays, metadata=metadata)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # an unfitted calibrator does not know K, so its buffers take the shapes of the loaded tensors
        for name, buffer in self._buffers.items():
            loaded = state_dict.get(prefix + name)
            if buffer is not None and loaded is not None and loaded.shape != buffer.shape:
                self._buffers[name] = torch.empty_like(loaded, device=buffer.device)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        if fn(torch.empty(0)).device.type == "mps":  # mps has no float64, so the learned state stays on its device
            return self
        # half() is meant for the surrounding model: the learned state keeps its precision but moves to the model's device
        apply_in_precision(self, partial(super()._apply, fn, recurse))
        return self


def _after_loading(module: nn.Module, _: Any) -> None:
    if isinstance(module, Learned):
        module._columns = int(module.classes)
        module._update_facts()


class Calibrator(Learned):
    """A map from logits to calibrated logits, fitted on validation data.

    A subclass keeps each argument of ``__init__`` as an attribute of the same name. It declares each learned tensor with an
    annotation ``name: Tensor``, which creates a buffer. It fills the buffers in ``_fit`` from sums over the rows, and uses them
    in ``_transform``.

    Class attributes describe the method:

    - ``preserves_argmax``: The decision cannot change.
    - ``top_label``: Only the confidence of the decision is calibrated, and the decision has already been made.
    - ``decision_on_top``: With ``top_label``, the calibrator makes the decision itself, and the decided class keeps the largest
      probability.
    - ``needs_features``: The calibrator is called with named columns after the logits.

    Examples:
        >>> class Halved(Calibrator):
        ...     def _fit(self, rows):
        ...         pass
        ...
        ...     def _transform(self, logits):
        ...         return logits / 2
        >>> Halved().fit(3 * torch.eye(2), [0, 1])(torch.tensor([[2.0, 0.0]]))
        tensor([[1., 0.]])
    """

    preserves_argmax: bool = False
    top_label: bool = False
    decision_on_top: bool = False
    needs_features: bool = False
    tolerance: float | None = None  # gradient in nats at which a fit may stop; set for fits that are only compared

    @abstractmethod
    def _fit(self, rows: RowSource) -> None:
        """Fill the buffers, from sums over the rows (``rows.total(work, …)``) or from all rows at once (``rows.gathered()``)."""

    @abstractmethod
    def _transform(self, logits: Tensor) -> Tensor:
        """Return calibrated logits (N, K), in the dtype of ``logits`` (N, K), which is float32 or float64.

        A calibrator with ``needs_features`` takes the named columns as a second, optional argument.
        """

    def fit(self, logits: Any, labels: Any = None, *, weights: Any = None) -> Self:
        """Fit the calibrator on validation data, never on training or test data.

        If all labels are the same class, a ``UsageWarning`` is issued.

        Args:
            logits: Floating logits of shape (N, K). Labelled ``Predictions`` are accepted as well, including their weights,
                groups and features; so are ``Pairs``, as predictions with two classes, and rows outside memory, such as
                ``scale.batches(path)``.
            labels: Integers (N,) in [0, K), only together with logits.
            weights: Row weights (N,) ≥ 0, only together with logits. Only their ratios matter; None gives each row weight 1.

        Returns:
            The calibrator itself.

        Raises:
            InputError: If the data are invalid, or too large for a method that needs all rows at once.
            FitError: If the optimum was not reached.
        """
        if isinstance(logits, Pairs):
            logits = Predictions.from_pairs(logits, halves=self.top_label)
        if isinstance(logits, Predictions | RowSource) and (labels is not None or weights is not None):
            raise refuse("predictions alone", "labels or weights as well", "put them into the Predictions")
        rows = logits
        if isinstance(logits, Predictions):
            columns = {name: getattr(logits, name) for name in ("weights", "groups", "features")}
            rows = MemoryRows.of(logits.logits, logits.require_labels(), **columns)
        elif not isinstance(rows, RowSource):
            rows = MemoryRows.of(logits, labels, weights=weights)
        if rows.weighted and not isinstance(logits, MemoryRows):  # whose weights may be counts, as in scikit-learn
            rows = rows.normalized()
        with torch.no_grad(), computing_on(rows.device), one_thread_if_small(rows.count * rows.classes):
            self._learn(rows)
            self.fit_rows = sketch_of(rows.uncut.total(_hashed), rows.count).to(rows.device)
        self.class_names = tuple(getattr(logits, "class_names", None) or ())
        if isinstance(rows, MemoryRows):
            self._warn_of_one_class(rows.gathered().labels)
        return self

    def _warn_of_one_class(self, labels: Tensor) -> None:
        first = int(labels[0])
        if bool((labels == first).all()):
            name = repr(self.class_names[first]) if self.class_names else first
            advice = "so the fit takes all other classes for impossible or rare; fit on rows of all classes"
            warn_user(f"expected labels of several classes, got only class {name}, {advice}", UsageWarning)

    def _learn(self, rows: RowSource) -> None:
        """Fit without hashing the rows, for a calibrator that is part of another one."""
        self._fit(rows)
        self._note(rows)

    def _note(self, rows: RowSource) -> None:
        """Mark the calibrator as fitted on ``rows``, and move its state to their device."""
        if any(buffer.device != rows.device for buffer in self.buffers()):
            self.to(rows.device)
        self.classes.fill_(rows.classes)
        self._columns = int(rows.classes)
        self._update_facts()

    def forward(self, logits: Tensor, features: Features | None = None) -> Tensor:
        """Return calibrated logits of the same shape and dtype.

        Args:
            logits: Floating logits of shape (N, K), with the same K as in ``fit``, or (N, K, d1, …) from a convolutional network.
            features: Named columns (N,) for a calibrator with ``needs_features``; None for any other. If the logits have more
                than two axes, a row's features apply to all its positions.

        Returns:
            The calibrated logits.

        Raises:
            NotFittedError: If ``fit`` has not been called.
            InputError: If K is not that of the data passed to ``fit``.
        """
        if isinstance(logits, Tensor) and logits.dim() > 2:
            rows = logits.movedim(1, -1)  # (N, d1, …, K)
            if features is not None:
                of_position = torch.arange(len(rows)).repeat_interleave(math.prod(rows.shape[1:-1]))
                features = taken(check_features(features, rows=len(rows)) or {}, of_position)
            moved: Tensor = self(rows.flatten(0, -2), features).unflatten(0, rows.shape[:-1])
            return moved.movedim(-1, 1)  # (N, K, d1, …)
        if isinstance(logits, Tensor) and logits.device.type == "mps":
            return cast(Tensor, self(logits.cpu(), features)).to(logits.device)
        self.check_input(logits)
        kind = logits.device.type
        autocast = not torch.compiler.is_compiling() and torch.amp.is_autocast_available(kind)
        # autocast is off, because a matrix product in bfloat16 keeps three digits, too few for calibrated probabilities
        with torch.autocast(kind, enabled=False) if autocast else nullcontext():
            if logits.dtype.itemsize >= torch.float32.itemsize:
                wide, transform = bounded(logits), self._transform
                answer: Tensor = transform(wide) if features is None else cast(Any, transform)(wide, features)
                return logits if answer is wide else answer
            if features is None:  # a few rows at a time, because all rows in 32 bits would take twice the memory
                return in_row_chunks(self._in_16_bits, logits)
            return self._in_16_bits(logits, features)

    def _in_16_bits(self, logits: Tensor, *features: Features) -> Tensor:
        """Return calibrated logits for 16-bit logits, computed in 32 bits and rounded without changing a decision."""
        wide = bounded(logits)
        answer = cast(Any, self._transform)(wide, *features)
        if answer is wide:
            return logits
        answer = narrowed(answer, logits.dtype)
        # 16 bits can round two classes to the same value
        return break_ties(answer, logits.argmax(dim=1, keepdim=True)) if self.preserves_argmax else answer


def _hashed(batch: Batch) -> KeptHashes:
    return part_of(batch.logits, batch.labels)


def bounded(logits: Tensor) -> Tensor:
    """Return ``logits`` (N, K) in 32 bits or more and within ±``_CERTAIN``, so that products with them do not overflow.

    A row whose largest logit is outside this range is shifted, which keeps its decision; classes far below the largest logit have
    probability 0 anyway. All other rows stay unchanged, because some maps depend on a constant added to a row of raw logits.
    """
    # The root of the sum of squares is at least as large as the largest entry, and takes one pass. On other devices, reading a
    # value would synchronise with the device, and a traced graph could not branch on it.
    if logits.dtype.itemsize < torch.float32.itemsize:
        logits = logits.float()
    readable = logits.device.type == "cpu" and not torch.compiler.is_compiling() and not is_transformed(logits)
    if readable and float(torch.linalg.vector_norm(logits.detach())) <= _CERTAIN:
        return logits
    top = logits.amax(dim=1, keepdim=True)
    # rows far below are shifted to 0, because at −_CERTAIN the largest entry would tie with the others
    home = torch.where(top <= -_CERTAIN, 0.0, top.clamp_max(_CERTAIN))
    moved = (logits - (top - home)).clamp_min(-_CERTAIN)
    return torch.where(torch.isneginf(logits), logits, moved)


def narrowed(answer: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``answer`` (N, K) converted to ``dtype``; if the dtype changes, each row's maximum is subtracted first.

    Without the subtraction, rounding the log-probabilities of thousands of classes would create ties and so change decisions. Values
    below the range of ``dtype`` become its lowest number, because −inf would mean that the class is excluded.
    """
    if answer.dtype == dtype:
        return answer
    centred = (answer - answer.amax(dim=1, keepdim=True)).clamp_min(torch.finfo(dtype).min)
    return torch.where(torch.isneginf(answer), answer, centred).to(dtype)


def break_ties(answer: Tensor, decided: Tensor) -> Tensor:
    """Return ``answer`` (N, K) changed so that class ``decided`` (N, 1) is the unique maximum.

    The margin is twice the rounding error of float32, or of a narrower dtype, so that argmax finds the class in the logits, after
    a softmax, and after float64 values have been saved as float32.
    """
    top = answer.gather(1, decided)
    eps = max(torch.finfo(answer.dtype).eps, torch.finfo(torch.float32).eps)
    margin = 2 * eps * torch.nan_to_num(top, neginf=0.0).abs().clamp_min(1.0)
    return torch.minimum(answer, top - margin).scatter(1, decided, top)


class Certified(Calibrator):
    """A calibrator whose fit ends with a certificate: the largest entry of the objective's gradient at the solution, in nats."""

    certificate: Tensor

    @property
    def gradient(self) -> float:
        """The largest gradient entry at the solution; NaN before ``fit`` and after a grid search."""
        return float(self.certificate) if self.fitted and self.certificate.numel() else math.nan


class Tempered(Calibrator):
    """A calibrator that divides the logits by a temperature T, kept as log T."""

    shows: ClassVar[tuple[str, ...]] = ("temperature",)

    log_temperature: Tensor

    @property
    def temperature(self) -> float:
        """The fitted T; NaN before ``fit``."""
        return math.exp(float(self.log_temperature)) if self.fitted else math.nan

    def _tempered(self, wide: Tensor) -> Tensor:
        return wide * torch.exp(-self.log_temperature).to(wide.dtype)


class Identity(Calibrator):
    """Returns the logits unchanged. This is the baseline, and the best choice if no calibrator shows a gain.

    Examples:
        >>> import torch
        >>> z = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> Identity().fit(z, torch.tensor([0, 1]))(z)
        tensor([[2., 0.],
                [0., 1.]])
    """

    preserves_argmax = True

    def _fit(self, rows: RowSource) -> None:
        return

    def _transform(self, logits: Tensor) -> Tensor:
        return logits


class Chain(Calibrator):
    """Fits and applies calibrators in sequence, each on the output of the previous one.

    Args:
        stages: One or more calibrators that need only logits.

    Raises:
        InputError: If there is no stage, or a stage is not such a calibrator.

    Examples:
        >>> from calibrant.calibrators import TemperatureScaling
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
        >>> Chain(Identity(), TemperatureScaling()).fit(z, y)(z).shape
        torch.Size([3, 2])
    """

    def __init__(self, *stages: Calibrator) -> None:
        super().__init__()
        odd = [stage for stage in stages if not isinstance(stage, Calibrator) or stage.needs_features]
        if odd or not stages:
            remedy = "write Chain(VectorScaling(), PriorShift()), with instances instead of classes"
            raise refuse("one or more calibrators that need only logits", shown(odd[0]) if odd else "none", remedy)
        self.stages: Any = nn.ModuleList(stages)
        self.top_label = any(stage.top_label for stage in stages)
        self.decision_on_top = self.top_label and all(stage.decision_on_top for stage in stages if stage.top_label)
        self._update_facts()

    def _update_facts(self) -> None:
        self.preserves_argmax = all(stage.preserves_argmax for stage in self.stages)

    def _fit(self, rows: RowSource) -> None:
        *others, last = self.stages
        for stage in others:
            stage._learn(rows)
            rows = rows.map(with_logits, stage)
        last._learn(rows)

    def _transform(self, logits: Tensor) -> Tensor:
        for stage in self.stages:
            logits = stage(logits)
        return logits


# Operations that several calibrators share.


def check_label_logits(batch: Batch) -> None:
    """Check that no true class is excluded by a logit of −inf.

    Raises:
        InputError: If a true class is excluded; the message names its label and row.
    """
    excluded = torch.isinf(batch.logits.gather(1, batch.labels[:, None])[:, 0])
    if bool(excluded.any()):
        row = int(excluded.nonzero()[0])
        got = f"0 (−inf) for the label {int(batch.labels[row])} in row {row} of its batch"
        remedy = "use AutoCalibrator, which mixes zeros away, or drop the row"
        raise InputError("a probability above 0 (a finite logit) for every label", got, remedy)


def wrong_mass(batch: Batch) -> Tensor:
    """Return the total weight of the rows whose largest logit is not that of the label."""
    return batch.row_weights[batch.logits.argmax(dim=1) != batch.labels].sum()


def with_logits(batch: Batch, change: Callable[..., Tensor], *parameters: float) -> Batch:
    """Return the batch with its logits replaced by ``change(logits, *parameters)``, in float32 or wider."""
    z = batch.logits
    wide = z.float() if z.dtype.itemsize < torch.float32.itemsize else z
    return replace(batch, logits=change(wide, *parameters))


def lift_excluded(logits: Tensor) -> Tensor:
    """Return ``logits`` (N, K) with −inf replaced by the row's smallest finite entry, so that matrix products stay finite."""
    excluded = torch.isneginf(logits)
    return torch.where(excluded, logits.masked_fill(excluded, torch.inf).amin(dim=1, keepdim=True), logits)


def keep_excluded(answer: Tensor, logits: Tensor) -> Tensor:
    """Return ``answer`` in the dtype of ``logits``, with −inf for every class that is −inf in ``logits``."""
    return torch.where(torch.isneginf(logits), -torch.inf, answer).to(logits.dtype)


def mix_with_uniform(log_p: Tensor, share: Tensor | float) -> Tensor:
    """Return log((1 − share) · p + share / K) (N, K) for p = exp(log_p), which is finite if share > 0."""
    share = torch.as_tensor(share, dtype=log_p.dtype, device=log_p.device)
    return (log_p.exp() * (1 - share) + share / log_p.shape[1]).log()
