"""A disk that can lose power: an ext4 file system in a file, which forgets unsynced writes. After
``EXT4_IOC_SHUTDOWN`` without a journal flush every operation fails with EIO, and the next mount
finds what reached the device. Not covered: a device that loses confirmed writes, and torn sectors.
"""

import fcntl
import os
import subprocess
import time
from pathlib import Path

_EXT4_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = (2).to_bytes(4, "little")
SIZE_BYTES = 400 << 20
UNMOUNT_WITHIN_S = 10.0


class PowerDisk:
    """The file ``image``, mounted at ``mount_point``. Needs root and a loop device."""

    def __init__(self, image: Path, mount_point: Path) -> None:
        self._image, self.mount_point = image, mount_point
        self._mounted = False

    def create(self) -> None:
        with self._image.open("wb") as file:
            file.truncate(SIZE_BYTES)
        run("mkfs.ext4", "-q", "-F", str(self._image))
        self.mount_point.mkdir(parents=True, exist_ok=True)
        self.mount()

    def mount(self) -> None:
        run("mount", "-o", "loop", str(self._image), str(self.mount_point))
        self._mounted = True

    def cut_power(self) -> None:
        directory = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(directory, _EXT4_IOC_SHUTDOWN, _NO_LOG_FLUSH)
        finally:
            os.close(directory)

    def unmount(self) -> None:
        """Unmount once no process uses it: a node's children may outlive it. Raises OSError."""
        deadline = time.monotonic() + UNMOUNT_WITHIN_S
        while self._mounted:
            try:
                run("umount", str(self.mount_point))
                self._mounted = False
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def restore_power(self) -> None:
        self.unmount()
        self.mount()


def run(*words: str) -> None:
    """Run a program. Raises OSError with its output."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
