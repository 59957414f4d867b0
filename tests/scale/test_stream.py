"""Streaming: the in-memory answer from pieces, in bounded memory, resumable, whole files only."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import calibrant
from calibrant import Predictions, metrics
from calibrant.binning import EqualWidth
from calibrant.calibrators import HistogramBinning, TemperatureScaling
from calibrant.errors import FileFormatError, InputError
from calibrant.scale import (
    apply_streamed,
    evaluate_streamed,
    fit_streamed,
    rows,
)
from calibrant.scale.rows import ParquetRows, open_parquet
from calibrant.scale.stream import sum_metrics


def write(path: Path, logits: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], *, group: int) -> None:
    column = pa.FixedSizeListArray.from_arrays(pa.array(logits.reshape(-1)), logits.shape[1])
    pq.write_table(pa.table({"logits": column, "label": pa.array(labels)}), path, row_group_size=group)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of 1,000, 700 and 300 rows over 6 classes, in row groups of 256."""
    rng = np.random.default_rng(0)
    home = tmp_path / "data"
    home.mkdir()
    for index, count in enumerate((1000, 700, 300)):
        labels = rng.integers(0, 6, count)
        logits = (2 * rng.normal(size=(count, 6)) + 4 * np.eye(6)[labels]).astype(np.float32)
        write(home / f"part-{index}.parquet", logits, labels, group=256)
    return home


def whole(folder: Path) -> Predictions:
    parts = [calibrant.load_predictions(file) for file in sorted(folder.glob("*.parquet"))]
    return Predictions.cat([part for part in parts if isinstance(part, Predictions)])


def test_pieces_give_the_in_memory_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PIECE_BYTES", 100 * 6 * 4)  # several pieces a row group
    data = whole(folder)
    assert ParquetRows(folder).rows == 2000
    assert len(ParquetRows(folder).shards) == 4 + 3 + 2
    seen: list[tuple[int, int]] = []
    figures = evaluate_streamed(folder, progress=lambda done, total: seen.append((done, total)))
    assert seen[8:10] == [(2000, 4000), (2256, 4000)]  # ClasswiseECE looks at the rows twice
    assert seen[-1] == (4000, 4000)
    expected = [(repr(metric), pytest.approx(metric(data), rel=1e-12, abs=1e-15), 2000) for metric in sum_metrics()]
    assert [(figure.metric, figure.value, figure.n) for figure in figures] == expected


def test_a_calibrator_is_applied_on_the_way(folder: Path) -> None:
    data = whole(folder)
    scaling = TemperatureScaling().fit(data.logits[:500], data.need_labels()[:500])
    after = data[500:].calibrated_by(scaling)
    write(folder / "part-9.parquet", data.logits[500:].numpy(), data.need_labels()[500:].numpy(), group=256)
    for file in sorted(folder.glob("part-[012].parquet")):
        file.unlink()
    [figure] = evaluate_streamed(folder, metrics=[metrics.NLL()], calibrator=scaling)
    assert figure.value == pytest.approx(metrics.NLL()(after), rel=1e-12)


