"""Rows of KIP-426 (ID)."""

from __future__ import annotations

from row_data import NoEdit, RowEdit, breaks

_IDS = "controller.decisions.brokers.broker_ids"
_HOSTS = "controller.decisions.brokers.hostnames"
_TEST, _HOSTNAMES, _CAUSES, _IDENTITY = (
    "controller/test_broker_ids.py",
    "controller/test_hostnames.py",
    "controller/test_mapping_causes.py",
    "broker/test_broker_identity.py",
)

# fmt: off
ROWS: tuple[RowEdit | NoEdit, ...] = (
    breaks("ID-1", "A new id although one may be gone", f"{_IDS}:_missing",
           "_check_all_heard(asking, reserved)", "pass", _TEST),
    breaks("ID-1", "Forcing forces nothing", f"{_IDS}:_missing", "if asking.forced:", "if False:", _TEST),
    breaks("ID-2", "The configured id does not count", "broker.registration.identity:known_id",
           "return stored if configured == NO_NODE_ID else configured", "return stored", _IDENTITY),
    breaks("ID-3", "The id of the directory does not count", "broker.registration.identity:known_id",
           "return stored if configured == NO_NODE_ID else configured", "return configured", _IDENTITY),
    breaks("ID-4", "They may differ", "broker.registration.identity:known_id",
           "and configured != stored:", "and False:", _IDENTITY),
    breaks("ID-5", "It asks for ever", "broker.registration.lifecycle:Lifecycle._check_limits",
           "elif self.epoch < 0 and now >= self._register_until:", "elif False:", "broker/test_broker_lifecycle.py"),
    breaks("ID-6", "The host does not count", f"{_IDS}:choose_broker_id",
           "or _of_host(asking, notes) or", "or", _TEST),
    breaks("ID-7", "Its own past is taken for alive", f"{_IDS}:_unless_taken",
           "if life is _Life.UNDECIDED:", "if False:", _TEST),
    breaks("ID-8", "Missing at once", f"{_IDS}:_missing", "if free and not free[0].missing:", "if False:", _TEST),
    breaks("ID-8", "Ids without replicas are missing, too", "controller.state.liveness:AbsentIds.absent",
           "if count and _is_absent", "if _is_absent", _TEST),
    breaks("ID-9", "It guesses among several", f"{_IDS}:_missing", "if len(free) > 1:", "if False:", _TEST),
    breaks("ID-10", "A mapped id is generated", f"{_IDS}:_generated",
           ", *(mapping.broker_id for mapping in image.hostnames.values())", "", _TEST),
    breaks("ID-10", "An id that holds replicas is generated", f"{_IDS}:_generated",
           "if len(held)}", "if not len(held)}", _TEST),
    breaks("ID-10", "A registered id is generated", f"{_IDS}:_generated",
           "used = {*image.brokers, *", "used = {*", _TEST),
    breaks("ID-10", "Generated among the reserved ids", f"{_IDS}:_generated",
           "max(above, default=floor) + 1", "max(above, default=0) + 1", _TEST),
    breaks("ID-11", "The directory is not known again", f"{_IDS}:_own",
           "same = asking.directory_id and", "same = False and", _TEST),
    breaks("ID-12", "The id of a mapping is not listed", f"{_HOSTS}:list_hostnames",
           "broker_id=mapping.broker_id,", "", _HOSTNAMES),
    breaks("ID-13", "A form that is not known is taken", f"{_HOSTS}:_alteration",
           "if one.version != MAPPING_VERSION:", "if False:", _HOSTNAMES),
    breaks("ID-14", "A registration does not map its host", "controller.decisions.brokers.registration:register_broker",
           "records.extend(mapping_of(state.log.pending, request.listeners[0].host, request.broker_id))", "pass", _HOSTNAMES),
    breaks("ID-15", "No compare before the set", f"{_HOSTS}:_check_expected",
           "if offset != one.expected_offset:", "if False:", _HOSTNAMES),
    breaks("ID-16", "Unregistered ids are not missing", "controller.state.liveness:_is_absent",
           "(broker is None or broker.fenced)", "(broker is not None and broker.fenced)", _TEST),
    breaks("ID-17", "A sign of life does not end an absence", "controller.state.liveness:AbsentIds.present",
           "self._since.pop(broker_id, None)", "pass", _TEST),
    breaks("ID-17", "Time that the controller slept counts", "controller.state.liveness:AbsentIds.extend_all",
           "self._since[broker_id] += gap_s", "pass", _TEST),
    breaks("ID-18", "A mapping for the next start is collected", f"{_HOSTS}:is_stale",
           "> mapping.offset", "> -1", _HOSTNAMES),
    breaks("ID-18", "What an amendment left stays", f"{_HOSTS}:is_stale",
           "own is not None and amended", "False", _HOSTNAMES),
    breaks("ID-18", "A run has no bound", f"{_HOSTS}:HostnameCollector.due", "[:COLLECT_MAX]", "", _HOSTNAMES),
    breaks("ID-19", "A neighbour's id is given", f"{_IDS}:_of_host",
           "elif broker.listeners[0].port == asking.port:", "elif True:", _TEST),
    breaks("ID-20", "A registration begins no session", "controller.state.state:_registered",
           "state.sessions.touch(broker_id, broker_epoch, now)", "pass", _TEST),
    breaks("ID-21", "What a mapping's record says of its cause is not read", "raftlog.metadata.hostnames:fold_hostname",
           "cause = HostnameCause(message.cause)", "cause = HostnameCause.UNSPECIFIED", _CAUSES),
    breaks("ID-22", "The key is not the host that is advertised", f"{_HOSTS}:mapping_of",
           "name = hostname_key(host)", 'name = f"broker-{broker_id}"', _HOSTNAMES),
)
# fmt: on
