"""The number of files that one request passes on the leader, which may only fall."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.road import Road, roads

MOST_FILES = {"create_topics": 51, "config write": 36, "fetch report": 22}


@pytest.fixture(scope="module")
def found() -> dict[str, Road]:
    return roads()


@pytest.mark.parametrize("request_name", MOST_FILES)
def test_request_passes_at_most_the_stated_files(found: dict[str, Road], request_name: str) -> None:
    files = found[request_name].files
    assert len(files) <= MOST_FILES[request_name], files


def test_measured_calls_are_those_on_the_leader(found: dict[str, Road]) -> None:
    for road in found.values():
        figures = road.figures()
        assert figures["files"] <= figures["functions"] <= figures["calls"]
        assert not [file for file in road.files if file.startswith("broker/")]
    assert any(key.endswith(":create_topics") for key in found["create_topics"].calls)
    assert any(key.endswith(":LaoTracker.report") for key in found["fetch report"].calls)
