"""The metadata as plain dicts, to compare with the fold; and random histories of valid records."""

import base64
from typing import Any, cast

from hypothesis import strategies as st

from raftlog.metadata.entities import WINDOW
from raftlog.metadata.records import Record, record
from raftlog.wire.records.v1 import records_pb2 as pb


class NaiveState:
    """Makes the records of a random history, and tracks what each of them does."""

    def __init__(self) -> None:
        self.features: dict[str, int] = {}
        self.brokers: dict[int, dict[str, Any]] = {}
        self.topics: dict[bytes, dict[str, Any]] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.hostnames: dict[str, dict[str, Any]] = {}
        self.export_cursors: dict[str, dict[str, Any]] = {}
        self.acls: dict[bytes, dict[str, Any]] = {}
        self.kv: dict[str, dict[str, Any]] = {}
        self.leases: dict[int, dict[str, Any]] = {}
        self.imported: dict[tuple[str, str], int] = {}
        self.clients: dict[int, dict[str, Any]] = {}
        self.leader: dict[str, Any] | None = None
        self.topics_made = 0

    def make(self, choice: int, n: int, offset: int, epoch: int) -> Record:
        """Return the record of one choice, or a no-op where the choice does not fit the state."""
        makers = (
            self._register,
            self._change,
            self._unregister,
            self._topic,
            self._partition,
            self._partition_change,
            self._remove_topic,
            self._config,
            self._feature,
            self._leader,
            self._progress,
            self._partition,
            self._partition_change,
            self._config,
            self._hostname,
            self._export_cursor,
            self._acl,
            self._imported,
            self._key_value,
            self._key_value,
            self._lease,
            self._open_client,
            self._close_client,
        )
        message = makers[choice % len(makers)](n, offset, epoch)
        return record(pb.NoOpRecord() if message is None else message)

    def identity(self, n: int, last_offset: int, epoch: int) -> dict[str, Any]:
        """Return the client's part of the header of the batch that ends here; empty: no client."""
        opened = sorted(filter(None, self.clients))  # 0 in a header is no client.
        if n % 4 == 0 or not opened:
            return {}
        if n % 7 == 0:
            return {"client_id": last_offset + 5, "sequence": 1}  # nobody of that id
        client = self.clients[opened[n % len(opened)]]
        before = client["all_below_done"]
        done = (0, before, before + n % (2 * WINDOW))[n % 3]
        begin = max(done, before)
        sequence, results = begin + n // 3 % WINDOW, client["results"]
        if sequence in results:
            return {}
        kept = {number: result for number, result in results.items() if number >= begin}
        client["results"] = kept | {sequence: (last_offset, epoch)}
        client["all_below_done"], client["last_write_ms"] = begin, 5 * epoch
        return {"client_id": client["id"], "sequence": sequence, "all_below_done": done}

    def to_dict(self) -> dict[str, Any]:
        """Return the state in the shape of ``image_to_dict``, without the keys that name the
        offset.
        """
        by_key: dict[str, dict[Any, Any]] = {
            "brokers": self.brokers,
            "hostnames": self.hostnames,
            "export_cursors": self.export_cursors,
            "acls": self.acls,
            "kv": self.kv,
            "leases": self.leases,
        }
        return {
            "leader": self.leader,
            "features": dict(sorted(self.features.items())),
            "topics": sorted(self.topics.values(), key=lambda topic: topic["name"]),
            "configs": [
                {"resource_type": kind, "resource_name": name, "values": dict(sorted(of.items()))}
                for (kind, name), of in sorted(self.configs.items())
            ],
            "voters": None,
            "clients": [self._described(client) for _, client in sorted(self.clients.items())],
            "imported": [
                {"kind": kind, "key": key, "value": value}
                for (kind, key), value in sorted(self.imported.items())
            ],
            **{plural: [of[key] for key in sorted(of)] for plural, of in by_key.items()},
        }

    def _described(self, client: dict[str, Any]) -> dict[str, Any]:
        results = [
            {"sequence": number, "offset": offset, "epoch": epoch}
            for number, (offset, epoch) in sorted(client["results"].items())
        ]
        return {**client, "results": results}

    def _register(self, n: int, offset: int, epoch: int) -> Any:
        same: dict[str, Any] = {
            "incarnation_id": f"i{n}",
            "features": [{"name": "f", "min_supported_version": 0, "max_supported_version": n % 5}],
            "rack": f"r{n % 2}",
            "fenced": True,
            "log_dirs": ["d1", "d2"],
            "registration_version": 1,
            "process": {"boot_id": "b", "directory_id": "d", "lock_device": 1, "lock_inode": n},
        }
        end_points: Any = [{"name": "PLAINTEXT", "host": "h", "port": n}]
        self.brokers[n % 4] = {
            "id": n % 4,
            "epoch": offset,
            "listeners": end_points,
            "in_controlled_shutdown": False,
            "reason": "registered",
            "cause": pb.REGISTERED,
            **same,
        }
        return pb.RegisterBrokerRecord(
            broker_id=n % 4, broker_epoch=offset, end_points=end_points, **same
        )

    def _change(self, n: int, offset: int, epoch: int) -> Any:
        broker = self.brokers.get(n % 4)
        if broker is None:
            return None
        message = pb.BrokerRegistrationChangeRecord(
            broker_id=n % 4, broker_epoch=broker["epoch"], reason=f"why{n % 3}"
        )
        broker["cause"] = n % 11
        message.cause = cast("Any", broker["cause"])
        if n & 4:
            message.fenced = broker["fenced"] = bool(n & 8)
        if n & 16:
            message.in_controlled_shutdown = broker["in_controlled_shutdown"] = bool(n & 32)
        broker["reason"] = f"why{n % 3}"
        return message

    def _unregister(self, n: int, offset: int, epoch: int) -> Any:
        broker = self.brokers.pop(n % 4, None)
        return broker and pb.UnregisterBrokerRecord(broker_id=n % 4, broker_epoch=broker["epoch"])

    def _topic(self, n: int, offset: int, epoch: int) -> Any:
        name = f"t{n % 5}"
        if any(topic["name"] == name for topic in self.topics.values()):
            return None
        self.topics_made += 1
        id_ = self.topics_made.to_bytes(16, "big")
        self.topics[id_] = {"id": id_.hex(), "name": name, "partitions": []}
        return pb.TopicRecord(name=name, topic_id=id_)

    def _pick(self, n: int) -> tuple[bytes, dict[str, Any]] | None:
        ids = sorted(self.topics)
        return (ids[n % len(ids)], self.topics[ids[n % len(ids)]]) if ids else None

    def _partition(self, n: int, offset: int, epoch: int) -> Any:
        picked = self._pick(n)
        if picked is None:
            return None
        id_, topic = picked
        replicas = [(n + index) % 4 for index in range(1 + n % 3)]
        partition: dict[str, Any] = {
            "index": len(topic["partitions"]),
            "replicas": replicas,
            "isr": replicas[:1],
            "removing_replicas": [],
            "adding_replicas": [],
            "leader": replicas[0],
            "leader_recovery_state": 0,
            "leader_epoch": 0,
            "partition_epoch": 0,
            "elr": replicas[1:] if n & 8 else [],
            "last_known_elr": replicas[:1] if n & 16 else [],
        }
        topic["partitions"].append(partition)
        named = {"index": "partition_id", "elr": "eligible_leader_replicas"}
        fields = {named.get(name, name): value for name, value in partition.items()}
        return pb.PartitionRecord(topic_id=id_, **fields)

    def _partition_change(self, n: int, offset: int, epoch: int) -> Any:
        picked = self._pick(n)
        if picked is None or not picked[1]["partitions"]:
            return None
        id_, topic = picked
        partition = topic["partitions"][(n >> 2) % len(topic["partitions"])]
        message = pb.PartitionChangeRecord(partition_id=partition["index"], topic_id=id_)
        shrinks = False
        if n & 1:
            message.leader = partition["leader"] = n % 5 - 1
        for bit, name in (
            (2, "isr"),
            (4, "replicas"),
            (8, "removing_replicas"),
            (16, "adding_replicas"),
        ):
            if n & bit:
                ids = sorted({(n >> 3) % 4, (n >> 5) % 4})
                shrinks |= name == "replicas" and any(
                    broker_id not in ids for broker_id in partition["replicas"]
                )
                getattr(message, name).ids.extend(ids)
                partition[name] = ids
        if n & 32:
            message.leader_recovery_state = partition["leader_recovery_state"] = n & 1
        partition["leader_epoch"] += bool(n & 1) or shrinks
        if n & 64 and n & 1:
            partition["leader_epoch"] += n % 1000
            message.leader_epoch = partition["leader_epoch"]
        if n % 5 == 0:
            partition["elr"] = [9] * (n & 1)
            message.eligible_leader_replicas.ids[:] = partition["elr"]
            message.eligible_leader_replicas.SetInParent()
        if n % 7 == 0:
            partition["last_known_elr"] = [8] * (n & 1)
            message.last_known_elr.ids[:] = partition["last_known_elr"]
            message.last_known_elr.SetInParent()
        partition["partition_epoch"] += 1
        return message

    def _remove_topic(self, n: int, offset: int, epoch: int) -> Any:
        picked = self._pick(n)
        if picked is None:
            return None
        del self.topics[picked[0]]
        return pb.RemoveTopicRecord(topic_id=picked[0])

    def _config(self, n: int, offset: int, epoch: int) -> Any:
        key = ((2, 4)[n % 2], f"r{n % 3}")
        message = pb.ConfigRecord(resource_type=key[0], resource_name=key[1], name=f"k{n % 4}")
        values = self.configs.setdefault(key, {})
        if n & 8:
            values.pop(message.name, None)
        else:
            message.value = values[message.name] = f"v{n % 7}" if n & 16 else ""
        if not values:
            del self.configs[key]
        return message

    def _feature(self, n: int, offset: int, epoch: int) -> Any:
        name, level = f"f{n % 3}", n % 4
        self.features[name] = level
        if not level:
            del self.features[name]
        return pb.FeatureLevelRecord(name=name, feature_level=level)

    def _hostname(self, n: int, offset: int, epoch: int) -> Any:
        name = f"h{n % 3}"
        if n & 8:
            return self.hostnames.pop(name, None) and pb.HostnameRecord(
                hostname=name, reason="gone"
            )
        fields: dict[str, Any] = {
            "broker_id": n % 4,
            "version": n % 2,
            "reason": f"why{n % 2}",
            "cause": pb.HostnameCause.values()[n % 4],
        }
        self.hostnames[name] = {"name": name, "offset": offset, **fields}
        return pb.HostnameRecord(hostname=name, **fields)

    def _export_cursor(self, n: int, offset: int, epoch: int) -> Any:
        name = f"c{n % 3}"
        if n & 8:
            return self.export_cursors.pop(name, None) and pb.ExportCursorRecord(name=name)
        fields: dict[str, Any] = {"end_offset": n % 7, "target": f"where{n % 2}"}
        self.export_cursors[name] = {
            "name": name,
            "offset": offset,
            "timestamp_ms": 5 * epoch,
            **fields,
        }
        return pb.ExportCursorRecord(name=name, **fields)

    def _key_value(self, n: int, offset: int, epoch: int) -> Any:
        key = ("a", "b", "k/2", "k/3")[n % 4]
        old = self.kv.get(key)
        if n & 32:
            return self.kv.pop(key, None) and pb.KeyValueRecord(key=key)
        lease_id, value = (n >> 2) % 3, bytes([n % 256]) * (n % 5)
        self.kv[key] = {
            "key": key,
            "value": value.decode() if value.isascii() else None,
            "value_base64": None if value.isascii() else base64.b64encode(value).decode(),
            "offset": offset,
            "create_offset": offset if old is None else old["create_offset"],
            "lease_id": lease_id or None,
        }
        return pb.KeyValueRecord(key=key, value=value, lease_id=lease_id)

    def _lease(self, n: int, offset: int, epoch: int) -> Any:
        if n & 8 and self.leases:
            lease_id = sorted(self.leases)[n % len(self.leases)]
            del self.leases[lease_id]
            return pb.RemoveLeaseRecord(lease_id=lease_id, reason="expired")
        fields: dict[str, Any] = {"name": f"l{n % 3}", "ttl_ms": n, "principal": ""}
        self.leases[offset] = {"id": offset, **fields}
        return pb.LeaseRecord(**fields)

    def _open_client(self, n: int, offset: int, epoch: int) -> Any:
        fields: dict[str, Any] = {"name": f"c{n % 3}", "principal": f"User:{n % 2}"}
        known = {"last_write_ms": 5 * epoch, "all_below_done": 1, "results": {}}
        self.clients[offset] = {"id": offset, **fields, **known}
        return pb.OpenClientRecord(**fields)

    def _close_client(self, n: int, offset: int, epoch: int) -> Any:
        if not self.clients:
            return None
        client_id = sorted(self.clients)[n % len(self.clients)]
        del self.clients[client_id]
        return pb.CloseClientRecord(client_id=client_id)

    def _acl(self, n: int, offset: int, epoch: int) -> Any:
        id_ = bytes([n % 5]) * 16
        if id_ in self.acls:
            del self.acls[id_]
            return pb.RemoveAccessControlEntryRecord(id=id_)
        fields: dict[str, Any] = {
            "resource_type": 2 + n % 2,
            "resource_name": ("*", "a", "ab", "abc")[n % 4],
            "pattern_type": 3 + (n >> 2) % 2,
            "principal": f"User:{n % 3}",
            "host": ("*", "10.0.0.1")[(n >> 3) % 2],
            "operation": 2 + n % 7,
            "permission_type": 2 + (n >> 4) % 2,
        }
        self.acls[id_] = {"id": id_.hex(), **fields}
        return pb.AccessControlEntryRecord(id=id_, **fields)

    def _imported(self, n: int, offset: int, epoch: int) -> Any:
        kind, key = ("controller", "client_quota")[n % 2], f"k{n % 3}"
        if n % 5 == 0:
            self.imported.pop((kind, key), None)
            return pb.ImportedRecord(name="R", kind=kind, key=key)
        self.imported[kind, key] = n
        return pb.ImportedRecord(name="R", kind=kind, key=key, value=str(n))

    def _leader(self, n: int, offset: int, epoch: int) -> Any:
        self.leader = {"epoch": epoch, "leader_id": n % 3, "voters": [0, 1, 2]}
        return pb.LeaderChangeRecord(leader_id=n % 3, voters=[0, 1, 2])

    def _progress(self, n: int, offset: int, epoch: int) -> Any:
        applied = [
            pb.AppliedOffset(broker_id=b, broker_epoch=n % 9, applied_offset=offset - 1)
            for b in sorted({n % 4, (n >> 2) % 4})
        ]
        return pb.ProgressRecord(
            lowest_acknowledged_offset=offset - 2, high_watermark=offset, applied=applied
        )


HISTORIES = st.lists(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2**10 - 1)), min_size=1, max_size=5),
    max_size=16,
)
"""Batches of (choice, number) for ``NaiveState.make``."""
