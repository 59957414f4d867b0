"""Deployed classifiers before and after calibration.

    python -m benchmarks.wild                      # install, score, fit, measure; writes docs/results/wild.json
    python -m benchmarks.wild --only magika        # one package
    python -m benchmarks.wild --page               # print the page's tables from the record

Environments and scores are kept under ``--home``: they hold other people's weights and texts, and are never committed. A
package that cannot be installed or run is skipped, and said so.
"""

import argparse
import json
import warnings
from pathlib import Path

import torch
from matplotlib.figure import Figure

from benchmarks.records import machine, versions
from benchmarks.wild.measure import measured
from benchmarks.wild.packages import PACKAGES
from benchmarks.wild.pages import details, overview
from benchmarks.wild.scores import scored
from calibrant.errors import CalibrantWarning
from calibrant.plot import Diagram, diagram_of
from calibrant.plot.drawing import draw_diagram, lower_limit

ROOT = Path(__file__).parent.parent.parent
RECORD = ROOT / "docs" / "results" / "wild.json"
PICTURES = ROOT / "docs" / "images"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=Path(".wild"))
    parser.add_argument("--only", choices=[package.name for package in PACKAGES])
    parser.add_argument("--most", type=int, default=120, help="texts a language, or half as many files a type")
    parser.add_argument("--files", default="/usr", help="the folder whose files are used")
    parser.add_argument("--page", action="store_true", help="print the tables of the record, and measure nothing")
    options = parser.parse_args()
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"sets": {}}
    if not options.page:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore", CalibrantWarning)
        record |= {"machine": machine(), "versions": {key: versions()[key] for key in ("python", "calibrant", "torch")}}
        for package in PACKAGES:
            if options.only not in (None, package.name):
                continue
            most = options.most if package.data == "texts" else options.most // 2
            try:
                data = scored(package, options.home, most=most, files=options.files)
            except RuntimeError as error:
                print(f"{package.name}: skipped, {error}", flush=True)
                continue
            print(f"{package.name}: {len(data.val)} rows to fit on, {len(data.test)} to evaluate on", flush=True)
            pins = " ".join(package.environment.pins[:1])
            figures, after = measured(data)
            found = {"pins": pins, "licence": package.licence, "what": package.what, **figures}
            record["sets"][package.name] = found
            RECORD.write_text(json.dumps(record, indent=1) + "\n")
            draw(package.name, diagram_of(data.test), diagram_of(after))
    print(overview(record))
    print()
    print(details(record))


def draw(name: str, before: Diagram, after: Diagram) -> None:
    """Draw two diagrams on one scale, and keep the picture."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    start = lower_limit(before, after)
    for ax, title, one in zip(figure.subplots(1, 2), ("as it is", "AutoCalibrator"), (before, after), strict=True):
        draw_diagram(one, ax, start=start)
        ax.set_title(f"{name}: {title}", fontsize=10)
    figure.savefig(PICTURES / f"wild-{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
