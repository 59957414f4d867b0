"""Every comparison with other libraries, one after the other: ``make bench``, or ``python -m benchmarks``.

    python -m benchmarks            # metrics, calibrators and losses, on one core
    python -m benchmarks --list     # what there is, with a sentence each

Figures go to stdout as Markdown, so ``python -m benchmarks > bench.md`` keeps a page of them.
"""

import argparse
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

HERE = Path(__file__).parent
RACES = {
    "metrics": ["benchmarks.metrics", "--large"],
    "calibrators": ["benchmarks.calibrators", "--speed"],
    "losses": ["benchmarks.losses"],
}
PEERS = ("torchmetrics", "netcal", "probmetrics", "torch-uncertainty", "scikit-learn", "relplot", "probcal", "kornia")


def modules() -> dict[str, str]:
    """Return the first sentence of every benchmark by its name."""
    found = {}
    for path in sorted(HERE.glob("*.py")):
        if not path.stem.startswith("_"):
            found[path.stem] = path.read_text().split('"""')[1].split("\n")[0]
    return found


def peers() -> str:
    """Return the peers that are installed with their versions, and those that are not."""
    shown = []
    for name in PEERS:
        try:
            shown.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            shown.append(f"{name} (absent)")
    return ", ".join(shown)


def main() -> int:
    """Run the races that are named, each in a process of its own; return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("races", nargs="*", default=[], help=f"out of {', '.join(RACES)}; none means all")
    parser.add_argument("--list", action="store_true", help="say what there is, and stop")
    options = parser.parse_args()
    if options.list:
        for name, sentence in modules().items():
            print(f"python -m benchmarks.{name:24} {sentence}")
        return 0
    if unknown := sorted(set(options.races) - set(RACES)):
        parser.error(f"expected races out of {', '.join(RACES)}, got {', '.join(unknown)}")
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
    )
    print(f"Peers: {peers()}", flush=True)
    failed = 0
    for name in options.races or RACES:
        print(f"\n## {name}", flush=True)
        failed += subprocess.run([sys.executable, "-m", *RACES[name]], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
