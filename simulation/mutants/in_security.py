"""Mutants of rights: permissions, identities, and the visibility of entities."""

from __future__ import annotations

from dataclasses import replace

from simulation.mutants.configs import RIGHTS, RIGHTS_LATE, RIGHTS_PENDING
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

ALLOWS = "raftlog.node.security.authorizer:Authorizer.allows"
SIGN = "raftlog.node.security.guard:Authentication.sign"
AUTHORIZED = "controller.decider:Decider._authorized"

MUTANTS = (
    Mutant(
        "deny-ignored",
        "a DENY entry that names no address denies nothing",
        (Edit(ALLOWS, "if any_host.denied & denying:", "if False:"),),
        RIGHTS,
    ),
    Mutant(
        "deny-of-all-ignored",
        "a DENY of ALL denies nothing but the operation ALL",
        (
            Edit(
                ALLOWS,
                "denying, allowing = _DENYING[operation], _ALLOWING[operation]",
                "denying, allowing = 1 << operation, _ALLOWING[operation]",
            ),
        ),
        RIGHTS,
    ),
    Mutant(
        "prefix-is-literal",
        "a prefixed entry is about the resource of exactly that name",
        (
            Edit(
                "raftlog.metadata.acl_index:AclIndex.matching",
                "                if HERE in node:\n                    found.append(node[HERE])",
                "            else:\n"
                "                if HERE in node:\n                    found.append(node[HERE])",
            ),
        ),
        RIGHTS,
    ),
    Mutant(
        "literal-is-prefix",
        "a literal entry is about all resources whose names begin so",
        (
            Edit(
                "raftlog.metadata.acl_index:AclIndex.matching",
                "        if (bucket := self._literal.get((resource_type, name))) is not None:\n"
                "            found.append(bucket)",
                "        for end in range(1, len(name) + 1):\n"
                "            bucket = self._literal.get((resource_type, name[:end]))\n"
                "            if bucket is not None:\n"
                "                found.append(bucket)",
            ),
        ),
        RIGHTS,
    ),
    Mutant(
        "forwarded-principal-of-a-client",
        "a principal that a client states is believed as if a node had forwarded it",
        (
            Edit(
                SIGN,
                "if nodes and client.principal:",
                "if client.principal:",
            ),
        ),
        RIGHTS,
    ),
    Mutant(
        "broker-forwards-claims",
        "a broker forwards the principal that its client states",
        (
            Edit(
                "raftlog.node.security.guard:Guard.received",
                "writes, link.identity, host=host_of(link.peer), forwarded=False",
                "(), link.identity, host=host_of(link.peer), forwarded=False",
            ),
        ),
        RIGHTS,
    ),
    Mutant(
        "host-by-claim",
        "the address that a client states is believed",
        (
            Edit(
                SIGN,
                "client.principal, client.host = principal, host",
                "client.principal, client.host = principal, client.host or host",
            ),
        ),
        RIGHTS,
        known=2,
    ),
    Mutant(
        "node-by-claim",
        "a client that states a node id is taken for that node",
        (Edit(SIGN, 'client.ClearField("node_id")', "pass"),),
        RIGHTS,
    ),
    Mutant(
        "super-user-by-claim",
        "who states that he is a super user may do everything, under his own name",
        (
            Edit(
                SIGN,
                "client.principal, client.host = principal, host",
                "client.principal, client.host = ("
                "client.principal if client.principal == 'User:operator' else principal), host",
            ),
        ),
        RIGHTS,
    ),
    Mutant(
        "listing-leaks",
        "a listing shows everything",
        (Edit(AUTHORIZED, "if type(row) is Listed and type(decision) is Reply:", "if False:"),),
        RIGHTS,
        known=33,
    ),
    Mutant(
        "metadata-leaks",
        "the metadata of all topics shows those that may not be described",
        (
            Edit(
                "broker.metadata.reads:_page",
                "(may_describe is None or may_describe(name))",
                "True",
            ),
        ),
        RIGHTS,
    ),
    Mutant(
        "read-checked-on-arrival",
        "a read that waits is checked when it comes in, and not when it is answered",
        (
            Edit(
                "broker.service.requests:RequestServer._read",
                "refused = self._access.check(link, body, request)",
                "refused = {}",
            ),
        ),
        RIGHTS_LATE,
        "slow links, brokers that are behind",
    ),
    Mutant(
        "read-checked-by-its-image",
        "topics are shown by the entries of the image that answers, not of the newest applied one",
        (
            Edit(
                "broker.service.access:RequestAccess.may_describe",
                "image = self._view.tip",
                "image = self._view.repeatable or self._view.tip",
            ),
        ),
        RIGHTS_LATE,
        "slow links, brokers that are behind",
        known=11,
    ),
    Mutant(
        "fetch-checked-on-arrival",
        "a fetch of records that waits is checked when it comes in, and not when it is answered",
        (
            Edit(
                "broker.service.access:RequestAccess.partitions",
                "late = self._refused(asker, row.operation, response.partitions)",
                "late = {}",
            ),
        ),
        replace(RIGHTS, data_per_s=5.0),
        "fetches that wait",
        known=3,
    ),
    Mutant(
        "removed-entry-counts",
        "an entry that is removed from the log still counts for verdicts",
        (
            Edit(
                "raftlog.metadata.acl_fold:remove_entry",
                "image.acl_index = image.acl_index.without(old)",
                "pass",
            ),
        ),
        RIGHTS,
    ),
    Mutant(
        "client-of-anybody",
        "the id of a client may be used by whoever knows it",
        (
            Edit(
                "controller.decisions.clients.clients:check_owner",
                'if client is not None and client.principal not in ("", principal):',
                "if False:",
            ),
        ),
        RIGHTS,
    ),
    Mutant(
        "refused-item-executed",
        "of several items in one request, those that are refused are executed all the same",
        (
            Edit(
                AUTHORIZED,
                "decision = handler(body, now, refused) if refused else handler(body, now)",
                "decision = handler(body, now)",
            ),
        ),
        RIGHTS,
    ),
    Mutant(
        "describe-implies-all",
        "an ALLOW of DESCRIBE allows every operation",
        (
            Edit(
                ALLOWS,
                "return bool(allowed & allowing)",
                "return bool(allowed & (allowing | 1 << 8 | 1 << 10))",
            ),
        ),
        RIGHTS,
        known=1,
    ),
    Mutant(
        "allow-of-other-host",
        "an ALLOW for one address counts for every address",
        (
            Edit(
                ALLOWS,
                "if by_host and (of_host := by_host.get(host)) is not None:",
                "for of_host in by_host.values():",
            ),
        ),
        RIGHTS,
    ),
    Mutant(
        "decided-by-committed",
        "the controller asks the entries of the committed image, not of what it has proposed",
        (
            Edit(
                AUTHORIZED,
                "self.state.log.pending",
                "self.state.log.committed",
            ),
        ),
        RIGHTS_PENDING,
        "slow disks",
    ),
    Mutant(
        "log-for-everybody",
        "whoever may connect may read the log",
        (
            Edit(
                "raftlog.node.security.guard:Guard._may_read",
                "readers.check(_OF_LOG[self._conversation], message, asker)",
                "pass",
            ),
        ),
        RIGHTS,
    ),
    Mutant(
        "clients-without-owners",
        "a client is opened for everybody",
        (
            Edit(
                "controller.decider:Decider._open_client",
                "owner = self._asker.caller.principal",
                "pass",
            ),
        ),
        RIGHTS,
    ),
    Mutant(
        "any-node-id",
        "whatever nodes send counts under the node id that it names, whoever sends it",
        (
            Edit(
                "raftlog.identity:NodeRule.admits",
                "self.name_of(node_id) in identity.names",
                "True",
            ),
        ),
        RIGHTS,
    ),
    Mutant(
        "node-request-through-broker",
        "a broker forwards what only nodes may send",
        (
            Edit(
                "raftlog.node.security.guard:Guard._admits",
                "if self._conversation is Conversation.BROKER:",
                "if self._conversation is Conversation.BROKER:\n            return True\n"
                "        elif False:",
            ),
        ),
        RIGHTS,
    ),
)
