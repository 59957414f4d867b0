"""Draws the pictures of reports in docs/report.md with Chromium: ``python docs/figures/screens.py [NAME]``."""

import subprocess
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

from click.testing import CliRunner
from PIL import Image

from calibrant.cli import main
from calibrant.data.examples import example_path

IMAGES = Path(__file__).parent.parent / "images"
ONE = [str(example_path("cifar10"))]
SCREENS = {  # name → files of the report, width and height in pixels, flags
    "report-light": (ONE, "1440,1450", []),
    "report-dark": (
        [str(example_path(name)) for name in ("20news", "cifar10", "sst")],
        "1000,1100",
        ["--blink-settings=preferredColorScheme=0"],
    ),
    "report-phone": (ONE, "500,1450", []),
}


def draw(name: str, folder: Path) -> None:
    """Write one picture."""
    files, size, flags = SCREENS[name]
    for file in files:  # the commands on the page name files in the current folder
        (folder / Path(file).name).write_bytes(Path(file).read_bytes())
    done = CliRunner().invoke(main, ["report", *(Path(file).name for file in files), "-o", "r.html"])
    if done.exit_code:
        raise RuntimeError(done.output)
    shot = folder / "r.png"
    quiet = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
    ]
    command = [
        "chromium",
        *quiet,
        *flags,
        f"--window-size={size}",
        f"--screenshot={shot}",
        (folder / "r.html").as_uri(),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    Image.open(shot).convert("RGB").save(IMAGES / f"{name}.png", optimize=True)  # a palette loses the rare colours


if __name__ == "__main__":
    for name in sys.argv[1:] or SCREENS:
        with tempfile.TemporaryDirectory() as home, chdir(home):
            draw(name, Path(home))
