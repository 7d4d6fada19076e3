"""``python -m replay.spark.bundle raftlog.zip`` packs the packages of raftlog into one file, for
``spark-submit --py-files``.

What they need besides (pyarrow, protobuf, msgspec, …) has native parts and must be installed where
Spark's Python is.
"""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path

PACKAGES = ("raftlog", "controller", "broker", "replay", "pyspark_raftlog")


def bundle(target: Path) -> int:
    """Write the zip; returns how many files are in it. Raises OSError."""
    count = 0
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in PACKAGES:
            spec = importlib.util.find_spec(package)
            if spec is None or not spec.submodule_search_locations:
                raise ModuleNotFoundError(f"the package {package} is not installed here")
            root = Path(spec.submodule_search_locations[0])
            for path in sorted(root.rglob("*")):
                if "__pycache__" not in path.parts:
                    # Directories too: what was generated has no __init__.py, and is a package by
                    # its directory's entry alone.
                    packed.write(path, Path(package) / path.relative_to(root))
                    count += path.is_file()
    return count


def main() -> int:
    """Write the file that the command line names."""
    if len(sys.argv) != 2:
        print("usage: python -m replay.spark.bundle FILE.zip", file=sys.stderr)
        return 2
    try:
        count = bundle(Path(sys.argv[1]))
    except OSError as error:
        print(f"cannot write {sys.argv[1]}: {error.strerror or error}", file=sys.stderr)
        return 2
    print(f"{sys.argv[1]}: {count} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
