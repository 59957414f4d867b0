"""A service without PyTorch: the size of its environment, the time of a call, and its difference from PyTorch, for every calibrator.

    python -m venv service && service/bin/pip install onnxruntime numpy
    python -m benchmarks.serve --python service/bin/python --json docs/results/serve.json

Each calibrator of ``calibrators.__all__``, and each rule of ``operate`` behind one, is fitted here, written as an ONNX model, and
answered by the other interpreter, which has no PyTorch.
"""

import argparse
import json
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import MultiLabelPredictions, Predictions, calibrators, operate
from calibrant.adapters.onnx import export_served
from calibrant.calibrators import TemperatureScaling
from calibrant.errors import CalibrantWarning

CLASSES, FIT, NEW, CALLS = 10, 2_000, 100, 200
SITE = torch.arange(FIT) % 4  # the feature of row i, for calibrators that go by features
# What the other interpreter runs: it imports what the page's service imports, and nothing of ours.
SERVICE = """
import json, statistics, sys, time
from pathlib import Path
import numpy, onnxruntime

folder, calls = Path(sys.argv[1]), int(sys.argv[2])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1

def asked(session, rows, features):
    names = [one.name for one in session.get_inputs()]
    return session.run(None, dict(zip(names, (rows, features[: len(rows)]))))

def milliseconds(session, rows, features):
    call = lambda: asked(session, rows, features)
    call()
    times = []
    for _ in range(calls):
        start = time.process_time_ns()
        call()
        times.append((time.process_time_ns() - start) / 1e6)
    return round(statistics.median(times), 4)

found = {}
for path in sorted(folder.glob("*.onnx")):
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    data = numpy.load(path.with_suffix(".npz"))
    features = data["features"]
    probs, *actions = asked(session, data["logits"], features)
    of_fit = asked(session, data["of_fit"], features)[0]
    try:
        none = len(asked(session, data["logits"][:0], features)[0])
    except Exception as error:
        none = str(error)[:80]
    found[path.stem] = {
        "difference": float(abs(probs - data["probs"]).max()),
        "difference_of_fit": float(abs(of_fit - data["probs_of_fit"]).max()),
        "rows_of_none": none,
        "actions_equal": bool((actions[0] == data["actions"]).all()) if actions else None,
        "kilobytes": round(path.stat().st_size / 1000, 1),
        "ms_1_row": milliseconds(session, data["logits"][:1], features),
        "ms_100_rows": milliseconds(session, data["logits"], features),
    }
site = Path(numpy.__file__).parents[1]
tools = {"pip", "setuptools", "pkg_resources", "_distutils_hack", "wheel"}
sizes = {}
for file in site.rglob("*"):
    name = file.relative_to(site).parts[0]
    if file.is_file() and name.split("-")[0] not in tools:
        sizes[name] = sizes.get(name, 0) + file.stat().st_size
print(json.dumps({
    "environment_mb": round(sum(sizes.values()) / 1e6),
    "versions": {"python": sys.version.split()[0], "numpy": numpy.__version__, "onnxruntime": onnxruntime.__version__},
    "torch_imported": "torch" in sys.modules,
    "models": found,
}))
"""


def sample(rows: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return logits (N, K), twice as large as those that the labels (N,) were drawn from."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, CLASSES, generator=generator)
    return logits, torch.multinomial((logits / 2).softmax(dim=1), 1, generator=generator)[:, 0]


def fitted() -> dict[str, Any]:
    """Return name → fitted calibrator, or calibrator with a rule, of all that there are."""
    logits, labels = sample(FIT, seed=0)
    made: dict[str, Any] = {}
    for name in calibrators.__all__:
        if name == "MultiLabelCalibrator":
            several = MultiLabelPredictions.from_logits(
                logits, (torch.rand(FIT, CLASSES) < torch.sigmoid(logits / 2)).long()
            )
            made[name] = calibrators.MultiLabelCalibrator(calibrators.PlattScaling()).fit(several)
            continue
        arguments = {"Chain": (calibrators.Identity(), TemperatureScaling()), "FocalCalibration": (2.0,)}.get(name, ())
        calibrator = getattr(calibrators, name)(*arguments)
        if calibrator.needs_features:  # the site decides how far the logits are from the truth
            drawn = (logits / (1 + 3 * (SITE > 1))[:, None]).softmax(dim=1)
            own = torch.multinomial(drawn, 1, generator=torch.Generator().manual_seed(3))[:, 0]
            made[name] = calibrator.fit(logits, own, features={"site": SITE})
        else:
            made[name] = calibrator.fit(logits, labels)
    plain = made["TemperatureScaling"]
    known = Predictions.from_logits(*sample(FIT, seed=2)).calibrated_by(plain)
    costs = (torch.arange(CLASSES)[:, None] - torch.arange(CLASSES)).abs().double().tolist()
    rules = {
        "costs": operate.thresholds(costs),
        "costs and reject": operate.thresholds(costs, reject=0.4),
        "abstain": operate.abstain(known, error=0.3),
        "abstain by class": operate.abstain(known, error=0.5, by="class"),
    }
    return made | {f"rule {name}": operate.Deployed(plain, rule) for name, rule in rules.items()}


def main() -> None:
    """Export all, let the other interpreter answer, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", required=True, help="an interpreter whose environment has onnxruntime and NumPy alone"
    )
    parser.add_argument("--json", type=Path, required=True)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    warnings.simplefilter("ignore", CalibrantWarning)
    new = sample(NEW, seed=1)[0]
    of_fit = sample(FIT, seed=0)[0][:NEW]  # rows at which steps were learned
    with tempfile.TemporaryDirectory() as folder:
        for name, module in fitted().items():
            torch.compiler.reset()
            export_served(module, Path(folder, f"{name}.onnx"))
            rule = isinstance(module, operate.Deployed)
            calibrator = module.calibrator if rule else module
            features = {"site": SITE[:NEW]} if getattr(calibrator, "needs_features", False) else None
            beside = {"actions": module(new).numpy()} if rule else {}
            for key, rows in (("probs", new), ("probs_of_fit", of_fit)):
                beside[key] = calibrator.predict_proba(rows, features) if features else calibrator.predict_proba(rows)
            table = SITE[:NEW, None].double().numpy()
            np.savez(Path(folder, f"{name}.npz"), logits=new.numpy(), of_fit=of_fit.numpy(), features=table, **beside)
        command = [chosen.python, "-I", "-c", SERVICE, folder, str(CALLS)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    found |= {"classes": CLASSES, "rows": NEW, "calls": CALLS, "clock": "CPU time, median of the calls, one thread"}
    chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
