"""Exports a calibrator, or a model followed by a calibrator, to ONNX with standard operators."""

import json
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibrant._core.check import check_choice, refuse, shown
from calibrant._files import as_path, atomic_write
from calibrant.calibrators import Calibrator, MultiLabelCalibrator
from calibrant.data.predictions import evaluation_mode
from calibrant.errors import FitError, InputError, optional

__all__ = ["export", "export_served"]

INPUTS = {"logits": "logits", "probs": "given_probs"}  # "probs" names the output, and names in ONNX must be unique


def export(
    module: nn.Module,
    path: str | os.PathLike[str],
    *,
    example: Tensor | None = None,
) -> None:
    """Write ``module`` to ``path`` as an ONNX model that accepts any number of rows.

    An existing file is replaced atomically. The input of the ONNX model is named "input" and its output "logits". The
    calibrated probabilities are the softmax of the output, or its sigmoid for a ``MultiLabelCalibrator``.

    Args:
        module: A fitted calibrator, or a model that ends in one, such as ``torch.nn.Sequential(model, calibrator)``.
        path: The file, which must end in ``.onnx``.
        example: A batch of inputs for the model, with rows first; None for a calibrator alone, whose input is float32
            logits (N, K).

    Raises:
        InputError: If the path does not end in .onnx, or ``example`` is missing for a model.
        NotFittedError: If a calibrator is not fitted.
        FitError: If a part cannot be exported to standard operators.
        MissingExtraError: If onnx or onnxscript is not installed.

    Examples:
        >>> import pathlib, tempfile
        >>> from calibrant.calibrators import TemperatureScaling
        >>> z, y = torch.tensor([[2.0, 0.0]] * 10), torch.tensor([0] * 8 + [1] * 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export(TemperatureScaling().fit(z, y), pathlib.Path(folder, "c.onnx"))
    """
    if example is None:
        if not isinstance(module, Calibrator | MultiLabelCalibrator):
            raise InputError(f"an example input for {type(module).__name__}", "none", "pass example=batch")
        if not module.fitted:
            raise module._unfitted()
        example = torch.linspace(1, 0, 2 * int(module.classes)).reshape(2, -1)  # (2, K), or (2, L) for L labels
    _write(module, path, example, names=("input", "logits"))


def export_served(
    calibrator: Any,
    path: str | os.PathLike[str],
    *,
    kind: Literal["logits", "probs"] = "logits",
    class_names: Sequence[str] | None = None,
) -> None:
    """Write a calibrator as an ONNX model that returns calibrated probabilities.

    For any number of rows N, the model has the input "logits" or "given_probs" (N, K) and the output "probs" (N, K),
    all float32. For a ``MultiLabelCalibrator``, the K probabilities of a row belong to K separate labels. The metadata
    contain "calibrator" (its repr), "class_names" (a JSON list) and "calibrant" (the version that wrote the file).

    Args:
        calibrator: A fitted calibrator or ``MultiLabelCalibrator``.
        path: The file, which must end in ``.onnx``.
        kind: Whether the model's input is logits or probabilities.
        class_names: K class names; None uses those in the data used for fitting, or "0", "1" … if there were none.

    Raises:
        InputError: If the path does not end in .onnx, there are not K distinct names, or ``calibrator`` is not a
            calibrator.
        NotFittedError: If the calibrator is not fitted.
        FitError: If a part cannot be exported to standard operators.
        MissingExtraError: If onnx or onnxscript is not installed.

    Examples:
        >>> import pathlib, tempfile
        >>> from calibrant.calibrators import TemperatureScaling
        >>> fitted = TemperatureScaling().fit(torch.tensor([[2.0, 0.0]] * 10), torch.tensor([0] * 8 + [1] * 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export_served(fitted, pathlib.Path(folder, "served.onnx"), class_names=["cat", "dog"])
    """
    input_name = INPUTS[check_choice(kind, name="kind", choices=INPUTS)]
    if not isinstance(calibrator, Calibrator | MultiLabelCalibrator):
        raise refuse("a calibrator", shown(calibrator), "load one with calibrant.load")
    if not calibrator.fitted:
        raise calibrator._unfitted()
    if getattr(calibrator, "needs_features", False):
        what = f"{type(calibrator).__name__} needs feature columns"
        raise InputError(f"{what}, but an exported ONNX model receives only logits")
    classes = int(calibrator.classes)
    names = [str(name) for name in class_names or calibrator.class_names or range(classes)]
    if len(names) != classes or len({*names}) != classes:
        remedy = "name each class once, in the order of the scores"
        raise refuse(f"{classes} distinct class_names", shown(names), remedy)
    # two different rows: tracing equal rows could remove a branch from the graph
    example = torch.linspace(1, 0, 2 * classes).reshape(2, -1)
    example = example if kind == "logits" else example.softmax(dim=1)
    facts = {"calibrator": repr(calibrator), "class_names": json.dumps(names), "calibrant": version("calibrant")}
    _write(_Served(calibrator, kind=kind), path, example, names=(input_name, "probs"), facts=facts)


