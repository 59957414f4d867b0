"""Labelled texts from parquet files, without preprocessing."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from calibrant._core.files import reason_of
from calibrant.errors import FileFormatError


def read_texts(folder: Path, name: str, *, classes: int) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the texts and labels (N,) of ``name*.parquet`` in ``folder``.

    Args:
        folder: The folder of the files.
        name: ``"train"`` or ``"test"``.
        classes: K.

    Raises:
        FileFormatError: If there are no such files or columns, or a label is not in [0, K).
    """
    import pyarrow.parquet

    files = sorted(folder.glob(f"{name}*.parquet"))
    if not files:
        raise FileFormatError(f"{name}*.parquet in {folder}", "none", "name the folder that holds them")
    texts: list[str] = []
    labels = []
    for file in files:
        try:
            table = pyarrow.parquet.read_table(file)
            missing = {"text", "label"} - set(table.column_names)
            if missing:
                raise ValueError(f"no column {' or '.join(sorted(missing))} among {', '.join(table.column_names)}")
            texts += table["text"].to_pylist()
            labels.append(table["label"].to_numpy().astype(np.int64))
        except Exception as error:  # the reader's errors share no base class; each means that the file does not serve
            raise FileFormatError(
                f"the columns text and label in {file}", f"{reason_of(error)}", "write it again"
            ) from error
    found = np.concatenate(labels)
    if not all(isinstance(text, str) for text in texts) or not 0 <= found.min() <= found.max() < classes:
        raise FileFormatError(f"texts with labels in 0 … {classes - 1} in {folder}", "others", "check the files")
    return texts, found


def body_of(text: str) -> str:
    """Return a text without its header, the lines up to the first empty one."""
    return text.partition("\n\n")[2]
