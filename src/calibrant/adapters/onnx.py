"""Export of a calibrator, or of a model followed by one, to ONNX with standard operators."""

import json
import logging
import os
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibrant._core.check import refuse, shown
from calibrant._files import as_path, atomic_write
from calibrant.calibrators import Calibrator, MultiLabelCalibrator
from calibrant.data.collect import evaluation_mode
from calibrant.errors import FitError, InputError, optional

__all__ = ["export", "export_served"]

INPUTS = {"logits": "logits", "probs": "given_probs"}  # "probs" is the output, and a name of ONNX stands for one value


def export(
    module: nn.Module,
    path: str | os.PathLike[str],
    *,
    example: Tensor | None = None,
) -> None:
    """Write ``module`` to ``path`` as an ONNX model with any number of rows, atomically.

    Args:
        module: A fitted calibrator, or a model that ends in one, such as ``torch.nn.Sequential(model, calibrator)``.
        path: Ends in ``.onnx``.
        example: An input batch (rows first) of the model; None for a calibrator alone, whose input is float32 logits
            (N, K). The input of the ONNX model is named "input", its output "logits"; the softmax of the output is calibrated
            (for a ``MultiLabelCalibrator`` the sigmoid).

    Raises:
        InputError: If the path does not end in .onnx, or a model comes without an example.
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
    _write(_translate(module, example, input_name="input", output_name="logits"), path)


def export_served(
    calibrator: Any,
    path: str | os.PathLike[str],
    *,
    kind: Literal["logits", "probs"] = "logits",
    class_names: Sequence[str] | None = None,
) -> None:
    """Write a calibrator as an ONNX model that gives calibrated probabilities.

    The model has the input "logits", or "given_probs", (N, K) float32 and the output "probs" (N, K) float32, for any N.
    The metadata hold "calibrator" (as it prints), "class_names" (a JSON list) and the version that wrote it. Several labels a row have K
    probabilities, each of its own.

    Args:
        calibrator: A fitted calibrator or ``MultiLabelCalibrator``.
        path: Ends in ``.onnx``.
        kind: What the model takes.
        class_names: K names; None takes those of the rows of the fit, if these had any, else "0", "1" ….

    Raises:
        InputError: If the path does not end in .onnx, the names are not K, or it is no calibrator.
        NotFittedError: If the calibrator is not fitted.
        FitError: If a part cannot be exported to standard operators.
        MissingExtraError: If onnx or onnxscript is not installed.
    """
    if not isinstance(calibrator, Calibrator | MultiLabelCalibrator):
        raise refuse("a calibrator", shown(calibrator), "load one by calibrant.load")
    if not calibrator.fitted:
        raise calibrator._unfitted()
    if getattr(calibrator, "needs_features", False):
        what = f"{type(calibrator).__name__} goes by the columns of the rows"
        raise InputError(f"{what}, and ONNX models have logits alone")
    classes = int(calibrator.classes)
    names = [str(name) for name in class_names or calibrator.class_names or range(classes)]
    if len(names) != classes or len({*names}) != classes:
        remedy = "name each class once, in the order of the scores"
        raise refuse(f"{classes} distinct class_names", shown(names), remedy)
    # two rows, none of them equal: a graph traced on equal ones could fold a branch
    example = torch.linspace(1, 0, 2 * classes).reshape(2, -1)
    served, input_name = _Served(calibrator, kind=kind), INPUTS[kind]
    example = example if kind == "logits" else example.softmax(dim=1)
    program = _translate(served, example, input_name=input_name, output_name="probs")
    facts = {"calibrator": repr(calibrator), "class_names": json.dumps(names), "calibrant": version("calibrant")}
    for key, value in facts.items():
        entry = program.metadata_props.add()
        entry.key, entry.value = key, value
    _write(program, path)


class _Served(nn.Module):
    """A calibrator from logits or probabilities to probabilities."""

    def __init__(self, calibrator: Any, *, kind: str) -> None:
        super().__init__()
        self.calibrator, self.kind = calibrator, kind
        self.several = isinstance(calibrator, MultiLabelCalibrator)

    def forward(self, scores: Tensor) -> Tensor:
        """Return probabilities (N, K)."""
        # a row more, since some operators of the runtime refuse a table of none
        scores = torch.cat([scores, scores.new_full((1, scores.shape[1]), 1 / scores.shape[1])])
        if self.kind == "probs":  # as Predictions.from_probs: log p, for several labels the log-odds
            wide = scores.double()
            scores = torch.log(wide) - torch.log1p(-wide) if self.several else torch.log(wide)
        logits = self.calibrator(scores)
        probs = torch.sigmoid(logits.double()) if self.several else torch.softmax(logits.double(), dim=1)
        return probs.float()[:-1]


def _write(program: Any, path: str | os.PathLike[str]) -> None:
    if as_path(path).suffix != ".onnx":
        raise refuse("a path that ends in .onnx", repr(str(path)), "rename it")
    # operators of the exporter's own domains run in one runtime alone
    if foreign := sorted({entry.domain for entry in program.opset_import} - {"", "ai.onnx"}):
        raise FitError("standard ONNX operators only", f"those of {', '.join(foreign)}", "simplify the model")
    with atomic_write(path) as file:
        file.write(program.SerializeToString())


def _translate(module: nn.Module, example: Tensor, *, input_name: str, output_name: str) -> Any:
    """Return ``module`` in evaluation mode as an ONNX program with any number of rows."""
    with optional("onnx", extra="onnx"):
        import onnx
    with optional("onnxscript", extra="onnx"):
        import onnxscript  # noqa: F401
    silenced = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the exporter names packages that it does without
    try:
        # dropout and batch statistics must be those of serving while it is traced
        with evaluation_mode(module), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # internal warnings of the exporter
            # torch.export treats a batch size of 1 as a constant
            batch = example if len(example) > 1 else torch.cat([example, example])
            module(batch)  # its own errors are clear; those of tracing in PyTorch 2.7 are not
            # PyTorch 2.7 takes 2⁶³ − 1, or one row less, for no bound, and fails
            rows = torch.export.Dim("rows", min=1, max=2**62)
            traced = torch.export.export(module, (batch,), dynamic_shapes=({0: rows},))
            names = {"input_names": [input_name], "output_names": [output_name]}
            program = torch.onnx.export(traced, (), dynamo=True, verbose=False, **names)  # type: ignore[arg-type]
    finally:
        logging.disable(silenced)
    assert program is not None
    found = program.model_proto
    value = found.graph.input[0]
    if value.name != input_name:  # an input that is the output as well: PyTorch 2.7 gives it the output's name alone
        found.graph.node.insert(0, onnx.helper.make_node("Identity", [input_name], [value.name]))
        value.name = input_name
    return found
