"""Small programs for tests of the recorder and of the examination."""

import os
import threading
from pathlib import Path

from marks import mark


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def careful(root: Path) -> None:
    mark("begins")
    for number in range(3):
        mark("writing", number=number)
        with (root / "value.tmp").open("wb") as file:
            file.write(b"%d" % number * 2000)
            file.flush()
            os.fsync(file.fileno())
        (root / "value.tmp").rename(root / "value")
        _sync_directory(root)
        mark("written", number=number)


def everything(root: Path) -> None:
    (root / "d").mkdir()
    fd = os.open(root / "d" / "a", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"abcdef")
    os.pwrite(fd, b"X", 1)
    thread = threading.Thread(target=lambda: os.write(fd, b"gh"))
    thread.start()
    thread.join()
    os.ftruncate(fd, 7)
    os.fdatasync(fd)
    os.close(fd)
    fd = os.open(root / "d" / "a", os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"end")
    os.close(fd)
    directory = os.open(root / "d", os.O_RDONLY)
    os.rename("a", "b", src_dir_fd=directory, dst_dir_fd=directory)
    os.link(root / "d" / "b", root / "c")
    os.unlink("b", dir_fd=directory)
    os.fsync(directory)
    os.close(directory)
    (root / "d").rmdir()
    if not (pid := os.fork()):
        (root / "child").write_bytes(b"of a child")
        os._exit(0)
    os.waitpid(pid, 0)
    (root / "there").open("wb").close()
    mark("done", number=1)


def maps(root: Path) -> None:
    """Write through a memory map, which no recorder of calls can see."""
    import mmap

    with (root / "mapped").open("w+b") as file:
        file.write(b"0" * 4096)
        file.flush()
        mmap.mmap(file.fileno(), 4096)
