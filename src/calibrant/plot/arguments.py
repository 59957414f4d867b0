"""What the plotting functions take."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from calibrant._core.check import check_sequence, check_text, refuse, shown
from calibrant._core.constraints import Fits, Kind
from calibrant.data.checks import Data, MeasuredRows
from calibrant.data.predictions import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def check_axes(ax: Any, *, name: str) -> Any:
    """Return ``ax`` if it has what is drawn with: matplotlib itself is imported only to draw.

    Args:
        ax: The axes of a matplotlib figure.
        name: Name of the argument, for the message.
    """
    if not (hasattr(ax, "plot") and hasattr(ax, "figure") and hasattr(ax, "set_xlabel")):
        raise refuse(f"{name} as the axes of a matplotlib figure", shown(ax), "pass plt.subplots()[1], or None")
    return ax


def check_label(text: Any, *, name: str) -> Any:
    """Return ``text`` if it is None or a string that can be written into a figure.

    Args:
        text: A string, or None.
        name: Name of the argument, for the message.
    """
    letters = "" if text is None else check_text(text, name=name)
    if any("\ud800" <= letter <= "\udfff" for letter in letters):  # of undecodable bytes
        expected, remedy = f"{name} as text that UTF-8 can encode", "leave out the surrogate characters"
        raise refuse(expected, shown(text), remedy)
    return text


AnyAxes = Annotated["Axes", Fits(check_axes, "")]
Label = Annotated[str, Fits(check_label, "")]
Rows = Annotated[Data, MeasuredRows("a picture", labelled=True)]
ReportedRows = MeasuredRows("a picture or a report", labelled=True)
PlainClassRows = Annotated[Predictions, MeasuredRows("a picture or a report", labelled=True, weighted=False)]
ClassRows = Annotated[Predictions, Kind(Predictions, "draw reliability(...) instead", "Predictions over all classes")]


def check_class_names(class_names: Any, *, classes: int, of: str = "") -> Sequence[str] | None:
    """Return the names of the classes, or None for their indices.

    Args:
        class_names: K names, or None.
        classes: K.
        of: Name of the model, for the message.

    Raises:
        InputError: If there are not K names.
    """
    if class_names is None:
        return None
    names = check_sequence(class_names, name="class_names")
    if len(names) != classes:
        raise refuse(f"{classes} class names{of and f' for {of}'}", str(len(names)), "name every class")
    return [str(name) for name in names]
