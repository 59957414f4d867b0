"""The growth curves of the page: time and memory, on logarithmic axes."""

import statistics
from pathlib import Path
from typing import Any

LABELS = {"rows": "rows N (10 classes)", "classes": "classes K (1,000 rows)", "bins": "bins (1,000,000 rows)"}
COLOURS = {
    "calibrant": "#3f51b5",
    "torchmetrics": "#e07b39",
    "torch-uncertainty": "#2a9d8f",
    "torch": "#777777",
    "scikit-learn": "#d1495b",
    "probmetrics": "#8d6cab",
    "kornia": "#b08900",
    "probcal": "#5b8e3e",
}
MARKERS = dict(zip(COLOURS, "osD^vP*X", strict=True))


def growth_figures(records: list[dict[str, Any]], folder: Path) -> list[Path]:
    """Write one figure an axis that has records: a row of times and one of memory, a column an operation."""
    found = {axis: [one for one in records if one["axis"] == axis and one.get("seconds")] for axis in LABELS}
    return [_figure(axis, points, folder) for axis, points in found.items() if points]


def _figure(axis: str, records: list[dict[str, Any]], folder: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullFormatter

    operations = list(dict.fromkeys(one["operation"] for one in records))
    values = [one["value"] for one in records]
    columns = min(4, len(operations))
    bands = -(-len(operations) // columns)
    settings = {
        "svg.hashsalt": "calibrant",
        "svg.fonttype": "path",
        "font.size": 8,
        "axes.grid": True,
        "grid.alpha": 0.3,
    }
    with plt.rc_context(settings):
        figure, axes = plt.subplots(2 * bands, columns, figsize=(2.6 * columns, 4.2 * bands), squeeze=False)
        handles: dict[str, Any] = {}
        for place in range(bands * columns):
            band, column = divmod(place, columns)
            time_axis, memory_axis = axes[2 * band][column], axes[2 * band + 1][column]
            if place >= len(operations):
                time_axis.set_visible(False)
                memory_axis.set_visible(False)
                continue
            found = [one for one in records if one["operation"] == operations[place]]
            time_axis.set_title(operations[place], fontsize=8)
            for library in dict.fromkeys(one["library"] for one in found):
                points = [one for one in found if one["library"] == library]
                handles[library] = _curves(time_axis, memory_axis, library, points)
            for drawn in (time_axis, memory_axis):
                drawn.set_xscale("log")
                drawn.set_yscale("log")
                drawn.set_xlim(0.8 * min(values), 1.25 * max(values))
                drawn.yaxis.set_minor_formatter(NullFormatter())
            memory_axis.set_xlabel(LABELS[axis])
            if column == 0:
                time_axis.set_ylabel("CPU ms")
                memory_axis.set_ylabel("MiB above the start")
        figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=len(handles), frameon=False)
        figure.tight_layout(rect=(0, 0.35 / (4.2 * bands), 1, 1))
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"bench-{axis}.svg"
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
    return path


def _curves(time_axis: Any, memory_axis: Any, library: str, points: list[dict[str, Any]]) -> Any:
    ours = library == "calibrant"
    style = {
        "color": COLOURS[library],
        "marker": MARKERS[library],
        "markersize": 4,
        "linewidth": 2.2 if ours else 1.2,
        "zorder": 3 if ours else 2,
    }
    values = [one["value"] for one in points]
    (line,) = time_axis.plot(values, [1000 * statistics.median(one["seconds"]) for one in points], **style)
    known = [(one["value"], one["peak_bytes"]) for one in points if one["peak_bytes"] is not None]
    # what fits into memory held already shows as nothing, and is drawn at the axis' foot
    memory_axis.plot([value for value, _ in known], [max(peak / 2**20, 0.1) for _, peak in known], **style)
    return line
