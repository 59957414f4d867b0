"""Files of formats that are not read, refused with the command that makes one that is."""

import shlex
from pathlib import Path

from calibrant._core.paths import shown
from calibrant.errors import FileFormatError, Remedy

_UNPACK = {".gz": "gunzip -k", ".bz2": "bunzip2 -k", ".xz": "unxz -k", ".zst": "unzstd -k"}
_SHEETS = {".xlsx": "openpyxl", ".xlsm": "openpyxl", ".xls": "xlrd", ".ods": "odfpy"}


def refuse_foreign(place: Path) -> None:
    """Raise for a compressed file, or a spreadsheet, with the commands that make a file that is read.

    The command line writes out its own command with the new file in place of the old one.

    Raises:
        FileFormatError: If ``place`` is one.
    """
    suffix = place.suffix.lower()
    if suffix in _UNPACK:
        new = str(place.with_suffix(""))
        kind, make = "a compressed one", f"{_UNPACK[suffix]} {shlex.quote(str(place))}"
    elif suffix in _SHEETS:
        new = str(place.with_suffix(".csv"))
        script = f"import pandas; pandas.read_excel({str(place)!r}).to_csv({new!r}, index=False)"
        kind, make = "a spreadsheet", f"pip install pandas {_SHEETS[suffix]} && python -c {_quoted(script)}"
    else:
        return
    raise FileFormatError(
        "a file of predictions",
        f"{kind}, {shown(place.name)!r}",
        Remedy(f"run: {make}, and name {new} for {shown(place)}", command=f"run: {make}", instead=(shown(place), new)),
    )


def _quoted(script: str) -> str:
    """Return a Python script as one word of a shell, in double quotes where it holds nothing that they leave special."""
    return f'"{script}"' if not set(script) & set('"$`\\!') else shlex.quote(script)
