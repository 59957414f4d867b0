"""A table of costs from a CSV file."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass

from calibrant._files import read_text
from calibrant.cli._files import readable
from calibrant.errors import FileFormatError

__all__ = ["Costs", "read_costs"]


_CLASS_COLUMN = ("", "class", "true", "label", "y")  # headers of a column that names classes, also by numbers


@dataclass(frozen=True)
class Costs:
    """What each action costs where each class is true.

    Args:
        table: (K, A) costs[true, action].
        actions: A names; their numbers where the file has none.
        classes: K names of the lines, or none.
        file: Where they were read.
    """

    table: list[list[float]]
    actions: list[str]
    classes: tuple[str, ...]
    file: str

    def check_classes(self, known: Sequence[str]) -> None:
        """Raise if the lines' names are not those of the classes in their order.

        Args:
            known: The names of the classes, or none where they have only numbers.

        Raises:
            FileFormatError: If they differ.
        """
        expected = tuple(known) or tuple(str(number) for number in range(len(self.table)))
        numbers = all(name.isdigit() for name in self.classes)
        if self.classes and (known or numbers) and self.classes != expected:
            raise FileFormatError(
                f"expected a line of costs for each class in their order ({', '.join(expected[:8])}), got "
                f"{', '.join(self.classes[:8])} in {self.file}; put the lines in that order"
            )


def read_costs(path: str) -> Costs:
    """Read costs: a line for each class in their order, a column for each action; names of either may stand beside them.

    Raises:
        FileFormatError: If it is no regular file of text, a cell is no number, or lines differ in length.
    """
    with readable(path) as place:
        text = read_text(place)
    try:
        read = [[cell.strip() for cell in line] for line in csv.reader(text.splitlines())]
    except csv.Error as error:
        raise FileFormatError(f"expected costs as CSV text, got another kind of file: {path} ({error})") from None
    lines = [line for line in read if any(line)]
    header = bool(lines) and not all(map(_is_number, lines[0][1:]))
    body = lines[1:] if header else lines
    headed = header and lines[0][0].lower() in _CLASS_COLUMN
    named = bool(body) and (headed or not any(_is_number(line[0]) for line in body))
    cells = [line[1:] if named else line for line in body]
    if not cells or {len(line) for line in cells} != {len(cells[0])} or len(cells[0]) < 2:
        counts = ", ".join(str(len(line)) for line in cells) or "no line"
        raise FileFormatError(
            f"expected a line for each class and equally many costs in each, got {counts} in {path}; fill the table"
        )
    for line in cells:
        for cell in line:
            if not _is_number(cell):
                raise FileFormatError(f"expected numbers as costs in {path}, got {cell!r}; correct it")
    table = [[float(cell) for cell in line] for line in cells]
    actions = lines[0][-len(table[0]) :] if header else [str(one) for one in range(len(table[0]))]
    if len(actions) != len(table[0]):
        raise FileFormatError(
            f"expected a name for each action in the first line of {path}, got {len(actions)}; fill it"
        )
    if len({*actions, "abstain"}) != len(actions) + 1:
        raise FileFormatError(
            f"expected different names of actions other than abstain in {path}, got {', '.join(actions)}"
        )
    return Costs(table, actions, tuple(line[0] for line in body) if named else (), path)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
