"""Figures of a study as numbers, from its stored runs; ``calibrant.report`` draws them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calibrant._core.constraints import checked
from calibrant.study.figures._curves import bins, learned, trajectory
from calibrant.study.figures._distributions import logits, ood, reliability
from calibrant.study.figures._panels import Bars, Drawing, Line, Panel, Plot, Reliability
from calibrant.study.figures._sweeps import best, focal, losses, sizes, sweep
from calibrant.study.recipe import AnyStudy, FigureSpec
from calibrant.study.store import AnyStore, Store
from calibrant.study.tables import AnyMeasured, Measured

__all__ = ["KINDS", "Bars", "Drawing", "Line", "Panel", "Plot", "Reliability", "drawings"]

KINDS: Mapping[str, Callable[[FigureSpec, Sequence[Measured], Store], Sequence[Any]]] = {
    "trajectory": trajectory,
    "sweep": sweep,
    "best": best,
    "sizes": sizes,
    "reliability": reliability,
    "bins": bins,
    "logits": logits,
    "learned": learned,
    "ood": ood,
    "focal": focal,
    "losses": losses,
}


@checked
def drawings(study: AnyStudy, measured: Sequence[AnyMeasured], store: AnyStore) -> list[Drawing]:
    """Return the figures of a study that have finished runs, one for each setting.

    Args:
        study: The study.
        measured: The result of ``collect``.
        store: Where the runs are stored.

    Raises:
        InputError: If an argument is of another type.
    """
    places = list(dict.fromkeys(item.setting for item in measured))
    found = []
    for spec in study.figures:
        drawn = [item for item in measured if not spec.objectives or item.objective in spec.objectives]
        settings = [None] if spec.kind == "best" else [p for p in places if spec.setting in ("", p)]
        for place in settings:
            items = [item for item in drawn if place is None or item.setting == place]
            panels = tuple(KINDS[spec.kind](spec, items, store)) if items else ()
            if panels:
                found.append(_drawing(spec, items, panels, place if len(settings) > 1 else None))
    return found


def _drawing(spec: FigureSpec, items: Sequence[Measured], panels: tuple[Panel, ...], place: str | None) -> Drawing:
    seeds = len({item.seed for item in items})
    spread = "; bands from the least to the largest of the seeds" if seeds > 1 else ""
    after = f" After {spec.source}." if spec.source else ""
    where = ", ".join(dict.fromkeys(item.setting for item in items))
    caption = f"{spec.title}.{after} {where}, {seeds} seed{'s' if seeds > 1 else ''}{spread}."
    name = spec.name if place is None else f"{spec.name}-{slug(place)}"
    title = spec.title if place is None else f"{spec.title}: {place}"
    count = len(panels)
    columns = 4 if spec.kind == "reliability" and count >= 4 else count if count <= 3 else 2 if count == 4 else 3
    return Drawing(name, title, caption, panels, columns)


def slug(text: str) -> str:
    """Return the name of a figure's file.

    Examples:
        >>> slug("SST Tree-LSTM")
        'sst-tree-lstm'
    """
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())