def test_an_interrupted_evaluation_goes_on_to_the_same_bits(folder: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "progress.json"

    class StopError(Exception):
        pass

    def stop_after(rows: int) -> Any:
        def stop(done: int, total: int) -> None:
            if done > rows:
                raise StopError

        return stop

    for rows_done in (1200, 3200):  # in the first pass, and in the second
        with pytest.raises(StopError):
            evaluate_streamed(folder, checkpoint=checkpoint, progress=stop_after(rows_done))
        _, finished, _ = json.loads(checkpoint.read_text())["open"]
        assert 0 < finished < 9
    seen: list[tuple[int, int]] = []
    resumed = evaluate_streamed(folder, checkpoint=checkpoint, progress=lambda done, total: seen.append((done, total)))
    assert seen[0][0] > 3200
    assert seen[-1] == (4000, 4000)
    assert resumed == evaluate_streamed(folder)
    assert not checkpoint.exists()


def interrupt(done: int, total: int) -> None:
    raise KeyboardInterrupt


def test_apply_writes_whole_files_and_goes_on(folder: Path, tmp_path: Path) -> None:
    data = whole(folder)
    scaling = TemperatureScaling().fit(data.logits, data.need_labels())
    out = tmp_path / "out"
    assert apply_streamed(scaling, folder, out) == 3
    with torch.no_grad():
        expected = scaling(data.logits)
    assert torch.equal(whole(out).logits, expected)
    assert torch.equal(whole(out).need_labels(), data.need_labels())
    assert [file.name for file in sorted(out.iterdir())] == [file.name for file in sorted(folder.iterdir())]
    victim = out / "part-1.parquet"
    victim.unlink()
    assert apply_streamed(scaling, folder, out) == 1
    assert not [name for name in os.listdir(out) if name.endswith(".part")]


def test_apply_keeps_other_columns_and_a_decision_and_says_whose_file_it_finds(tmp_path: Path) -> None:
    home, out = tmp_path / "in", tmp_path / "out"
    home.mkdir()
    rng = np.random.default_rng(0)
    probs = torch.softmax(torch.from_numpy(rng.normal(size=(60, 3))), dim=1).float()
    labels = rng.integers(0, 3, 60)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(probs.numpy().reshape(-1)), 3)
    table = pa.table({"id": [f"row {i}" for i in range(60)], "probs": flat, "label": labels})
    pq.write_table(table, home / "a.parquet", row_group_size=25)
    binned = HistogramBinning().fit(probs.log(), labels)
    assert apply_streamed(binned, home, out) == 1
    written = pq.read_table(out / "a.parquet")
    assert written.column_names == ["id", "logits", "label", "decision"]
    assert written["id"].to_pylist() == table["id"].to_pylist()
    after = Predictions.from_probs(probs, labels).calibrated_by(binned, allow_fit_rows=True)
    [streamed] = evaluate_streamed(out, metrics=[metrics.ECE()])
    assert streamed.value == pytest.approx(metrics.ECE()(after), rel=1e-6)  # float32 on disk
    other = HistogramBinning(EqualWidth(3)).fit(probs.log(), labels)
    for calibrator in (other, TemperatureScaling().fit(probs.log(), labels)):
        with pytest.raises(FileFormatError, match="written by this calibrator from these data, got another file"):
            apply_streamed(calibrator, home, out)
    (out / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(FileFormatError, match="broken or truncated"):
        apply_streamed(binned, home, out)


def test_apply_refuses_before_any_work(folder: Path, tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    scaling, narrow = (
        TemperatureScaling().fit(z, (z / 2).softmax(1).multinomial(1, generator=rng)[:, 0])
        for z in (4 * torch.randn(90, 6, generator=rng), 4 * torch.randn(90, 4, generator=rng))
    )
    (tmp_path / "file").touch()
    for calibrator, out, text in (
        (scaling, folder, "a folder other than the input's"),
        (scaling, tmp_path / "file", "file is a file; name a folder"),
        (narrow, tmp_path / "new", r"shape \(N, 4\) as in fit"),
    ):
        with pytest.raises((InputError, FileFormatError), match=text):
            apply_streamed(calibrator, folder, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file"]


def test_bad_rows_are_named(folder: Path) -> None:
    logits = np.zeros((300, 6), dtype=np.float32)
    logits[290, 2] = np.nan
    write(folder / "part-3.parquet", logits + np.arange(6, dtype=np.float32), np.zeros(300, dtype=np.int64), group=256)
    with pytest.raises(InputError, match=r"part-3.parquet, row group 1, rows 0–43: .* got NaN in row 34"):
        evaluate_streamed(folder)


def no_list_of_scores(path: Path) -> None:
    pq.write_table(pa.table({"logits": [[1.0, 2.0]], "label": [0]}), path)


def no_row(path: Path) -> None:  # hence no class: nothing to be the largest
    empty = pa.table({"logits": pa.array([], pa.list_(pa.float32())), "label": pa.array([], pa.int64())})
    pq.write_table(empty, path)


def several_labels(path: Path) -> None:
    lists = ([1.0, -1.0, 0.5, 2.0], [1, 0, 1, 1])
    logits, labels = (pa.FixedSizeListArray.from_arrays(pa.array(values), 2) for values in lists)
    pq.write_table(pa.table({"logits": logits, "label": labels}), path)


def folder_of_splits(path: Path) -> None:
    (path / "val").mkdir(parents=True)
    write(path / "val" / "a.parquet", np.zeros((2, 3), np.float32), np.zeros(2, np.int64), group=5)


def folder_of_two_models(path: Path) -> None:
    path.mkdir()
    for classes in (6, 7):
        write(path / f"{classes}.parquet", np.eye(classes, dtype=np.float32) * 3, np.arange(classes), group=5)


def folder_with_a_pipe(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "a.parquet")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Path.mkdir, "a folder of them, got none"),
        (lambda path: path.write_bytes(b"PAR1 and no more"), "broken or truncated"),
        (lambda path: pq.write_table(pa.table({"x": [1]}), path), r"a column logits or probs .* got \['x'\]"),
        (no_list_of_scores, "fixed_size_list"),
        (no_row, "fixed_size_list"),
        (lambda path: write(path, np.zeros((0, 3), np.float32), np.zeros(0, np.int64), group=5), "at least one row"),
        (several_labels, r"one label, group or decision a row, got .*evaluate_multilabel_streamed"),
        (folder_of_splits, r"there are some in its folders \(val\): name one of these"),
        (folder_of_two_models, "6 classes as in the first file, got logits over 7"),
        (folder_with_a_pipe, "got a pipe at"),
        (os.mkfifo, "got a pipe at"),  # which is not waited for
    ],
)
def test_what_is_no_table_gets_one_sentence(tmp_path: Path, make: Any, text: str) -> None:
    path = tmp_path / "a.parquet"
    make(path)
    with pytest.raises((FileFormatError, InputError), match=text):
        evaluate_streamed(path)


