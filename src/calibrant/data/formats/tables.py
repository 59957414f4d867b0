"""Tables in files as Arrow: CSV, TSV, JSON lines, Parquet, Arrow and Feather, whole or in batches."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calibrant._core.files import reason_of
from calibrant._core.paths import check_source, shown
from calibrant.data.formats.foreign import refuse_foreign
from calibrant.data.formats.layout import TABLES
from calibrant.data.formats.tensors import refuse_beyond_memory
from calibrant.errors import CalibrantError, FileFormatError

_BLOCK = 64 << 20  # a line, which may hold a list of many classes, lies within one block


def table_files(path: Path) -> list[Path]:
    """Return the tables a folder holds, in the order of their names, or the one file; all of one suffix.

    Raises:
        FileFormatError: If a folder holds none, or tables of several formats.
    """
    if not path.is_dir():
        refuse_foreign(path)
        return [check_source(path, suffixes=TABLES)]
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in TABLES and file.stem not in _NO_DATA)
    suffixes = sorted({file.suffix.lower() for file in files})
    if len(suffixes) != 1:
        inside = sorted({file.parent.name for file in path.glob("*/*") if file.suffix.lower() in TABLES})[:10]
        remedy = (
            f"there are some in its folders ({', '.join(inside)}): name one of these" if inside else "check the path"
        )
        raise FileFormatError(
            f"tables of one format in the folder {shown(path)}",
            f"{' and '.join(suffixes) or 'none'}",
            "name the file that is meant" if suffixes else remedy,
        )
    return [check_source(file) for file in files]


_NO_DATA = ("state", "dataset_info")  # what the Hugging Face library writes beside its .arrow files


def read_table(path: Path) -> Any:
    """Return the table of a file, or of a folder's files one after another, as ``pyarrow.Table``.

    Raises:
        FileFormatError: If a file is broken, larger than the memory, or the files' columns differ.
    """
    import pyarrow as pa

    files = table_files(path)
    refuse_beyond_memory(sum(file.stat().st_size for file in files), path)
    tables = [_read(file) for file in files]
    for file, table in zip(files, tables, strict=True):
        try:
            table.column_names  # noqa: B018 - names are decoded when they are asked for
            table.validate(full=True)  # and so are texts, whose offsets the readers of .arrow take as they are
        except (UnicodeDecodeError, pa.ArrowException) as error:
            raise _broken(file, error) from error
    for file, table in zip(files, tables, strict=True):
        if table.column_names != tables[0].column_names:
            raise FileFormatError(
                f"the same columns in every file of {shown(path)}",
                f"{table.column_names[:8]} in {shown(file.name)}, others in {shown(files[0].name)}",
                "read them one by one",
            )
        if len(set(table.column_names)) != len(table.column_names):
            twice = next(name for name in table.column_names if table.column_names.count(name) > 1)
            raise FileFormatError("distinct column names", f"{twice!r} twice in {shown(file)}", "rename one of them")
    whole = pa.concat_tables(tables, promote_options="permissive").combine_chunks() if len(tables) > 1 else tables[0]
    if whole.num_rows == 0:
        raise FileFormatError("at least one row", f"none in {shown(path)}", "save one row a prediction")
    return whole


def batches_of(path: Path) -> Iterator[Any]:
    """Yield the rows of one file as Arrow batches, in bounded memory where its format allows: not ``.json``."""
    import pyarrow as pa

    suffix = path.suffix.lower()
    check_source(path, suffixes=TABLES)
    try:
        if suffix in (".csv", ".tsv"):
            import pyarrow.csv

            _check_delimiter(path)
            with pyarrow.csv.open_csv(path, *_csv_options(suffix, block=8 << 20)) as reader:
                yield from reader
        elif suffix == ".parquet":
            import pyarrow.parquet

            with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True, buffer_size=1 << 20) as file:
                yield from file.iter_batches(batch_size=1 << 14, use_threads=False)
        elif suffix in (".arrow", ".feather"):
            with pa.memory_map(str(path)) as source:
                yield from _ipc_batches(source)
        elif suffix == ".jsonl":
            import pyarrow.dataset

            yield from pyarrow.dataset.dataset(path, format="json").to_batches(use_threads=False)
        else:
            yield from _read(path).to_batches()
    except CalibrantError:
        raise
    except Exception as error:  # four readers of Arrow: whatever they raise means that the file is broken
        raise _broken(path, error) from error


def _read(path: Path) -> Any:
    suffix = path.suffix.lower()
    try:
        if suffix in (".csv", ".tsv"):
            import pyarrow.csv

            _check_delimiter(path)
            return pyarrow.csv.read_csv(path, *_csv_options(suffix, block=_BLOCK))
        if suffix == ".jsonl":
            import pyarrow.json

            options = pyarrow.json.ReadOptions(block_size=max(1 << 20, min(path.stat().st_size, 1 << 30)))
            return pyarrow.json.read_json(path, options)
        if suffix == ".json":
            return _read_json(path)
        if suffix == ".parquet":
            import pyarrow.parquet

            file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            refuse_beyond_memory(sum(group.total_byte_size for group in groups), path)
            return file.read()
        import pyarrow as pa

        with pa.OSFile(str(path)) as source:
            return pa.Table.from_batches(list(_ipc_batches(source)))
    except CalibrantError:
        raise
    except MemoryError as error:
        raise FileFormatError("a table that fits in memory", f"more in {shown(path)}", "split it") from error
    except Exception as error:
        raise _broken(path, error) from error


def _csv_options(suffix: str, *, block: int) -> tuple[Any, Any]:
    import pyarrow.csv

    return (
        pyarrow.csv.ReadOptions(block_size=block),
        pyarrow.csv.ParseOptions(delimiter="\t" if suffix == ".tsv" else ","),
    )


def _check_delimiter(path: Path) -> None:
    """Refuse UTF-16, and columns separated otherwise than the suffix says: both are what spreadsheets export."""
    with path.open("rb") as file:
        header = file.readline(1 << 16)
    if header.startswith((b"\xff\xfe", b"\xfe\xff")) and b"\0" in header:
        raise FileFormatError(
            "text in UTF-8",
            f"UTF-16 in {shown(path)}",
            (
                "save it as UTF-8, or rewrite it in Python: pandas.read_csv(old, encoding='utf-16').to_csv(new, "
                "index=False)"
            ),
        )
    _check_header(header, path)
    wanted, name = (b"\t", "tabs") if path.suffix.lower() == ".tsv" else (b",", "commas")
    got = next((sign for sign in (b";", b"|", b"\t", b",") if sign in header), None)
    if got is None or wanted in header or header.startswith(b'"'):
        return
    sign = ascii(got.decode())
    comma = ", decimal=','" if got == b";" else ""
    raise FileFormatError(
        f"expected columns separated by {name}, got {sign} in {shown(path)}; rewrite it in Python: "
        f"pandas.read_csv(old, sep={sign}).to_csv(new, {'sep=chr(9), ' if name == 'tabs' else ''}index=False)"
        + (f", with sep={sign}{comma} where numbers are written 0,5" if comma else "")
    )


def _check_header(header: bytes, path: Path) -> None:
    """Refuse a first line of numbers with decimals: it is a row of data, not names (columns may be called 0, 1, 2)."""
    words = header.decode(errors="replace").strip().replace("\t", ",").split(",")
    if all(re.fullmatch(r"[-+]?\d*\.?\d*(e[-+]?\d+)?", word.strip(), re.IGNORECASE) for word in words) and (
        sum("." in word for word in words) > 1
    ):
        raise FileFormatError(
            "the names of the columns in the first line",
            f"numbers in {shown(path)}",
            "put a line such as logits_0,logits_1,label above them",
        )


def _ipc_batches(source: Any) -> Iterator[Any]:
    """Yield the batches of an Arrow file, or of a stream as the Hugging Face library keeps it."""
    import pyarrow as pa

    try:
        reader = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        yield from pa.ipc.open_stream(source)
        return
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)


def _read_json(path: Path) -> Any:
    """Return a JSON file's table: rows as objects, rows as lists of {label, score}, or columns as an object of lists."""
    import pyarrow as pa

    found = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(found, list) and found and all(isinstance(row, dict) for row in found):
        return pa.Table.from_pylist(found)
    if isinstance(found, list) and found and all(isinstance(row, list) for row in found):
        return pa.table({"scores": found})
    if isinstance(found, dict) and found and all(isinstance(column, list) for column in found.values()):
        return pa.table(found)
    raise FileFormatError(
        f"rows as a JSON list of objects in {shown(path)}", f"{type(found).__name__}", "write one object a row"
    )


def _broken(path: Path, error: Exception) -> FileFormatError:
    if isinstance(error, UnicodeEncodeError):  # Arrow takes names of files in UTF-8 alone
        return FileFormatError("a file name in UTF-8", f"{shown(path)}", "rename the file")
    return FileFormatError(
        f"a readable {path.suffix} file",
        f"a broken or truncated one: {shown(path)} ({reason_of(error)})",
        "write it again",
    )
