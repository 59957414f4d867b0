"""The calibrators of probmetrics as ours, so that both are fitted, timed and judged by the same lines.

Names are those of its ``get_calibrator``; its other classes go by their own. Those that need a package which is not
installed, or take two classes only, are refused with their own words. Each is fitted on logits, which its methods on
probabilities turn into float64 probabilities themselves.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.calibrators import Calibrator
from calibrant.errors import InputError
from calibrant.rows import RowSource

NAMES = (
    "platt",
    "platt-logits",
    "isotonic",
    "isotonic with mixture",
    "ivap",
    "ivap-ovr",
    "ivap-ovo",
    "cir",
    "temp-scaling",
    "ts-mix",
    "linear-scaling",
    "affine-scaling",
    "quadratic-scaling",
    "beta",
    "svs",
    "sms",
    "logistic",
    "logistic-mix",
    "torchunc-ts",
    "guo-ts",
    "torchcal-ts",
    "autogluon-ts",
    "autogluon-inv-ts",
    "dircal",
    "VectorScalingCalibrator",
    "MatrixScalingCalibrator",
    "ETSCalibrator",
    "KernelCalibrator",
)


class PeerCalibrator(Calibrator):
    """One of probmetrics' calibrators by its name."""

    preserves_argmax: ClassVar[bool] = False  # nothing is known

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.fitted_peer: Any = None

    def _fit(self, rows: RowSource) -> None:
        from probmetrics.distributions import CategoricalLogits

        whole = rows.gathered()
        logits, labels = whole.logits, whole.labels

        try:
            with torch.enable_grad():  # some of them descend by autograd
                self.fitted_peer = _make(self.name)
                self.fitted_peer.fit_torch(CategoricalLogits(logits.double()), labels)
        except Exception as error:  # whatever a peer raises is its answer, and is printed
            raise InputError(f"{type(error).__name__}: {' '.join(str(error).split())[:80]}") from error

    def _transform(self, logits: Tensor) -> Tensor:
        from probmetrics.distributions import CategoricalLogits

        answer = self.fitted_peer.predict_proba_torch(CategoricalLogits(logits.double())).get_logits()
        return torch.as_tensor(answer).detach()


def _make(name: str) -> Any:
    from probmetrics.calibrators import factory

    if name.endswith("Calibrator"):
        return getattr(factory, name)()
    if name.endswith(" with mixture"):
        return factory.get_calibrator(name.removesuffix(" with mixture"), calibrate_with_mixture=True)
    return factory.get_calibrator(name, svs_print_init_info=False, sms_print_init_info=False)


def peers() -> dict[str, Callable[[], Calibrator]]:
    """Return makers of probmetrics' methods, each with its defaults, by ``probmetrics NAME``."""

    def maker(name: str) -> Callable[[], Calibrator]:
        return lambda: PeerCalibrator(name)

    return {f"probmetrics {name}": maker(name) for name in NAMES}
