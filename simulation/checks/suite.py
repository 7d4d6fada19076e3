"""All checkers of one run, in the order in which they receive events: the ledger first."""

from simulation.checks.acl_history import AclHistory
from simulation.checks.api import Checker
from simulation.checks.broker_ids import BrokerIds
from simulation.checks.brokers import Brokers
from simulation.checks.commitment import Commitment, Durability
from simulation.checks.committed_data import CommittedData
from simulation.checks.compared import Compared
from simulation.checks.data_clients import DataClients
from simulation.checks.data_serving import DataServing
from simulation.checks.elections import Elections, SetBack
from simulation.checks.exactly_once import ExactlyOnce
from simulation.checks.existence import Existence
from simulation.checks.export_cursors import ExportCursors
from simulation.checks.held import Held
from simulation.checks.lao import Lao
from simulation.checks.leadership import Contradictions, Leadership
from simulation.checks.ledger import Ledger
from simulation.checks.levels import Levels
from simulation.checks.lifecycles import Lifecycles
from simulation.checks.limits import BrokerSpace, Queues, Space, Turns
from simulation.checks.linearizability import Linearizability
from simulation.checks.log_time import LogTime
from simulation.checks.membership import Replacements, VoterSets
from simulation.checks.partitions import Incarnations, Partitions, ServedPartitions
from simulation.checks.replica_logs import ReplicaLogs
from simulation.checks.rights import Rights
from simulation.checks.shown import Shown
from simulation.checks.snapshot_parts import SnapshotParts
from simulation.checks.states import States
from simulation.checks.strict import StrictReads
from simulation.checks.visibility import Visibility
from simulation.checks.watches import Watches


def all_checkers() -> list[Checker]:
    ledger, logs, acls = Ledger(), ReplicaLogs(), AclHistory()
    data, partitions = CommittedData(ledger, logs), Partitions(ledger)
    # ExactlyOnce before Visibility, as it says more of a write that is not in the log.
    first = Elections, SetBack, Leadership, LogTime, Commitment, Durability, VoterSets, Replacements
    brokers = Incarnations, Lifecycles, BrokerIds, ExportCursors, Levels, Space
    clients = Lao, ExactlyOnce, Visibility, StrictReads, Existence
    return [
        ledger, *(one(ledger) for one in (*first, States)), SnapshotParts(), Brokers(ledger),
        partitions, *(one(ledger) for one in brokers), BrokerSpace(),
        *(one(ledger) for one in clients), ServedPartitions(ledger, partitions), Queues(), Turns(),
        Contradictions(), logs, data, DataServing(ledger, logs), DataClients(data),
        Linearizability(ledger), Watches(ledger, acls), Compared(ledger), Held(ledger),
        Rights(ledger, acls), Shown(ledger, acls),
    ]  # fmt: skip
