"""Memory, a stream and Ray give the same value, interval and limit if calibrated; what is read, written and refused."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import late
from tests.scale.conftest import in_parts

import calibrant
from calibrant import Predictions, scale
from calibrant.binning import EqualMass, EqualWidth
from calibrant.calibrators import EnsembleTemperatureScaling, HistogramBinning, TemperatureScaling
from calibrant.errors import FileFormatError, InputError, LeakError
from calibrant.evaluate import panel
from calibrant.metrics import AURC, ECE, MCE, NLL, Accuracy, Brier, ClasswiseECE, DebiasedECE, SumMetric, TopLabelECE

pa, pq = late("pyarrow"), late("pyarrow.parquet")

METRICS: list[SumMetric[Any]] = [
    Accuracy(), NLL(), Brier(), ECE(), ECE(norm=2), MCE(), DebiasedECE(), TopLabelECE(), ClasswiseECE(EqualWidth(7)),
    ECE(EqualMass()), AURC(),
]  # fmt: skip
DRAWS = 60  # the same ones are compared, however many


def sample(classes: int, *, weighted: bool = False, grouped: bool = False, rows: int = 1000) -> Predictions:
    generator = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(rows, classes, generator=generator)
    wrong = torch.rand(rows, generator=generator) < 0.2
    labels = torch.where(wrong, (z.argmax(dim=1) + 1) % classes, z.argmax(dim=1))
    beside: dict[str, Any] = {}
    if weighted:
        beside["weights"] = torch.randint(0, 4, (rows,), generator=generator) / 3  # some rows do not count
    if grouped:  # each has rows in every file
        beside["groups"] = torch.randint(0, 60, (rows,), generator=generator)
    return Predictions.from_logits(z, labels, **beside)


def figures_of(row: Any) -> list[float | None]:
    return [row.value, row.low, row.high, row.null_high, row.null_mean]


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.metric, one.n) == (other.metric, other.n)
        for mine, theirs in zip(figures_of(one), figures_of(other), strict=True):
            assert mine == (None if theirs is None else pytest.approx(theirs, rel=1e-9, abs=1e-9)), one.metric


@pytest.mark.parametrize(("classes", "weighted"), [(3, False), (3, True), (2, False)])
def test_a_stream_has_the_figures_of_memory(
    classes: int, weighted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = sample(classes, weighted=weighted)
    folder = in_parts(data, tmp_path)
    expected = panel(data, metrics=METRICS, draws=DRAWS)
    assert sum(row.low is not None for row in expected) >= 6
    monkeypatch.setattr(scale, "BATCH_ROWS", 100)  # several batches a row group
    assert_equal(scale.evaluate(scale.batches(folder), metrics=METRICS, draws=DRAWS), expected)
    assert {row.low for row in scale.evaluate(scale.batches(folder), metrics=METRICS, draws=0)} == {None}


def test_rows_in_groups_have_values_and_no_intervals(tmp_path: Path) -> None:
    data = sample(3, grouped=True)
    for row, metric in zip(scale.evaluate(scale.batches(in_parts(data, tmp_path))), scale.sum_metrics(), strict=True):
        assert figures_of(row) == [pytest.approx(metric(data)), None, None, None, None]


def test_a_calibrator_is_never_applied_to_rows_of_its_fit(tmp_path: Path) -> None:
    data, fitted = sample(3), TemperatureScaling().fit(sample(3, rows=300)[100:])
    elsewhere = TemperatureScaling().fit(Predictions.from_logits(2 * data.logits[:200], data.labels[:200]))
    source = scale.batches(in_parts(data, tmp_path))
    [row] = scale.evaluate(source, metrics=[NLL()], calibrator=elsewhere)
    assert row.value == pytest.approx(NLL()(data.calibrated_by(elsewhere)), rel=1e-12)
    with pytest.raises(LeakError):
        scale.evaluate(scale.batches(in_parts(sample(3, rows=300), tmp_path)), calibrator=fitted)


def write(path: Path, logits: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], *, group: int) -> None:
    column = pa.FixedSizeListArray.from_arrays(pa.array(logits.reshape(-1)), logits.shape[1])
    pq.write_table(pa.table({"logits": column, "label": pa.array(labels)}), path, row_group_size=group)


TEXT = {
    "p_cat": [0.7, 0.2, 0.1], "p_dog": [0.2, 0.5, 0.3], "p_eel": [0.1, 0.3, 0.6], "truth": ["cat", "dog", "cat"],
    "split": ["val", "test", "test"],
}  # fmt: skip


def test_columns_are_read_by_their_names_and_as_they_are_said(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({f"logits_{k}": [float(k), 2.0, 0.0] for k in (1, 0, 2)} | {"y": [2, 0, 1]}), file)
    [data] = scale.batches(file)
    assert data.logits[0].tolist() == [0, 1, 2]
    assert data.labels.tolist() == [2, 0, 1]
    pq.write_table(pa.table(TEXT), file)
    for columns in ("p_*", ["p_cat", "p_dog", "p_eel"], None):
        source = scale.batches(file, columns=columns, label="truth", split="test")
        [data] = source
        assert data.given_probs.tolist() == [[0.2, 0.5, 0.3], [0.1, 0.3, 0.6]]
        assert data.labels.tolist() == [1, 0]
    assert (source.count, source.class_names) == (2, ("cat", "dog", "eel"))


def test_a_table_without_its_columns_gets_one_sentence(tmp_path: Path) -> None:
    for table, options, message in (
        ({"x": [1.0]}, {}, "row group 0: cannot tell which columns are scores. Columns: x"),
        (TEXT, {"label": "truth"}, "has a column 'split'; name one with --split"),
        (TEXT, {"label": "truth", "split": "train"}, "at least one row of positive weight"),
        (TEXT | {"truth": ["cow", "dog", "cat"]}, {"label": "truth", "split": "val"}, "'cow'"),
    ):
        pq.write_table(pa.table(table), tmp_path / "a.parquet")
        with pytest.raises(InputError, match=message):
            scale.batches(tmp_path / "a.parquet", **options)


def make_folder_of_two_models(path: Path) -> None:
    path.mkdir()
    for classes in (6, 7):
        write(path / f"{classes}.parquet", np.eye(classes, dtype=np.float32) * 3, np.arange(classes), group=5)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Path.mkdir, "a folder of them, got none"),
        (lambda path: path.write_bytes(b"PAR1 and no more"), "a readable .parquet file, got a broken one"),
        (make_folder_of_two_models, r"the columns of 6.parquet in every file of .*, got other columns in 7.parquet"),
    ],
)
def test_what_is_no_data_set_gets_one_sentence(tmp_path: Path, make: Any, text: str) -> None:
    path = tmp_path / "a.parquet"
    make(path)
    with pytest.raises((FileFormatError, InputError), match=text):
        scale.batches(path)


def test_bad_rows_are_named(tmp_path: Path) -> None:
    logits = np.arange(6, dtype=np.float32) + np.zeros((300, 6), dtype=np.float32)
    logits[290, 2] = np.nan
    write(tmp_path / "a.parquet", logits, np.zeros(300, dtype=np.int64), group=256)
    with pytest.raises(InputError, match=r"a.parquet, row group 1, from row 0, row 34: .* is missing or NaN"):
        scale.evaluate(scale.batches(tmp_path))


def test_flipped_bits_in_pages_are_found(tmp_path: Path) -> None:
    saved, spoiled = tmp_path / "a.parquet", tmp_path / "spoiled.parquet"
    calibrant.save_predictions(saved, {"all": sample(4, rows=300)})
    content, rng = saved.read_bytes(), np.random.default_rng(5)
    footer = 8 + int.from_bytes(content[-8:-4], "little")
    [truth] = scale.evaluate(scale.batches(saved), metrics=[NLL()])
    for position in rng.integers(4, len(content) - footer, 30).tolist():
        flipped = bytearray(content)
        flipped[position] ^= 1 << int(rng.integers(8))
        spoiled.write_bytes(flipped)
        try:
            [row] = scale.evaluate(scale.batches(spoiled), metrics=[NLL()])
        except (FileFormatError, InputError):
            continue
        assert row.value == pytest.approx(truth.value, rel=1e-12), position


def test_apply_copies_all_else_and_writes_what_the_columns_held(tmp_path: Path) -> None:
    home, out = tmp_path / "in", tmp_path / "out"
    home.mkdir()
    data = sample(3, rows=60)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(data.probs.float().numpy().reshape(-1)), 3)
    table = pa.table({"id": [f"row {i}" for i in range(60)], "probs": flat, "label": data.labels.numpy()})
    pq.write_table(table, home / "a.parquet", row_group_size=25)
    binned = HistogramBinning().fit(data)
    assert scale.apply(binned, scale.batches(home), out) == [out / "a.parquet"]
    written = pq.read_table(out / "a.parquet")
    assert written.column_names == ["id", "probs", "label", "calibrated_probs", "decision"]
    assert written["id"].to_pylist() == table["id"].to_pylist()
    after = Predictions.cat(list(scale.batches(out, columns="calibrated_probs", kind="probs")))
    assert torch.allclose(after.probs.double(), binned(data.probs.log()).softmax(1), atol=1e-6)
    columns = {f"p_{name}": one for name, one in zip("abc", data.probs.numpy().T, strict=True)}
    pq.write_table(pa.table(columns | {"who": ["x"] * 60}), home / "a.parquet")
    [file] = scale.apply(TemperatureScaling().fit(data), scale.batches(home), tmp_path / "one.parquet")
    added = ["calibrated_p_a", "calibrated_p_b", "calibrated_p_c"]
    assert pq.read_table(file).column_names == [*columns, "who", *added]
    with pytest.raises(InputError, match="already has a column 'calibrated_p_a'"):
        scale.apply(TemperatureScaling().fit(data), scale.batches(file), tmp_path / "two.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "one.parquet", "out"]


def test_apply_refuses_before_any_work(tmp_path: Path) -> None:
    folder = in_parts(sample(6), tmp_path / "data")
    scaling, narrow = TemperatureScaling().fit(sample(6, rows=90)), TemperatureScaling().fit(sample(4, rows=90))
    for calibrator, out, text in (
        (scaling, folder, "an output other than the input"),
        (narrow, tmp_path / "new", r"shape \(N, 4\) as in fit"),
    ):
        with pytest.raises((InputError, FileFormatError), match=text):
            scale.apply(calibrator, scale.batches(folder), out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


MEMORY = """
import sys
import pyarrow.dataset, pyarrow.parquet, scipy.stats, torch
from calibrant import Predictions, scale
from calibrant.calibrators import HistogramBinning, TemperatureScaling
from calibrant.metrics import ECE, NLL
torch.set_num_threads(1)
calibrator = TemperatureScaling().fit(torch.randn(50, 1000), torch.arange(50))
for metric in (ECE(), NLL()):  # loads the compiled loops, which are no data
    metric(Predictions.from_logits(torch.randn(300, 1000), torch.arange(300)))

