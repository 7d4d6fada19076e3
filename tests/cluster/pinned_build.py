"""``raftlog`` as it would be if metadata.version 1 were the latest it knew: a stand-in for the build before, of the same checkout."""

from raftlog.metadata import versions

versions.LATEST_METADATA_VERSION = 1  # before anything that reads it is imported

from raftlog.cli.main import main  # noqa: E402

if __name__ == "__main__":
    main()