class _Served(nn.Module):
    """A module that applies a calibrator to logits or probabilities and returns probabilities."""

    def __init__(self, calibrator: Any, *, kind: str) -> None:
        super().__init__()
        self.calibrator, self.kind = calibrator, kind
        self.several = isinstance(calibrator, MultiLabelCalibrator)

    def forward(self, scores: Tensor) -> Tensor:
        """Return probabilities (N, K)."""
        # one extra row, because some operators of the runtime reject empty tensors
        scores = torch.cat([scores, scores.new_full((1, scores.shape[1]), 1 / scores.shape[1])])
        if self.kind == "probs":  # like Predictions.from_probs: log p, or log-odds for several labels
            wide = scores.double()
            scores = torch.log(wide) - torch.log1p(-wide) if self.several else torch.log(wide)
        logits = self.calibrator(scores)
        probs = torch.sigmoid(logits.double()) if self.several else torch.softmax(logits.double(), dim=1)
        return probs.float()[:-1]


def _write(
    module: nn.Module,
    path: str | os.PathLike[str],
    example: Tensor,
    *,
    names: tuple[str, str],
    facts: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write ``module`` in evaluation mode; ``names`` are those of input and output, and ``facts`` the metadata."""
    if as_path(path).suffix != ".onnx":
        raise refuse("a path that ends in .onnx", repr(str(path)), "rename it")
    with optional("onnx", extra="onnx"):
        import onnx
    with optional("onnxscript", extra="onnx"):
        import onnxscript  # noqa: F401
    silenced = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the exporter warns about optional packages that it does not need
    try:
        # trace without dropout and with running batch statistics, as in production
        with evaluation_mode(module), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # internal warnings of the exporter
            # torch.export treats a batch size of 1 as a constant
            batch = example if len(example) > 1 else torch.cat([example, example])
            module(batch)  # raises the module's own errors, which are clearer than tracing errors in PyTorch 2.7
            # PyTorch 2.7 treats a maximum of 2⁶³ − 1 or 2⁶³ − 2 as unbounded, and fails
            rows = torch.export.Dim("rows", min=1, max=2**62)
            traced = torch.export.export(module, (batch,), dynamic_shapes=({0: rows},))
            named = {"input_names": names[:1], "output_names": names[1:]}
            exported: Any = torch.onnx.export(traced, (), dynamo=True, verbose=False, **named)  # type: ignore[arg-type]
    finally:
        logging.disable(silenced)
    program = exported.model_proto
    value = program.graph.input[0]
    if value.name != names[0]:  # if the input is returned unchanged, PyTorch 2.7 gives it only the output's name
        program.graph.node.insert(0, onnx.helper.make_node("Identity", names[:1], [value.name]))
        value.name = names[0]
    # operators outside the standard domain would run in a single runtime only
    if foreign := sorted({entry.domain for entry in program.opset_import} - {"", "ai.onnx"}):
        raise FitError("standard ONNX operators only", f"operators of {', '.join(foreign)}", "simplify the model")
    onnx.helper.set_model_props(program, dict(facts))
    with atomic_write(path) as file:
        file.write(program.SerializeToString())
