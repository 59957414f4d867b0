"""The torchmetrics adapter in torchmetrics' own tools: collections, resets, batches, two processes."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from tests.conftest import late, needs
from tests.draws import drawn
from torch import multiprocessing

from calibrant import Predictions, metrics
from calibrant.binning import EqualMass
from calibrant.errors import InputError

torchmetrics, adapter = late("torchmetrics"), late("calibrant.adapters.torchmetrics")
pytestmark = needs("torchmetrics")


def rows(count: int = 200, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return drawn(count, 5, seed=seed, dtype=torch.float32)


# what they keep of a batch: sums, counts of bins, all confidences
@pytest.mark.filterwarnings("ignore:The ``compute`` method")
@pytest.mark.parametrize("metric", [metrics.NLL(), metrics.ECE(), metrics.ECE(EqualMass(15)), metrics.AURC()], ids=repr)
def test_batches_give_the_value_of_the_whole(metric: metrics.Metric) -> None:
    logits, labels = rows()
    streamed = adapter.StreamedMetric(metric)
    for part in range(0, 200, 37):
        streamed.update(logits[part : part + 37], labels[part : part + 37])
    whole = metric(Predictions.from_logits(logits, labels))
    assert streamed.compute().item() == pytest.approx(whole, rel=1e-12, abs=1e-15)
    streamed.reset()
    with pytest.raises(InputError, match="at least one row before compute"):
        streamed.compute()


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_it_lives_in_a_collection_and_is_cloned_pickled_and_described() -> None:
    logits, labels = rows()
    kinds = {"ece": metrics.ECE(), "mass": metrics.ECE(EqualMass(15)), "nll": metrics.NLL()}
    members = {name: adapter.StreamedMetric(kind) for name, kind in kinds.items()}
    collection = torchmetrics.MetricCollection(members).clone(prefix="val_")
    collection.update(logits, labels)
    values = collection.compute()
    assert values["val_ece"].item() == pytest.approx(metrics.ECE()(Predictions.from_logits(logits, labels)))
    assert values["val_mass"] != values["val_ece"]
    copy = pickle.loads(pickle.dumps(collection["ece"]))
    assert copy.compute() == values["val_ece"]
    assert not copy.higher_is_better
    assert adapter.StreamedMetric(metrics.Accuracy()).higher_is_better
    assert repr(copy) == "StreamedMetric(ECE(binning=EqualWidth(bins=15), norm=1))"


def test_metrics_that_agree_on_the_first_batch_do_not_share_their_states() -> None:
    logits, labels = rows()
    collection = torchmetrics.MetricCollection(
        {where: adapter.StreamedMetric(metrics.Entropy(where)) for where in ("all", "correct")}
    )
    collection.update(logits, logits.argmax(dim=1))
    collection.update(logits, labels)
    both = Predictions.from_logits(logits.repeat(2, 1), torch.cat([logits.argmax(dim=1), labels]))
    expected = {where: metrics.Entropy(where)(both) for where in ("all", "correct")}
    assert {name: value.item() for name, value in collection.compute().items()} == pytest.approx(expected, rel=1e-9)


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
@pytest.mark.parametrize("metric", [metrics.ECE(), metrics.AURC()], ids=["sums", "rows"])
def test_it_works_in_the_wrappers_of_torchmetrics(metric: metrics.Metric) -> None:
    def value_of(*some: int) -> float:
        return metric(Predictions.cat([Predictions.from_logits(*rows(50, seed=seed)) for seed in some]))

    wrappers, streamed = torchmetrics.wrappers, adapter.StreamedMetric(metric)
    running = {kind: wrappers.Running(streamed.clone(), window=2) for kind in ("update", "forward")}
    tracker, extremes = wrappers.MetricTracker(streamed.clone(), maximize=None), wrappers.MinMaxMetric(streamed.clone())
    for seed in range(4):
        tracker.increment()
        for call in (running["update"].update, running["forward"].forward, tracker.update, extremes.update):
            call(*rows(50, seed=seed))
        window = value_of(*range(max(0, seed - 1), seed + 1))
        assert [one.compute().item() for one in running.values()] == pytest.approx([window] * 2, rel=1e-9)
        extremes.compute()
    alone, so_far = [value_of(seed) for seed in range(4)], [value_of(*range(seed + 1)) for seed in range(4)]
    assert tracker.compute_all().tolist() == pytest.approx(alone, rel=1e-9)
    assert tracker.best_metric() == pytest.approx(min(alone), rel=1e-9)
    found = {name: one.item() for name, one in extremes.compute().items()}
    assert found == pytest.approx({"raw": so_far[-1], "min": min(so_far), "max": max(so_far)}, rel=1e-9)


def test_segmentation_shapes_and_ignored_pixels() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(2, 3, 4, 5, generator=generator), torch.randint(3, (2, 4, 5), generator=generator)
    labels[0, 0] = 255
    streamed = adapter.StreamedMetric(metrics.Accuracy(), ignore_index=255)
    streamed.update(logits, torch.full_like(labels, 255))  # a batch without a label
    streamed.update(logits, labels)
    expected = (logits.argmax(1) == labels)[labels != 255].double().mean().item()
    assert streamed.compute().item() == pytest.approx(expected)


def test_logits_of_events_are_measured_together_with_their_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(40, 3, generator=generator), torch.randint(2, (40, 3), generator=generator).float()
    labels[5, 1] = -1
    streamed = adapter.StreamedMetric(metrics.NLL(), binary=True, ignore_index=-1)
    streamed.update(logits[:10], labels[:10])
    streamed.update(logits[10:], labels[10:])
    known = labels >= 0
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits[known].double(), labels[known].double())
    assert streamed.compute().item() == pytest.approx(expected.item(), rel=1e-6)
    with pytest.raises(InputError, match="labels in"):
        streamed.update(logits[:10], labels[:10] + 5)


def one_process(rank: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    logits, labels = rows()
    uneven, empty = adapter.StreamedMetric(metrics.ECE()), adapter.StreamedMetric(metrics.AURC())
    half = slice(0, 70) if rank == 0 else slice(70, 200)
    uneven.update(logits[half], labels[half])
    if rank == 0:  # the other process has no batch
        empty.update(logits, labels)
    torch.save([uneven.compute(), empty.compute()], f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_two_processes_give_the_value_of_the_whole(tmp_path: Path) -> None:
    multiprocessing.spawn(one_process, args=(str(tmp_path),), nprocs=2)
    data = Predictions.from_logits(*rows())
    for rank in range(2):
        values = [value.item() for value in torch.load(tmp_path / f"{rank}.pt")]
        assert values == pytest.approx([metrics.ECE()(data), metrics.AURC()(data)], rel=1e-12)
