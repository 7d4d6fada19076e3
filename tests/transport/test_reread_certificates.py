"""Renewal of certificates while a node runs."""

import os
from pathlib import Path

import pytest
import trustme
from structlog.testing import capture_logs
from tls_files import issue
from transport_worlds import Recorder, World, connect, echo, request, run_real, until

from raftlog.errors import ConfigError
from raftlog.transport import certificates
from raftlog.transport.api import Conversation
from raftlog.transport.certificates import LOOK_AGAIN_S, Reread
from raftlog.transport.tls import TlsConfig


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Files:
    """Two files that match if their texts are equal."""

    def __init__(self, directory: Path) -> None:
        self.paths = [directory / "a", directory / "b"]
        self.clock, self.reads = Clock(), 0
        for path in self.paths:
            path.write_text("1")

    def make(self) -> str:
        self.reads += 1
        one, other = (path.read_text() for path in self.paths)
        if one != other:
            raise ConfigError(f"{one} and {other} do not go together")
        return one

    def write(self, path: Path, text: str) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        os.replace(fresh, path)

    def later(self) -> None:
        self.clock.now_s += LOOK_AGAIN_S


def test_tls_context_is_rebuilt_only_after_a_file_change(tmp_path: Path) -> None:
    files = Files(tmp_path)
    made = Reread(files.paths, files.make, clock=files.clock)
    files.later()
    assert (made.current(), files.reads, made.version) == ("1", 1, 0)
    for path in files.paths:
        files.write(path, "2")
    assert made.current() == "1", "the files are looked at once in a while"
    files.later()
    assert (made.current(), files.reads, made.version) == ("2", 2, 1)
    files.later()
    assert (made.current(), files.reads) == ("2", 2)


def test_mismatched_files_are_not_used_and_logged_once(tmp_path: Path) -> None:
    files = Files(tmp_path)
    made = Reread(files.paths, files.make, clock=files.clock)
    files.write(files.paths[0], "2")
    with capture_logs() as logs:
        for _ in range(3):
            files.later()
            assert (made.current(), made.version) == ("1", 0)
    assert [one["error"] for one in logs] == ["2 and 1 do not go together"]
    files.write(files.paths[1], "2")
    files.later()
    assert (made.current(), made.version) == ("2", 1)


def test_temporarily_unreadable_files_are_used_when_readable(tmp_path: Path) -> None:
    files, failing = Files(tmp_path), [KeyError("P-256"), OSError("no descriptor"), None]

    def make() -> str:
        if made is not None and (error := failing[0]) is not None:
            raise error
        return files.make()

    made: Reread[str] | None = None
    made = Reread(files.paths, make, clock=files.clock)
    for path in files.paths:
        files.write(path, "2")
    with capture_logs() as logs:
        while failing[0] is not None:
            for _ in range(3):
                files.later()
                assert made.current() == "1"
            failing.pop(0)
        files.later()
        assert (made.current(), made.version) == ("2", 1)
    assert [one.get("error") for one in logs] == [
        "KeyError: 'P-256'",
        "OSError: no descriptor",
        None,
    ]


def test_missing_file_keeps_the_previous_content(tmp_path: Path) -> None:
    files = Files(tmp_path)
    made = Reread(files.paths, lambda: _read(files), clock=files.clock)
    files.paths[1].unlink()
    files.later()
    assert made.current() == "1"
    files.write(files.paths[1], "1")
    files.later()
    assert made.current() == "1"


def _read(files: Files) -> str:
    try:
        return files.make()
    except OSError as error:
        raise ConfigError(str(error)) from error


def test_invalid_files_at_startup_are_an_error(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.write(files.paths[0], "2")
    with pytest.raises(ConfigError, match="do not go together"):
        Reread(files.paths, files.make)


def test_renewed_certificate_and_new_authority_apply_to_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "LOOK_AGAIN_S", 0.0)
    old, new = trustme.CA(), trustme.CA()
    before, both, after = (
        old.cert_pem.bytes(), old.cert_pem.bytes() + new.cert_pem.bytes(), new.cert_pem.bytes(),
    )  # fmt: skip

    async def scenario(world: World) -> None:
        server, first = Recorder(echo), Recorder()
        listener, _ = await connect(world, server, first)
        names = [server.links[0].identity.names]
        # The usual way: trust both, then show the new one, then trust that alone.
        for authority, name, trusted in (
            (old, "second", both), (new, "third", both), (new, "fourth", after),
        ):  # fmt: skip
            issue(tmp_path, authority, name, stem="node", trusted=trusted)
            recorder = Recorder()
            dialer = world.client.dial(listener.address, Conversation.CONTROLLER, recorder)
            # Both: the client's is open before the server has accepted its own.
            await until(lambda: recorder.links and len(server.links) == len(names) + 1)  # noqa: B023
            names.append(server.links[-1].identity.names)
            dialer.close()
        assert [sorted(one) for one in names] == [
            ["CN=first"], ["CN=second"], ["CN=third"], ["CN=fourth"],
        ]  # fmt: skip
        # Who was connected before is so still.
        first.links[0].send(request(7))
        await until(lambda: 7 in first.ids)
        assert first.reasons == []

    run_real(scenario, tls=issue(tmp_path, old, "first", stem="node", trusted=before))


@pytest.mark.parametrize(
    ("event", "said"),
    [("replaced", "replaced while they were read"), ("removed", r"tls\.key\.file")],
)
def test_files_that_change_while_they_are_checked_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str, said: str
) -> None:
    authority = trustme.CA()
    tls = issue(tmp_path, authority)
    check = TlsConfig._unusable

    def changed(tls: TlsConfig, key: bytes) -> list[str]:
        if event == "replaced":
            issue(tmp_path, authority)
        else:
            tls.private_key_path.unlink()
        return check(tls, key)

    monkeypatch.setattr(TlsConfig, "_unusable", changed)
    with pytest.raises(ConfigError, match=said):
        tls.channel_credentials()
