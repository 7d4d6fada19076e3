"""``raftlog`` pinned to the metadata.version in its first argument, as an older build."""

import sys

from raftlog.metadata import versions

versions.LATEST_METADATA_VERSION = int(sys.argv.pop(1))  # before anything that reads it is imported

from raftlog.cli.main import main  # noqa: E402

if __name__ == "__main__":
    main()
