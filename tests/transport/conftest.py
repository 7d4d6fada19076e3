from collections.abc import Iterator

import pytest
import trustme
from tls_files import issue
from transport_worlds import Medium

from raftlog.transport.tls import TlsConfig


@pytest.fixture(scope="session")
def node_tls(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    return issue(tmp_path_factory.mktemp("medium"), trustme.CA(), "node")


@pytest.fixture(params=["plain", "tls"])
def medium(request: pytest.FixtureRequest, node_tls: TlsConfig) -> Iterator[None]:
    Medium.tls = node_tls if request.param == "tls" else None
    yield
    Medium.tls = None
