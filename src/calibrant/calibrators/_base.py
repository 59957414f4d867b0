"""What every calibrator shares: checked fitting, logits in and logits out, learned state in buffers, one-file saving."""

import importlib.metadata
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

import calibrant._files as files
from calibrant._check import as_tensor, check_groups, check_labels, check_logits, check_weights, refuse
from calibrant._config import binning_from_plain
from calibrant._fence import hash_rows
from calibrant.errors import FileFormatError, InputError, NotFittedError

FORMAT = "calibrant-calibrator-1"
_MOST_CLASSES = 1 << 26


class Calibrator(nn.Module, ABC):
    """A map from logits to calibrated logits, fitted on validation data. It never holds the model.

    Subclasses declare their learned buffers with ``_declare`` in ``__init__``, fill them in ``_fit`` and use them in
    ``_transform``. Class facts: ``preserves_argmax`` (the decision cannot change) and ``top_label`` (it changes the
    confidence of a decision already taken). One that is an affine map also gives ``affine``.
    """

    preserves_argmax: ClassVar[bool]
    top_label: bool = False

    classes: Tensor
    fit_rows: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("classes", torch.tensor(0, dtype=torch.int64))
        self._columns = 0  # the same as a plain number, so that a traced forward pass does not depend on a value
        # a hash of every fitting row in order; plain, not a buffer, since no forward pass needs it
        self.fit_rows = torch.empty(0, dtype=torch.int64)

    def _declare(self, *names: str) -> None:
        for name in names:
            self.register_buffer(name, torch.empty(0, dtype=torch.float64))

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain JSON values."""

    @abstractmethod
    def _fit(self, logits: Tensor, labels: Tensor, weight: Tensor | None, groups: Tensor | None) -> None:
        """Learn from checked data."""

    @abstractmethod
    def _transform(self, logits: Tensor) -> Tensor:
        """Return calibrated logits (N, K) of floating ``logits`` (N, K)."""

    def learned(self) -> str:
        """Return what was learned, for the repr."""
        return ""

    @property
    def fitted(self) -> bool:
        """Whether ``fit`` has been called."""
        return self._columns > 0

    def fit(self, logits: Any, labels: Any, *, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit on validation data, never on training or test data.

        Args:
            logits: (N, K) floating.
            labels: (N,) integers in [0, K).
            sample_weight: (N,) weights ≥ 0, or None.
            groups: (N,) cluster of each row, used by methods that split the data, or None.

        Raises:
            InputError: If the data are not valid.
            FitError: If the optimum was not reached.
        """
        z = as_tensor(logits, name="logits")
        check_logits(z)
        y = check_labels(as_tensor(labels, name="labels").to(z.device), rows=z.shape[0], classes=z.shape[1])
        weight = None
        if sample_weight is not None:
            weight = check_weights(as_tensor(sample_weight, name="sample_weight").to(z.device), rows=z.shape[0])
        codes = check_groups(groups, rows=z.shape[0])
        with torch.no_grad():
            if weight is not None and not bool((kept := weight > 0).all()):  # such rows must not count in bins or folds
                self._fit(z[kept], y[kept], weight[kept], None if codes is None else codes[kept.to(codes.device)])
            else:
                self._fit(z, y, weight, codes)
            self.classes.fill_(z.shape[1])
            self._columns = int(z.shape[1])
            self.fit_rows = hash_rows(z)
        return self

    def forward(self, logits: Tensor) -> Tensor:
        """Return calibrated logits.

        Args:
            logits: (N, K) floating, K as fitted.

        Raises:
            NotFittedError: Before ``fit``.
            InputError: If K differs from the data of ``fit``.
        """
        self._need_fit()
        if not isinstance(logits, Tensor):
            raise refuse("logits as a tensor", type(logits).__name__, "convert with torch.as_tensor(logits)")
        if not logits.is_floating_point():
            raise refuse("logits of a floating dtype", str(logits.dtype), "convert with logits.float()")
        if logits.dim() != 2 or logits.shape[1] != self._columns:
            raise InputError(
                f"expected logits of shape (N, {self._columns}) as in fit, got {tuple(logits.shape)}; "
                "fit on outputs of the same model"
            )
        return self._transform(logits)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return (A, b) in float64, A of shape (K,) if it is diagonal, else (K, K): the calibrated logits are A·z + b.

        Raises:
            InputError: If this calibrator is no affine map of the logits.
        """
        raise InputError(
            f"expected an affine calibrator, got {type(self).__name__}; deploy torch.nn.Sequential(model, calibrator)"
        )

    def fold_into(self, linear: nn.Linear) -> nn.Linear:
        """Return a copy of a model's last layer that gives calibrated logits at no cost; ``linear`` stays as it is.

        Args:
            linear: Its outputs are the K logits.

        Raises:
            NotFittedError: Before ``fit``.
            InputError: If this calibrator is no affine map, or K differs.
        """
        self._need_fit()
        if linear.out_features != self._columns:
            raise InputError(
                f"expected a linear layer with {self._columns} outputs as in fit, got {linear.out_features}; "
                "pass the model's last layer"
            )
        scale, shift = self.affine()
        scale, shift = scale.to(linear.weight.device), shift.to(linear.weight.device)
        bias = torch.zeros_like(shift) if linear.bias is None else linear.bias.detach().double()
        weight = linear.weight.detach().double()
        folded = nn.Linear(linear.in_features, linear.out_features, device=weight.device, dtype=linear.weight.dtype)
        with torch.no_grad():
            folded.weight.copy_(scale[:, None] * weight if scale.dim() == 1 else scale @ weight)
            folded.bias.copy_((scale * bias if scale.dim() == 1 else scale @ bias) + shift)
        return folded

    def _need_fit(self) -> None:
        if not self.fitted:
            raise NotFittedError(f"expected a fitted {type(self).__name__}, got an unfitted one; call fit first")

    def extra_repr(self) -> str:
        """Show the configuration and what was learned."""
        shown = [f"{key}={value!r}" for key, value in self.config().items() if value is not None]
        return ", ".join(shown + ([self.learned()] if self.fitted and self.learned() else []))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save class, configuration, learned state and fitting-row hashes as one safetensors file, atomically.

        Raises:
            NotFittedError: Before ``fit``.
        """
        self._need_fit()
        if not str(path).endswith(".safetensors"):
            raise InputError(f"expected a path that ends in .safetensors, got {os.fspath(path)!r}; rename it")
        metadata = {
            "format": FORMAT,
            "type": type(self).__name__,
            "config": json.dumps(self.config(), sort_keys=True),
            "versions": json.dumps({"calibrant": _own_version(), "torch": torch.__version__}, sort_keys=True),
        }
        arrays = {name: value.detach().cpu().contiguous().numpy() for name, value in self.state_dict().items()}
        arrays["fit_rows"] = self.fit_rows.cpu().numpy()
        files.write_arrays(path, arrays, metadata=metadata)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # learned buffers take their shape from what is loaded: an unfitted calibrator does not know K
        for name, buffer in self._buffers.items():
            incoming = state_dict.get(prefix + name)
            if incoming is not None and buffer is not None and incoming.shape != buffer.shape:
                self._buffers[name] = torch.empty_like(incoming, device=buffer.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._columns = int(self.classes)


def load_with(path: str | os.PathLike[str], families: Sequence[type[Calibrator]]) -> Calibrator:
    """Return the calibrator saved at ``path``; only the classes in ``families`` are resolved.

    Raises:
        FileFormatError: If the file is not a calibrator or is broken.
        InputError: If its class is not among ``families``.
    """
    metadata = files.read_metadata(path)
    if metadata.get("format") != FORMAT:
        raise FileFormatError(f"expected a saved calibrator, got another kind of file: {path}; make it with save")
    known = {cls.__name__: cls for cls in families}
    name = metadata.get("type", "")
    if name not in known:
        raise InputError(
            f"expected one of {', '.join(sorted(known))}, got {name!r} in {path}; pass classes=[…] to load"
        )
    try:
        config = {key: binning_from_plain(value) for key, value in json.loads(metadata["config"]).items()}
        calibrator = known[name](**config)
        arrays = files.read_arrays(path)
        calibrator.fit_rows = _hashes(arrays.pop("fit_rows"))
        calibrator.load_state_dict({key: torch.from_numpy(value) for key, value in arrays.items()})
        _probe(calibrator)
    except (KeyError, TypeError, ValueError, RuntimeError, RecursionError, IndexError, AttributeError) as error:
        raise FileFormatError(
            f"expected a whole calibrator, got a broken one in {path} ({files.reason_of(error)}); save it again"
        ) from error
    return calibrator


def _own_version() -> str:
    try:
        return importlib.metadata.version("calibrant")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _hashes(array: files.Array) -> Tensor:
    rows = torch.from_numpy(array)
    if rows.dtype != torch.int64 or rows.dim() != 1:
        raise ValueError(f"fit_rows of {rows.dtype} {tuple(rows.shape)}")
    return rows


def _probe(calibrator: Calibrator) -> None:
    """Refuse learned state that cannot calibrate: it comes from a file, so its shapes and values are unknown."""
    columns = int(calibrator.classes)
    if not 2 <= columns <= _MOST_CLASSES:
        raise ValueError(f"{columns} classes")
    for key, value in calibrator.state_dict().items():
        if value.is_floating_point() and bool(torch.isnan(value).any()):
            raise ValueError(f"NaN in {key}")
    with torch.no_grad():
        answer = calibrator(torch.linspace(1, 0, columns)[None])
    if answer.shape != (1, columns) or bool(torch.isnan(answer).any()):
        raise ValueError("it does not return one row of logits for one row")
