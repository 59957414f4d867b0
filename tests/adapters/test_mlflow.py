"""MLflow: figures, a report and a calibrator end up in the active run."""

from pathlib import Path

import pytest
import torch
from tests.conftest import late, needs

from calibrant import metrics
from calibrant.calibrators import TemperatureScaling

mlflow, adapter = late("mlflow"), late("calibrant.adapters.mlflow")
pytestmark = [
    *needs("mlflow"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def test_a_run_keeps_the_panel_the_report_and_the_calibrator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv(
        "MLFLOW_TRACKING_URI", tmp_path.as_uri()
    )  # the folder goes with the test: others must not log there
    report = tmp_path / "report.html"
    report.write_text("<html></html>")
    z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
    with mlflow.start_run(experiment_id=mlflow.create_experiment("calibration")) as run:
        adapter.log_panel({repr(metrics.ECE()): 0.125}, prefix="test", step=3, report=report)
        adapter.log_calibrator(TemperatureScaling().fit(z, y))
    client = mlflow.MlflowClient()
    assert client.get_run(run.info.run_id).data.metrics == {"test/ECE_binning_EqualWidth_bins_15___norm_1": 0.125}
    assert {item.path for item in client.list_artifacts(run.info.run_id)} == {"report.html", "calibrator.safetensors"}
