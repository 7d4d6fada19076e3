"""ApplyPlan: changes to topics, configs, access control entries and keys, all or none, and only if
everything that they change is still as the plan expects.

Each part is decided like a request of its kind (``DECISIONS``), against the same pending image: no
two parts change the same entity, so no part needs to see another's records. A plan whose
expectations do not hold is refused with INVALID_UPDATE_VERSION; the field names what has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from controller.decision import (
    Reply,
    Write,
    check_item_count,
    check_record_count,
    refuse,
    write_or_reply,
)
from controller.decisions.acls import create_acls
from controller.decisions.clients.key_values import alter_key_values
from controller.decisions.configs import incremental_alter_configs
from controller.decisions.partitions.topics import create_partitions, create_topics, delete_topics
from controller.state.state import ControllerState
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.acls import Binding
from raftlog.metadata.config_keys import ResourceType
from raftlog.metadata.records import Record, record
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb


def apply_plan(
    state: ControllerState, request: rpc.ApplyPlanRequest, owner: str | None, now: float
) -> Write | Reply:
    """Make all changes, or raise an error and make none.

    Raises INCONSISTENT_GENERATION for a plan that was made for another log, INVALID_UPDATE_VERSION
    if something has changed since it was planned, POLICY_VIOLATION, and the errors of the parts.
    """
    if request.generation != state.generation:
        raise refuse(
            ErrorCode.INCONSISTENT_GENERATION,
            f"the plan was made for generation {request.generation} of the log, which was recovered"
            f" or restored since: it now has generation {state.generation}",
            "generation",
        )
    limit = state.settings.max_records_per_request
    for name in ("expected_topics", "delete_acls"):
        check_item_count(len(getattr(request, name)), limit, name)
    expected = _check_topics(state, request)
    _check_configs(request, expected)
    _check_keys(request)
    records = _removed_entries(state, request.delete_acls)
    for field, own_field, decide in _parts(state, request, owner, now):
        if getattr(request, field):
            records += _records(decide, field, own_field)
            check_record_count(len(records), limit)
    if not records:
        raise refuse(ErrorCode.INVALID_REQUEST, "the plan changes nothing")
    response = rpc.ApplyPlanResponse(record_count=len(records), offset=state.log.end_offset - 1)
    return write_or_reply([] if request.validate_only else records, response)


def _check_topics(state: ControllerState, request: rpc.ApplyPlanRequest) -> set[str]:
    """Check the topics, and return the names of the expected ones.

    Raises INVALID_UPDATE_VERSION unless the topics are as planned, and INVALID_REQUEST for a topic
    that is changed twice, or is not in ``expected_topics``.
    """
    view = state.log.pending
    expected: set[str] = set()
    for index, one in enumerate(request.expected_topics):
        topic = view.topics.get(view.topic_ids.get(one.name) or b"")
        if topic is None:
            why = "does not exist" if one.topic_id else ""
        elif not one.topic_id:
            why = "exists"
        elif topic.id != one.topic_id:
            why = "was re-created"
        else:
            found = topic.partition_count
            why = f"has {found} partitions" if found != one.num_partitions else ""
        if why:
            raise _moved(f"topic {one.name!r} {why}", f"expected_topics[{index}]")
        expected.add(one.name)
    changed: set[str] = set()
    for field, names in (
        ("create_topics", [one.name for one in request.create_topics]),
        ("delete_topics", request.delete_topics),
        ("create_partitions", [one.name for one in request.create_partitions]),
    ):
        for index, name in enumerate(names):
            if name in changed or name not in expected:
                why = "is changed twice" if name in changed else "is not in expected_topics"
                raise refuse(
                    ErrorCode.INVALID_REQUEST, f"topic {name[:249]!r} {why}", f"{field}[{index}]"
                )
            changed.add(name)
    return expected


def _check_keys(request: rpc.ApplyPlanRequest) -> None:
    """Raise INVALID_REQUEST if a change to a key has no expected offset."""
    for index, one in enumerate(request.keys):
        if not one.HasField("expected_offset"):
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"key {one.key} must have an expected_offset",
                f"keys[{index}].expected_offset",
            )


def _check_configs(request: rpc.ApplyPlanRequest, expected: set[str]) -> None:
    """Raise INVALID_REQUEST unless each config change states the expected value and its topic is in
    ``expected_topics``.

    The plan must not create or delete that topic. (A new topic with the same name may have the same
    configs.)
    """
    conflicts = dict.fromkeys((one.name for one in request.create_topics), "is created by the plan")
    conflicts |= dict.fromkeys(request.delete_topics, "is deleted by the plan")
    for index, one in enumerate(request.configs):
        if one.resource_type == ResourceType.TOPIC:
            why = conflicts.get(one.resource_name)
            if why is None and one.resource_name not in expected:
                why = "is not in expected_topics"
            if why is not None:
                raise refuse(
                    ErrorCode.INVALID_REQUEST,
                    f"topic {one.resource_name[:249]!r} {why}: its configs must not be changed",
                    f"configs[{index}]",
                )
        for position, config in enumerate(one.configs):
            if config.config_operation not in (rpc.COMPARE_AND_SET, rpc.COMPARE_AND_DELETE):
                raise refuse(
                    ErrorCode.INVALID_REQUEST,
                    "a plan must change configs by COMPARE_AND_SET or COMPARE_AND_DELETE",
                    f"configs[{index}].configs[{position}].config_operation",
                )


def _removed_entries(
    state: ControllerState, unwanted: Iterable[rpc.AccessControlEntry]
) -> list[Record]:
    """Return the records that remove the given entries.

    Raises INVALID_UPDATE_VERSION for an entry that does not exist.
    """
    wanted = [Binding.of(one) for one in unwanted]
    if not wanted:
        return []
    ids: dict[Binding, list[bytes]] = {}
    for entry in state.log.pending.snapshot().acls.values():
        ids.setdefault(entry.binding, []).append(entry.id)
    records: list[Record] = []
    for index, binding in enumerate(wanted):
        if binding not in ids:
            raise _moved("the entry does not exist", f"delete_acls[{index}]")
        records += [
            record(pb.RemoveAccessControlEntryRecord(id=id_)) for id_ in sorted(ids.pop(binding))
        ]
    return records


def _parts(
    state: ControllerState, request: rpc.ApplyPlanRequest, owner: str | None, now: float
) -> Sequence[tuple[str, str, Callable[[], Write | Reply]]]:
    """Return each kind of change: its field in a plan, its field in a request of its kind, and its
    decision.
    """
    plan, wire = request, rpc
    return (
        ("create_topics", "topics",
         lambda: create_topics(state, wire.CreateTopicsRequest(topics=plan.create_topics), now)),
        ("delete_topics", "names",
         lambda: delete_topics(state, wire.DeleteTopicsRequest(names=plan.delete_topics))),
        ("create_partitions", "topics",
         lambda: create_partitions(
             state, wire.CreatePartitionsRequest(topics=plan.create_partitions), now)),
        ("configs", "resources",
         lambda: incremental_alter_configs(
             state, wire.IncrementalAlterConfigsRequest(resources=plan.configs))),
        ("create_acls", "creations",
         lambda: create_acls(state, wire.CreateAclsRequest(creations=plan.create_acls))),
        ("keys", "alterations",
         lambda: alter_key_values(
             state, wire.AlterKeyValuesRequest(alterations=plan.keys), owner)),
    )  # fmt: skip


def _records(decide: Callable[[], Write | Reply], field: str, own_field: str) -> list[Record]:
    """Return the records for one kind of change.

    Raises the first error; its field is the one in the plan.
    """
    try:
        decision = decide()
        for index, error in _errors(decision.body):
            error.field = error.field or f"{own_field}[{index}]"
            raise error
    except ApiError as error:
        rest = error.field.removeprefix(own_field)
        raise refuse(error.code, error.message, f"{field}{rest}") from None
    return decision.records if isinstance(decision, Write) else []


def _errors(body: Any) -> Iterator[tuple[int, ApiError]]:
    """Yield the errors of a part's items; an entry that exists already is an error."""
    for name in ("topics", "results"):
        for index, one in enumerate(getattr(body, name, ())):
            if one.error.error_code:
                code = ErrorCode(one.error.error_code)
                yield index, refuse(code, one.error.error_message, one.error.field)
            elif getattr(one, "existed", False):
                yield index, _moved("the entry exists", "")


def _moved(what: str, field: str) -> ApiError:
    return refuse(
        ErrorCode.INVALID_UPDATE_VERSION, f"{what}: it was changed since the plan was made", field
    )
