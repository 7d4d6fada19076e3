"""Replacing certificates and authority of a running cluster."""

import asyncio
import os
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
import trustme
from cluster_kit import PATIENCE_S, raftlog, succeed

from raftlog.client.controller_client import ControllerClient
from raftlog.local.cluster import LocalCluster
from raftlog.transport.certificates import LOOK_AGAIN_S
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.transport.tls import TlsConfig
from raftlog.wire.controller.v1 import controller_pb2 as pb

CLIENT_METRICS = 16
WRITE_EVERY_S = 0.05
WRITES_OF_A_CONNECTION = 10


def files_of(directory: Path) -> TlsConfig:
    return TlsConfig(directory / "certificate.pem", directory / "key.pem", directory / "ca.pem")


def put(directory: Path, authority: trustme.CA, trusted: Iterable[trustme.CA]) -> TlsConfig:
    """Replace each file atomically."""
    tls = files_of(directory)
    certificate = authority.issue_cert("127.0.0.1", common_name=directory.name)
    for path, content in (
        (tls.certificate_path, b"".join(one.bytes() for one in certificate.cert_chain_pems)),
        (tls.private_key_path, certificate.private_key_pem.bytes()),
        (tls.ca_path, b"".join(one.cert_pem.bytes() for one in trusted)),
    ):
        fresh = path.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_bytes(content)
        os.replace(fresh, path)
    return tls


def environment(tls: TlsConfig) -> dict[str, str]:
    return {
        "RAFTLOG_TLS_CERTIFICATE_FILE": str(tls.certificate_path),
        "RAFTLOG_TLS_KEY_FILE": str(tls.private_key_path),
        "RAFTLOG_TLS_CA_FILE": str(tls.ca_path),
    }


async def write_until(done: asyncio.Event, cluster: LocalCluster, tls: TlsConfig) -> int:
    """Write on new connections until the time; return the number of writes; none may fail."""
    count = 0
    while not done.is_set():
        transport = GrpcTransport(tls=tls)
        addresses = [one.endpoint for one in cluster.controllers]
        client = ControllerClient(transport, addresses, rng=random.Random(count))
        try:
            for _ in range(WRITES_OF_A_CONNECTION):
                request = pb.IncrementalAlterConfigsRequest()
                resource = request.resources.add(
                    resource_type=CLIENT_METRICS, resource_name="renewed"
                )
                resource.configs.add(name="interval.ms", value=str(1000 + count))
                # Raises ApiError for whatever went wrong, a refused item included.
                await client.call(request, timeout_s=PATIENCE_S)
                count += 1
                await asyncio.sleep(WRITE_EVERY_S)
        finally:
            client.close()
            await transport.close()
    return count


@pytest.mark.nightly
def test_another_authority_takes_over_while_the_cluster_runs(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    cluster = LocalCluster(tmp_path / "c", controllers=3, brokers=1)
    cluster.generate()
    names = [node.name for node in cluster.nodes]
    everybody = [tmp_path / name for name in (*names, "client")]
    for directory in everybody:
        directory.mkdir()
        put(directory, old, (old,))
    for name in names:
        tls = files_of(tmp_path / name)
        with cluster.config_path(name).open("a") as config:
            config.write(
                f'"tls.certificate.file" = "{tls.certificate_path}"\n'
                f'"tls.key.file" = "{tls.private_key_path}"\n"tls.ca.file" = "{tls.ca_path}"\n'
            )
    client = files_of(tmp_path / "client")

    async def renew() -> int:
        done = asyncio.Event()
        writer = asyncio.create_task(write_until(done, cluster, client))
        for authority, trusted in ((old, (old, new)), (new, (old, new)), (new, (new,))):
            for directory in everybody:
                put(directory, authority, trusted)
                await asyncio.sleep(LOOK_AGAIN_S / 2)
            await asyncio.sleep(2 * LOOK_AGAIN_S)
        # Somebody who has to connect to all of them.
        broker = cluster.brokers[0].name
        await asyncio.to_thread(cluster.stop, [broker])
        cluster.start(broker)
        await asyncio.to_thread(cluster.wait_ready, names, PATIENCE_S)
        done.set()
        return await writer

    try:
        cluster.start_controllers()
        cluster.start_brokers()
        cluster.wait_ready(names, PATIENCE_S)
        assert asyncio.run(renew()) > 3 * WRITES_OF_A_CONNECTION
        at = ("--bootstrap-controller", cluster.bootstrap_controllers, "--timeout", 5)
        succeed("quorum describe", *at, environment=environment(client))
        late = tmp_path / "late"
        late.mkdir()
        refused = environment(put(late, old, (old, new)))
        assert raftlog("quorum describe", *at, environment=refused).code != 0
    finally:
        cluster.stop_all(timeout_s=5)
