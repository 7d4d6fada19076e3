"""What ``raftlog --version`` prints."""

from __future__ import annotations


def version_text(*, as_json: bool) -> str:
    """The build, and what it runs on."""
    from raftlog.process import build_text, commit_text

    if not as_json:
        return f"raftlog {build_text()}"
    import json
    import platform

    from raftlog.config_writes import codec

    return json.dumps(
        {
            "version": build_text().split()[0],
            "commit": commit_text(),
            "python": platform.python_version(),
            "codec": codec.NAME,
        }
    )


def version_asked(arguments: list[str]) -> str | None:
    """The text, if these arguments ask for it and nothing else."""
    if arguments == ["--version"]:
        return version_text(as_json=False)
    if sorted(arguments) == ["--json", "--version"]:
        return version_text(as_json=True)
    return None