MEMORY = """
import sys
import jinja2, matplotlib.figure, pyarrow.parquet, scipy.stats, torch, calibrant
from calibrant.report import diagnose_streamed, write_report
from calibrant.scale import apply_streamed, evaluate_streamed
from calibrant.calibrators import TemperatureScaling
torch.set_num_threads(1)
calibrator = TemperatureScaling().fit(torch.randn(50, 1000), torch.arange(50))
from calibrant import Predictions
from calibrant.metrics import ECE, NLL

for metric in (ECE(), NLL()):  # loads the compiled loops, which are no data
    metric(Predictions.from_logits(torch.randn(300, 1000), torch.arange(300)))

def peak():  # KiB; ru_maxrss would begin at what the parent held
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])

before = peak()
evaluate_streamed(sys.argv[1])
apply_streamed(calibrator, sys.argv[1], sys.argv[2])
write_report([diagnose_streamed(sys.argv[1], calibrator=calibrator)], sys.argv[2] + ".html")
print((peak() - before) // 1024)
"""


@pytest.mark.slow
def test_memory_stays_bounded_whatever_the_size(tmp_path: Path) -> None:
    """128k rows of 1,000 classes in one row group: 488 MiB of logits, at most 384 MiB beyond the imports."""
    path = tmp_path / "big.parquet"
    rng = np.random.default_rng(0)
    column = pa.list_(pa.float32(), 1000)
    with pq.ParquetWriter(path, pa.schema({"logits": column, "label": pa.int64()}), use_dictionary=False) as writer:
        batches = []
        block = rng.normal(size=(16_000, 1000)).astype(np.float32)
        for _ in range(8):
            values = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), 1000)
            batches.append(pa.record_batch({"logits": values, "label": pa.array(rng.integers(0, 1000, 16_000))}))
        writer.write_table(pa.Table.from_batches(batches), row_group_size=128_000)
    assert pq.read_metadata(path).num_row_groups == 1
    del batches
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEMORY, path, tmp_path / "out"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(run.stdout) <= 384, f"{run.stdout} MiB"


def rewrite(file: Path, *, keep_times: bool) -> None:
    """Change one logit of a file; its size stays, and its time of modification too if asked."""
    before = file.stat()
    table = pq.read_table(file)
    values = table.column("logits").combine_chunks().flatten().to_numpy().copy()
    values[0] += 0.5
    column = pa.FixedSizeListArray.from_arrays(pa.array(values), 6)
    pq.write_table(table.set_column(0, "logits", column), file, row_group_size=256)
    if keep_times:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("keep_times", [False, True])
def test_data_that_change_while_they_are_read_are_refused(folder: Path, tmp_path: Path, keep_times: bool) -> None:
    file = folder / "part-2.parquet"

    def disturb(done: int, total: int) -> None:
        if done == 1000:
            rewrite(file, keep_times=keep_times)

    match = r"expected .*part-2\.parquet to stay as it was .*; run it again"
    with pytest.raises(FileFormatError, match=match):
        evaluate_streamed(folder, progress=disturb)
    with pytest.raises(FileFormatError, match=match):
        fit_streamed(TemperatureScaling(), folder, progress=lambda begun, done, total: disturb(done, total))
    scaling = TemperatureScaling().fit(whole(folder).logits, whole(folder).need_labels())
    with pytest.raises(FileFormatError, match=match):
        apply_streamed(scaling, folder, tmp_path / "out", progress=disturb)
    assert sorted(os.listdir(tmp_path / "out")) == ["part-0.parquet", "part-1.parquet"]
    several = ParquetRows(folder)
    evaluate_streamed(several)
    rewrite(file, keep_times=keep_times)
    with pytest.raises(FileFormatError, match=match):
        evaluate_streamed(several)


def test_a_file_that_changes_while_one_shard_is_read_is_refused(folder: Path) -> None:
    data = ParquetRows(folder)
    pieces = data.read(data.shards[0])
    next(pieces)
    rewrite(folder / "part-0.parquet", keep_times=True)
    with pytest.raises(FileFormatError, match="to stay as it was"):
        list(pieces)


