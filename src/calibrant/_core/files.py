"""Hashes of saved files, and what readers of tables say of broken ones."""

import re
import shlex
from pathlib import Path

from calibrant._files import (
    SUFFIXES as SUFFIXES,
)
from calibrant._files import (
    Array as Array,
)
from calibrant._files import (
    error_boundary as error_boundary,
)
from calibrant._files import (
    one_writer as one_writer,
)
from calibrant._files import (
    pa as pa,
)
from calibrant._files import (
    read_arrays as read_arrays,
)
from calibrant._files import (
    read_metadata as read_metadata,
)
from calibrant._files import (
    read_text as read_text,
)
from calibrant._files import (
    reason_of as reason_of,
)
from calibrant._files import (
    refuse_beyond_memory as refuse_beyond_memory,
)
from calibrant._files import (
    shown,
)
from calibrant._files import (
    write_arrays as write_arrays,
)
from calibrant.errors import FileFormatError, Remedy

MEND_LINE = "complete that line, or put the cell that holds the separator in quotes"
_COMPRESSED = (".gz", ".bz2", ".zst")


def broken(path: Path, error: Exception) -> FileFormatError:
    """Return the error of a file that its reader cannot read."""
    suffix = next((one for one in reversed(path.suffixes) if one not in _COMPRESSED), path.suffix)
    # Arrow's words; read in parallel it does not know the line
    ragged = re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+): (.{0,60})", str(error))
    if ragged is not None:
        line, wanted, found, text = ragged.groups()
        got = f"{found} in {f'line {line}' if line else f'the line {text!r}'}"
        return FileFormatError(f"{wanted} cells in each line of {shown(path)}", got, MEND_LINE)
    got = f"a broken or truncated one: {shown(path)} ({reason_of(error)})"
    return FileFormatError(f"a readable {suffix} file", got, "write it again")


def unpickled(path: Path, words: str) -> Remedy:
    """Return the remedy for pickled objects in a file of NumPy: on the command line what makes a file without them."""
    new = str(path.with_name(f"{path.stem}-plain.npz"))
    program = (
        f"import numpy; x = numpy.load({str(path)!r}, allow_pickle=True); x = x if hasattr(x, 'items') else x.item() if not x.shape "
        f"else {{{path.stem!r}: x}}; numpy.savez({new!r}, **{{k: numpy.array(numpy.asarray(v).tolist()) for k, v in x.items()}})"
    )
    command = f"{words}; if you trust who wrote it, run: python -c {shlex.quote(program)}"
    return Remedy(words, command=command, instead=(shown(path), new))
