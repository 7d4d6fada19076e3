"""What a broker offers: by the levels at the LAO it was told."""

from __future__ import annotations

from broker_log import LogMaker

from broker.metadata.view import View
from broker.service.api_versions import FETCH_KEY, ApiVersions
from raftlog.wire.records.v1 import records_pb2 as rec

ME = 7


class Broker:
    def __init__(self, highest: int = 2) -> None:
        self.view, self.log = View(ME, max_bytes=1 << 30), LogMaker()
        self.view.reset(0)
        self.versions = ApiVersions(
            self.view, (("metadata.version", 1, highest), ("lao.version", 0, 1))
        )
        self.log.leader()
        for name in ("lao.version", "broker.heartbeat.version"):
            self.log.append(rec.FeatureLevelRecord(name=name, feature_level=1))
        self.level(1)
        self.log.unfence(ME, self.log.register(ME))
        self.apply()

    def level(self, level: int) -> int:
        self.log.append(rec.FeatureLevelRecord(name="metadata.version", feature_level=level))
        return self.log.last

    def apply(self) -> None:
        self.view.apply(self.log.since(self.view.applied + 1), high_watermark=self.log.end)

    def tell(self, lao: int) -> bool:
        self.view.hear(1, lao, self.log.end)
        return self.versions.moved()

    def offered(self) -> tuple[int, int]:
        """The highest version of Fetch, and the finalized level."""
        response = self.versions.response()
        highest = next(api.max_version for api in response.api_keys if api.api_key == FETCH_KEY)
        return highest, next(
            (one.level for one in response.finalized_features if one.name == "metadata.version"), 0
        )


def test_a_level_is_offered_when_lao_has_passed_its_record_and_not_when_it_is_applied() -> None:
    broker = Broker()
    assert not broker.tell(broker.log.last), "nobody was told anything else"
    assert broker.offered() == (0, 1)
    at = broker.level(2)
    broker.apply()
    assert not broker.versions.moved()
    assert broker.offered() == (0, 1)
    assert not broker.tell(at - 1)
    assert broker.tell(at)
    assert broker.offered() == (1, 2)
    assert not broker.versions.moved(), "once"


def test_what_changes_no_level_tells_nobody_anything() -> None:
    broker = Broker()
    broker.tell(broker.log.last)
    broker.log.config("a")
    broker.apply()
    assert not broker.tell(broker.log.last)
    broker.level(1)
    broker.apply()
    assert not broker.tell(broker.log.last)


def test_before_lao_is_known_what_needs_no_level_is_offered_and_who_heard_that_is_told() -> None:
    broker = Broker()
    response = broker.versions.response()
    assert (response.finalized_features_epoch, broker.offered()) == (-1, (0, 0))
    assert broker.tell(broker.log.last)
    assert broker.versions.response().finalized_features_epoch == broker.log.last


def test_no_more_is_offered_than_the_build_can_do() -> None:
    broker = Broker(highest=1)
    at = broker.level(2)
    broker.apply()
    broker.tell(at)
    assert broker.offered() == (0, 2)


def test_a_level_that_is_lowered_is_told_too() -> None:
    broker = Broker()
    at = broker.level(2)
    broker.apply()
    broker.tell(at)
    at = broker.level(1)
    broker.apply()
    assert broker.tell(at)
    assert broker.offered() == (0, 1)