def test_a_file_that_is_half_written_when_a_shard_is_opened_is_said_to_have_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ParquetRows(folder)

    def halved(file: Path) -> Any:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        return open_parquet(file)

    monkeypatch.setattr("calibrant.scale.rows.open_parquet", halved)
    with pytest.raises(FileFormatError, match="to stay as it was"):
        evaluate_streamed(data)


@pytest.mark.parametrize("keep_times", [False, True])
def test_a_checkpoint_of_other_metrics_or_data_or_of_nothing_is_refused(
    folder: Path, tmp_path: Path, keep_times: bool
) -> None:
    checkpoint = tmp_path / "progress.json"
    with pytest.raises(KeyboardInterrupt):
        evaluate_streamed(folder, checkpoint=checkpoint, progress=interrupt)
    whole = checkpoint.read_text()
    altered = json.loads(whole)
    altered["open"][2]["items"][0] = {"fields": [1, 2, 3, 4, 5]}
    for text, message in (
        (json.dumps(altered), "a saved sum of the same kind, got another"),
        ("{", "expected a checkpoint, got something else"),
    ):
        checkpoint.write_text(text)
        with pytest.raises(FileFormatError, match=message):
            evaluate_streamed(folder, checkpoint=checkpoint)
    checkpoint.write_text(whole)
    another = "expected a checkpoint of these data and metrics, got another in"
    with pytest.raises(FileFormatError, match=another):
        evaluate_streamed(folder, checkpoint=checkpoint, metrics=[metrics.NLL()])
    rewrite(folder / "part-0.parquet", keep_times=keep_times)
    with pytest.raises(FileFormatError, match=another):
        evaluate_streamed(folder, checkpoint=checkpoint)


def test_flipped_bits_in_pages_are_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 4, 300)
    logits = (2 * rng.normal(size=(300, 4)) + 3 * np.eye(4)[labels]).astype(np.float32)
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    saved = source / "a.parquet"
    calibrant.save_predictions(saved, {"all": Predictions.from_logits(logits, labels)})
    scaling = TemperatureScaling().fit(torch.from_numpy(logits), torch.from_numpy(labels))
    apply_streamed(scaling, source, out)
    spoiled = tmp_path / "spoiled.parquet"
    readers = [
        lambda: evaluate_streamed(spoiled, metrics=[metrics.NLL()])[0].value,
        lambda: metrics.NLL()(calibrant.load_predictions(spoiled)),
    ]
    for file in (saved, out / "a.parquet"):
        content = file.read_bytes()
        footer = 8 + int.from_bytes(content[-8:-4], "little")
        [truth] = evaluate_streamed(file, metrics=[metrics.NLL()])
        for position in rng.integers(4, len(content) - footer, 100).tolist():
            flipped = bytearray(content)
            flipped[position] ^= 1 << int(rng.integers(8))
            spoiled.write_bytes(flipped)
            for read in readers:
                try:
                    value = read()
                except (FileFormatError, InputError):
                    continue
                assert value == pytest.approx(truth.value, rel=1e-12), position


@pytest.mark.parametrize(
    "names",
    [("label", "labels"), ("group", "groups"), ("logits", "probs"), ("logits", "conf"), ("label", "Label")],
)
def test_columns_of_one_meaning_are_refused_as_in_memory(tmp_path: Path, names: tuple[str, str]) -> None:
    path = tmp_path / "a.parquet"
    column = pa.FixedSizeListArray.from_arrays(pa.array([0.5, 0.5, 0.25, 0.75]), 2)
    columns = {name: column if name in ("logits", "probs") else pa.array([0, 1]) for name in ("logits", *names)}
    pq.write_table(pa.table(columns), path)
    for read in (ParquetRows, calibrant.load_predictions):
        with pytest.raises(FileFormatError, match="expected one array of each meaning, got"):
            read(path)


def test_rows_of_a_folder_are_neither_left_out_nor_counted_twice(tmp_path: Path) -> None:
    data = Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 1])
    calibrant.save_predictions(tmp_path / "0.parquet", {"all": data})
    for make in (os.link, os.symlink):
        make(tmp_path / "0.parquet", tmp_path / "1.parquet")
        with pytest.raises(FileFormatError, match=r"each shard once, got 0\.parquet and 1\.parquet in .* one file"):
            ParquetRows(tmp_path)
        (tmp_path / "1.parquet").unlink()
    os.link(tmp_path / "0.parquet", tmp_path / "1.PARQUET")
    with pytest.raises(FileFormatError, match=r"shards that end in \.parquet, got .*1\.PARQUET; rename it"):
        ParquetRows(tmp_path)


@pytest.mark.parametrize("path", [None, 3, b"a", ["a"]])
def test_what_is_no_path_is_refused(path: Any) -> None:
    for read in (ParquetRows, evaluate_streamed):
        with pytest.raises(InputError, match="expected path as text"):
            read(path)
