"""Broken files that coverage finds: atheris (libFuzzer) mutates a good file towards code that no case has reached yet.

    pip install atheris && python -m benchmarks.guided --kind .npz --runs 20000

Optional beside ``benchmarks.fuzz``, which needs nothing but the package. libFuzzer stops at the first input that raises
anything but our own errors, and writes it as ``crash-…`` in the working folder; else the count of inputs is printed.
"""

import argparse
import sys
import tempfile
import warnings
from pathlib import Path

from benchmarks.fuzz import KINDS, good_file, read, suffix_of


def main() -> int:
    """Fuzz one kind of file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--kind", choices=KINDS, default=".npz")
    parser.add_argument("--runs", type=int, default=20_000, help="inputs")
    options = parser.parse_args()
    try:
        import atheris
    except ImportError:
        print("expected atheris, got no such package; pip install atheris", file=sys.stderr)
        return 2
    import calibrant
    from calibrant._core import files as _files
    from calibrant.data import splits
    from calibrant.errors import CalibrantError

    warnings.simplefilter("ignore")
    for module in (_files, splits):  # the readers, whose branches are worth reaching
        for value in list(vars(module).values()):
            if getattr(value, "__module__", None) == module.__name__ and hasattr(value, "__code__"):
                atheris.instrument_func(value)
    folder = Path(tempfile.mkdtemp())
    (folder / "corpus").mkdir()
    (folder / "corpus" / "good").write_bytes(good_file(options.kind, folder))
    path = folder / f"case{suffix_of(options.kind)}"

    def one(content: bytes) -> None:
        path.write_bytes(content)
        try:
            read(options.kind, path)
        except CalibrantError as error:
            if "\n" in str(error):
                raise RuntimeError(f"more than one line: {error}") from error

    print(f"calibrant {calibrant.__version__}, {options.kind}")
    atheris.Setup(
        [sys.argv[0], f"-runs={options.runs}", "-timeout=5", "-print_final_stats=1", str(folder / "corpus")], one
    )
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
