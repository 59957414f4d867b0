"""What every calibrator shares: checked fitting, logits in and logits out, learned state in buffers, one-file saving."""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

import calibrant._files as files
from calibrant._check import as_tensor, check_labels, check_logits, check_weights
from calibrant._numerics import row_chunks
from calibrant.errors import InputError, NotFittedError
from calibrant.predictions import check_groups

FORMAT = "calibrant-calibrator-1"


class Calibrator(nn.Module, ABC):
    """A map from logits to calibrated logits, fitted on validation data. It never holds the model.

    Subclasses declare their learned buffers with ``_declare`` in ``__init__``, fill them in ``_fit`` and use them in
    ``_transform``. Class facts: ``preserves_argmax`` (the decision cannot change) and ``top_label`` (it changes the
    confidence of a decision already taken).
    """

    preserves_argmax: ClassVar[bool]
    top_label: bool = False

    classes: Tensor
    fit_rows: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("classes", torch.tensor(0, dtype=torch.int64))
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
        return int(self.classes) > 0

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
        with torch.no_grad():
            self._fit(z, y, weight, check_groups(groups, rows=z.shape[0]))
            self.classes.fill_(z.shape[1])
            self.fit_rows = hash_rows(z, y)
        return self

    def forward(self, logits: Tensor) -> Tensor:
        """Return calibrated logits.

        Args:
            logits: (N, K) floating, K as fitted.

        Raises:
            NotFittedError: Before ``fit``.
            InputError: If K differs from the data of ``fit``.
        """
        if not self.fitted:
            raise NotFittedError(f"expected a fitted {type(self).__name__}, got an unfitted one; call fit first")
        if logits.dim() != 2 or logits.shape[1] != int(self.classes):
            raise InputError(
                f"expected logits of shape (N, {int(self.classes)}) as in fit, got {tuple(logits.shape)}; "
                "fit on outputs of the same model"
            )
        return self._transform(logits)

    def extra_repr(self) -> str:
        """Show the configuration and what was learned."""
        shown = [f"{key}={value!r}" for key, value in self.config().items() if value is not None]
        return ", ".join(shown + ([self.learned()] if self.fitted and self.learned() else []))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save class, configuration, learned state and fitting-row hashes as one safetensors file, atomically.

        Raises:
            NotFittedError: Before ``fit``.
        """
        if not self.fitted:
            raise NotFittedError(f"expected a fitted {type(self).__name__}, got an unfitted one; call fit first")
        if not str(path).endswith(".safetensors"):
            raise InputError(f"expected a path that ends in .safetensors, got {os.fspath(path)!r}; rename it")
        metadata = {
            "format": FORMAT,
            "type": type(self).__name__,
            "config": json.dumps(self.config(), sort_keys=True),
            "torch": torch.__version__,
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


def hash_rows(logits: Tensor, labels: Tensor) -> Tensor:
    """Return one int64 hash (N,) of each row of ``logits`` (as float32 bits) and its label."""
    generator = torch.Generator().manual_seed(0x5EED)
    shape = (logits.shape[1],)
    odd = (torch.randint(-(1 << 62), 1 << 62, shape, generator=generator) * 2 + 1).to(logits.device)
    hashes = []
    for chunk in row_chunks(*logits.shape):
        bits = logits[chunk].float().contiguous().view(torch.int32).long()
        mixed = (bits * odd).sum(dim=1) + labels[chunk] * 0x9E3779B97F4A7C1
        hashes.append(mixed ^ (mixed >> 29))
    return torch.cat(hashes).cpu()


def load_with(path: str | os.PathLike[str], families: Sequence[type[Calibrator]]) -> Calibrator:
    """Return the calibrator saved at ``path``; only the classes in ``families`` are resolved.

    Raises:
        FileFormatError: If the file is not a calibrator or is broken.
        InputError: If its class is not among ``families``.
    """
    from calibrant._config import binning_from_plain
    from calibrant.errors import FileFormatError

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
        rows = torch.from_numpy(arrays.pop("fit_rows"))
        calibrator.load_state_dict({key: torch.from_numpy(value) for key, value in arrays.items()})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FileFormatError(
            f"expected a whole calibrator, got a broken one in {path} ({error}); save it again"
        ) from error
    calibrator.fit_rows = rows
    return calibrator
