"""The Lightning callbacks in a real Trainer: what is logged, what is updated, what a checkpoint keeps."""

import functools
import inspect
import os
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.adapters.counting import Counting
from tests.conftest import late, needs
from torch import multiprocessing, nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant import Predictions, losses, metrics
from calibrant.binning import EqualMass
from calibrant.calibrators import TemperatureScaling
from calibrant.errors import InputError

lightning, adapter = late("lightning"), late("calibrant.adapters.lightning")
pytestmark = [
    *needs("lightning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Lightning's advice on workers, accelerators and loggers
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 4, generator=generator)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long()), batch_size=32)


@functools.cache
def network() -> Any:
    """Return the class of a small network, made when Lightning is first used."""

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.criterion = Counting()
            self.returns: Any = dict

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            result: torch.Tensor = self.criterion(self.layer(batch[0]), batch[1])
            return result

        def validation_step(self, batch: Any, index: int) -> Any:
            logits = self.layer(batch[0])
            return {"logits": logits, "labels": batch[1], "loss": 0.0} if self.returns is dict else self.returns(logits)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    return Net


def trainer(tmp_path: Path, epochs: int, *callbacks: Any) -> Any:
    return lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, callbacks=list(callbacks), enable_checkpointing=False,
    )  # fmt: skip


def test_the_monitor_logs_the_figures_of_the_whole_validation_set(tmp_path: Path) -> None:
    net = network()()
    early = lightning.pytorch.callbacks.EarlyStopping("val/refinement", patience=5)
    mass = metrics.ECE(EqualMass(5))  # whose edges depend on all rows
    run = trainer(tmp_path, 2, adapter.CalibrationMonitor([metrics.NLL(), metrics.ECE(), mass], prefix="val"), early)
    run.fit(net, loader(), loader())
    logged = {name: value.item() for name, value in run.callback_metrics.items()}
    data = Predictions.collect(net.layer, loader())
    assert logged[f"val/{metrics.ECE()!r}"] == pytest.approx(metrics.ECE()(data), rel=1e-5)
    assert logged[f"val/{mass!r}"] == pytest.approx(mass(data), rel=1e-5)
    assert logged["val/NLL"] == pytest.approx(metrics.NLL()(data), rel=1e-5)
    scaling = TemperatureScaling().fit(data)
    assert logged["val/temperature"] == pytest.approx(scaling.temperature, rel=1e-4)
    best = metrics.NLL()(data.calibrated_by(scaling, allow_fit_rows=True))
    assert logged["val/refinement"] == pytest.approx(best, abs=1e-5)


def one_process(rank: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    monitor, rows = adapter.CalibrationMonitor(), list(loader())
    logged: dict[str, float] = {}
    criterion = losses.AdaFocalLoss(bins=3)
    net = types.SimpleNamespace(log_dict=lambda figures, **options: logged.update(figures), criterion=criterion)
    run = types.SimpleNamespace(num_val_batches=[3], sanity_checking=False, state=types.SimpleNamespace(fn="fit"))
    update = adapter.AdaFocalCallback()
    for hook in (monitor, update):
        hook.on_validation_epoch_start(run, net)
        for x, y in rows if rank == 0 else []:  # the other process has no batch
            hook.on_validation_batch_end(run, net, (x[:, :3], y), None, 0)
        hook.on_validation_epoch_end(run, net)
    torch.save(logged | {"gammas": net.criterion.gammas}, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_log_the_figures_of_all_rows(tmp_path: Path) -> None:
    multiprocessing.spawn(one_process, args=(str(tmp_path),), nprocs=2)
    x, y = loader().dataset.tensors  # type: ignore[attr-defined]
    data, criterion = Predictions.from_logits(x[:, :3], y), losses.AdaFocalLoss(bins=3)
    criterion.update(data)
    for rank in range(2):
        logged = torch.load(tmp_path / f"{rank}.pt")
        assert logged["calibration/ECE"] == pytest.approx(metrics.ECE()(data))
        assert torch.equal(logged["gammas"], criterion.gammas)


def test_each_validation_loader_has_its_own_figures(tmp_path: Path) -> None:
    class Several(network()):
        def validation_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> Any:
            return super().validation_step(batch, index)

    net, other = Several(), DataLoader(TensorDataset(torch.zeros(40, 4), torch.arange(40) % 3), batch_size=16)
    monitor = adapter.CalibrationMonitor([metrics.NLL(), metrics.ECE(), metrics.ECE(5)], prefix="val")
    run = trainer(tmp_path, 1, monitor, adapter.AdaFocalCallback(loader=1))
    run.fit(net, loader(), [loader(), other])
    logged = {name: value.item() for name, value in run.callback_metrics.items()}
    for number, rows in enumerate((loader(), other)):
        expected = metrics.NLL()(Predictions.collect(net.layer, rows))
        assert logged[f"val/NLL/dataloader_idx_{number}"] == pytest.approx(expected, rel=1e-5)
        assert f"val/{metrics.ECE(5)!r}/dataloader_idx_{number}" in logged
    assert net.criterion.seen == 40


def test_the_loss_is_updated_once_an_epoch_and_survives_a_checkpoint(tmp_path: Path) -> None:
    first = network()()
    run = trainer(tmp_path, 2, adapter.AdaFocalCallback())
    run.fit(first, loader(), loader())
    assert (first.criterion.updates, first.criterion.seen) == (2, 96)  # the sanity check before training does not count
    run.save_checkpoint(tmp_path / "a.ckpt")
    second = network()()
    again = trainer(tmp_path, 3, adapter.AdaFocalCallback())
    # Lightning loads weights alone from 2.6 on; before, it had no such argument
    whole = {"weights_only": False} if "weights_only" in inspect.signature(again.fit).parameters else {}
    again.fit(second, loader(), loader(), ckpt_path=tmp_path / "a.ckpt", **whole)
    assert second.criterion.updates == 3


def test_one_logit_a_row_is_measured_as_an_event(tmp_path: Path) -> None:
    class OneLogit(network()):
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return nn.functional.binary_cross_entropy_with_logits(self.layer(batch[0])[:, 0], (batch[1] > 0).float())

        def validation_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch[0])[:, :1], torch.where((batch[1] > 1) | (index == 1), 9, batch[1])

    net, rows = OneLogit(), loader()
    run = trainer(tmp_path, 1, adapter.CalibrationMonitor([metrics.NLL()], binary=True, ignore_index=9))
    run.fit(net, rows, rows)
    x, y = rows.dataset.tensors
    y[32:64] = 9  # no row of the second batch counts
    expected = nn.functional.binary_cross_entropy_with_logits(net.layer(x)[y < 2, 0], y[y < 2].float())
    assert run.callback_metrics["calibration/NLL"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_training_without_an_update_ends_in_an_error(tmp_path: Path) -> None:
    net = network()()
    net.criterion = losses.AdaFocalLoss()
    with pytest.raises(InputError, match="update once per epoch, got no call in the whole training run; give the"):
        trainer(tmp_path, 1, adapter.AdaFocalCallback()).fit(net, loader())


def test_a_wrong_attribute_and_wrong_outputs_get_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"adaptive loss such as AdaFocalLoss\(\) in Net.layer, got Linear"):
        trainer(tmp_path, 1, adapter.AdaFocalCallback("layer")).fit(network()(), loader(), loader())
    net = network()()
    net.returns = lambda logits: {"loss": logits.sum()}
    with pytest.raises(InputError, match=r"expected validation_step to return .* got \['loss'\]"):
        trainer(tmp_path, 1, adapter.CalibrationMonitor()).fit(net, loader(), loader())