def peak():  # KiB; ru_maxrss would begin at what the parent held
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])

before = peak()
source = scale.batches(sys.argv[1])
scale.evaluate(source, metrics=[ECE(), NLL()])
scale.apply(calibrator, source, sys.argv[2])
HistogramBinning().fit(source)
print((peak() - before) // 1024)
"""


@pytest.mark.slow
def test_memory_stays_bounded_whatever_the_size(tmp_path: Path) -> None:
    """128k rows of 1,000 classes in one row group: 488 MiB of logits, at most 384 MiB beyond the imports."""
    path, rng = tmp_path / "big.parquet", np.random.default_rng(0)
    schema = pa.schema({"logits": pa.list_(pa.float32(), 1000), "label": pa.int64()})
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        block = pa.array(rng.normal(size=16_000_000).astype(np.float32))
        values = pa.FixedSizeListArray.from_arrays(block, 1000)
        labels = [pa.array(rng.integers(0, 1000, 16_000)) for _ in range(8)]
        parts = [pa.record_batch({"logits": values, "label": one}) for one in labels]
        writer.write_table(pa.Table.from_batches(parts), row_group_size=128_000)
    assert pq.read_metadata(path).num_row_groups == 1
    command = [sys.executable, "-W", "ignore", "-c", MEMORY, path, tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 384, f"{done.stdout} MiB"


def die_once(piece: Any, *, marker: str) -> int:
    """Kill the own process the first time the third row group is seen."""
    if piece.group == 2 and not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return piece.group


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")  # Ray's own
def test_ray_gives_the_same_bits_and_survives_a_killed_worker(ray: Any, tmp_path: Path) -> None:
    ray.cloudpickle.register_pickle_by_value(__import__(__name__))
    data, table = sample(5, rows=3000), tmp_path / "a.parquet"
    write(table, data.logits.numpy(), data.labels.numpy(), group=250)
    here, there = scale.batches(table), scale.on_ray(table)
    assert len(there.pieces) == 12
    assert scale.evaluate(there, draws=DRAWS) == scale.evaluate(here, draws=DRAWS)
    one, other = (EnsembleTemperatureScaling().fit(source) for source in (here, there))
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())
    files = [scale.apply(one, source, tmp_path / name)[0] for source, name in ((here, "here"), (there, "there"))]
    assert files[0].read_bytes() == files[1].read_bytes()
    marker = str(tmp_path / "killed")
    assert list(there.run(lambda piece: die_once(piece, marker=marker), there.pieces)) == list(range(12))
    assert os.path.exists(marker)
    logits = data.logits.numpy().copy()
    logits[260, 0] = np.nan
    write(table, logits, data.labels.numpy(), group=250)
    with pytest.raises(InputError, match=r"row group 1, from row 0, row 10"):
        scale.evaluate(scale.on_ray(table))
