"""Files that are streamed: a folder of Parquet files, or one large Parquet file."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant._files import shown
from calibrant.cli._options import Inputs, refuse_typed
from calibrant.errors import InputError

if TYPE_CHECKING:
    from calibrant.scale import Batches

# bytes of logits, above which one Parquet file is streamed: reading it whole takes several times that
STREAMED_BYTES = 256 << 20
# what a table's columns may be called where it is streamed; what else the reading options say needs the whole file
STREAMED = ("columns", "label", "kind", "weights")
OnRay = Annotated[
    bool,
    typer.Option(
        "--ray", help="Share streamed rows out over the Ray cluster at RAY_ADDRESS, or over this machine's cores."
    ),
]


def streams(file: str, *refused: str) -> bool:
    """Return whether ``file`` is streamed.

    Args:
        file: What is read.
        refused: Parameters of the command that have no effect on such a file.

    Raises:
        InputError: For an option that has no effect on it.
    """
    from calibrant.scale import logits_bytes

    if Path(file).is_dir() or logits_bytes(file) > STREAMED_BYTES:
        reading = [one.name for one in fields(Inputs) if one.name not in STREAMED]
        refuse_typed([*reading, *refused], where=f"{shown(file)}, which is streamed")
        return True
    refuse_typed(["on_ray"], where=f"{shown(file)}, which is read whole")
    return False


def source_of(path: Path, inputs: Inputs, *, on_ray: bool) -> Batches:
    """Return streamed rows as the options say that they are read."""
    from calibrant import scale

    return (scale.on_ray if on_ray else scale.batches)(path, **{name: getattr(inputs, name) for name in STREAMED})


def parts_of(file: str, split: str | None) -> dict[str, Path]:
    """Return split name → where its rows are: the folders of a folder, or all of a file or folder that has none.

    Args:
        file: A folder or a Parquet file.
        split: The requested one, or None for all.

    Raises:
        InputError: If there is no such split, or a folder has both files and folders of them.
    """
    home = Path(file)
    folders = {path.parent.name: path.parent for path in sorted(home.glob("*/*.parquet"))} if home.is_dir() else {}
    if folders and any(home.glob("*.parquet")):
        raise InputError(f"{shown(file)} has Parquet files, and folders of them; name the folder that is meant")
    if not folders:
        if home.is_dir():
            refuse_typed(["split"], where=f"{shown(file)}, a folder without folders of splits")
        return {"all" if home.is_dir() else split or "all": home}
    if split is not None and split not in folders:
        raise InputError(f"{shown(file)} has no split {split!r}, only {', '.join(sorted(folders))}; name one by split")
    return folders if split is None else {split: folders[split]}
