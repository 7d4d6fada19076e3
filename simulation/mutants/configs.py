"""Configs of hunts: small clusters, short runs, and the faults that reveal a kind of breakage."""

from dataclasses import replace

from simulation.swarm.config import SwarmConfig

KILLS = {"kill_controller": 1.0, "kill_all_controllers": 4.0, "kill_mid_write": 1.5}
CUTS = {"isolate": 1.5, "partition": 2.0, "one_way": 2.0, "split": 3.0}

FAST = SwarmConfig(reads_per_s=0.0, election_timeout_ms=200, fetch_timeout_ms=200)
QUORUM = replace(FAST, brokers=0, clients=2, writes_per_s=10.0, timeout_s=0.5)
CLUSTER = replace(
    FAST, clients=1, session_timeout_ms=1500, reads_per_s=2.0, writes_per_s=5.0, safety_s=20.0
)

ELECTIONS = replace(QUORUM, disk_max_ms=20.0, faults={**KILLS, **CUTS, "resign": 2.0})
"""Epoch after epoch: voters die, disks are slow, cuts come and go."""

LATE = replace(
    QUORUM, faults={"message_late": 0.03, "request_repeated": 0.3, "isolate": 1.5, "clog": 1.0, "resign": 1.0, "pause": 2.0},
)  # fmt: skip
"""Messages that arrive long after their sender has moved on."""

QUIET = SwarmConfig(brokers=2, writes_per_s=10.0, safety_s=5.0)
"""No faults, for mutants that are detected without any."""

BROKERS = replace(
    FAST, writes_per_s=10.0, reads_per_s=10.0, disk_max_ms=20.0, session_timeout_ms=1500,
    faults={"kill_controller": 2.0, "kill_broker": 2.0, "partition": 1.5, "heartbeats_lost": 3.0, "clog": 1.5, "resign": 3.0,
        "pause": 2.0},
)  # fmt: skip
"""Brokers that come, go and lag, under controllers that do."""

WAITED = replace(
    BROKERS, writes_per_s=40.0, reads_per_s=0.0, faults={"transfer": 1.0, "resign": 2.0, "clog": 1.5},
)  # fmt: skip
"""Writes that wait for brokers while the leader changes."""

WATCHES = replace(BROKERS, reads_per_s=0.0, watchers=4)

KEEPERS = replace(BROKERS, writes_per_s=2.0, reads_per_s=0.0, drift=0.1, keepers=3, lockers=3)
"""Clients that change on conditions, hold leases and take turns, under leaders that come and go."""

STALLED = replace(KEEPERS, faults={"loop_blocked": 1.0, "pause": 2.0})
"""The same with stalled event loops: keep-alives are delayed."""

DEPOSED = SwarmConfig(
    brokers=2, clients=0, direct_clients=4, writes_per_s=40.0, topics_share=0.9, shared_keys=2, numbered_share=0.0, timeout_s=1.0,
    safety_s=20.0, election_timeout_ms=100, fetch_timeout_ms=2000,
    faults={"isolate": 2.0, "pause": 2.0, "message_late": 0.01, "split": 4.0},
)  # fmt: skip
"""Leaders that do not know that they lead no more, and clients that still reach them."""

ASKED = replace(
    FAST, brokers=1, clients=0, direct_clients=8, writes_per_s=150.0, topics_share=1.0, asks_share=0.98, shared_keys=1,
    numbered_share=0.0, timeout_s=2.0, safety_s=20.0, election_timeout_ms=100, fetch_timeout_ms=2000, session_timeout_ms=20000,
    drift=0.1, faults={"isolate": 1.0, "pause": 2.0, "one_way": 3.0},
)  # fmt: skip
"""Many reads, few changes: a deposed leader receives reads while it has no pending changes."""

KEPT = replace(ASKED, clients=1, direct_clients=0, writes_per_s=0.1, asks_share=0.0, keepers=2)
"""Leases that are kept alive at a leader that leads no more, and has nothing of its own under way."""

ANSWERED = SwarmConfig(
    brokers=1, clients=0, direct_clients=12, writes_per_s=400.0, reads_per_s=0.0, topics_share=0.7, asks_share=0.4, shared_keys=1,
    numbered_share=0.0, safety_s=5.0, disk_max_ms=20.0, faults={"disk_slow": 2.0, "pause": 2.0},
)  # fmt: skip
"""Reads of records that are just being written, on slow disks."""

SLOW = SwarmConfig(
    clients=4, writes_per_s=40.0, reads_per_s=60.0, numbered_share=0.0, safety_s=12.0, delay_min_ms=1.0, delay_mean_ms=20.0,
    disk_max_ms=5.0, fetch_timeout_ms=2000, session_timeout_ms=3000, faults={"kill_broker": 2.0, "clog": 1.0},
)  # fmt: skip
"""Long ways, so that one broker is always behind another."""

TWINS = SwarmConfig(
    brokers=2, writes_per_s=20.0, reads_per_s=10.0, safety_s=20.0, delay_mean_ms=5.0, session_timeout_ms=600,
    faults={"twin_broker": 1.5, "pause": 0.5, "kill_broker": 2.0, "partition": 2.0},
)  # fmt: skip
"""Brokers that are thought dead, replaced, and are not dead."""

FLAPPING = replace(
    FAST, brokers=0, clients=1, safety_s=20.0, faults={"partition": 1.0, "flapping": 3.0, "reset_links": 2.0, "pause": 3.0},
)  # fmt: skip
"""Links between single nodes come and go; most of the time a leader has its majority."""

EVICTED = replace(
    QUORUM, clients=6, writes_per_s=60.0, numbered_share=1.0, timeout_s=5.0, max_clients=2,
    faults={"kill_controller": 1.0, "resign": 1.0, "reset_links": 0.5, "isolate": 2.0},
)  # fmt: skip
"""More exactly-once clients than may be open, and answers that are lost."""

OVERTAKEN = replace(
    ASKED, direct_clients=100, writes_per_s=100.0, timeout_s=3.0, faults={"overtaken": 1.0},
)  # fmt: skip
"""Leaders that hear from the others too late, and from their Fetches first."""

DIVERGED = replace(
    QUORUM, voters=5, clients=0, direct_clients=10, writes_per_s=60.0, numbered_share=0.0, timeout_s=0.3, safety_s=20.0,
    disk_max_ms=5.0, election_timeout_ms=100,
    faults={"message_late": 0.05, "isolate": 0.7, "split": 1.0, "resign": 1.0, "clog": 0.5, "partition": 0.7},
)  # fmt: skip
"""Logs that differ in their ends, under leaders that change, and messages that come late."""

VOTERS = replace(
    QUORUM, observers=3, safety_s=25.0, disk_max_ms=20.0, auto_join=True,
    faults={"change_voters": 0.5, "kill_controller": 2.0, "isolate": 2.0, "resign": 2.0},
)  # fmt: skip

SET_BACK = replace(
    QUORUM, writes_per_s=20.0, safety_s=30.0, disk_max_ms=5.0, faults={"set_back_directory": 0.5},
)  # fmt: skip
"""Voters whose directories are replaced by older copies, while another lacks records."""

DAMAGED = replace(
    DIVERGED, voters=3, direct_clients=4, writes_per_s=30.0, safety_s=8.0,
    faults={"message_late": 0.05, "isolate": 0.7, "resign": 1.0, "kill_controller": 1.0, "damaged_logs": 0.4},
)  # fmt: skip
"""Logs that differ in their ends, and are damaged on a majority."""

DAMAGED_SNAPSHOTS = replace(
    DAMAGED, snapshot_bytes=1500, retention_bytes=3000, faults={**DAMAGED.faults, "damaged_logs": 1.0},
)  # fmt: skip
"""As above; logs begin behind snapshots, which are damaged too."""

HASTY = replace(
    VOTERS, faults={"change_voters": 0.05, "kill_controller": 1.5, "isolate": 2.0, "resign": 0.7},
)  # fmt: skip
"""Voters that join and leave as fast as they can, from the first moment of each leader."""

REPLACED = replace(
    VOTERS, voters=5, observers=2, safety_s=30.0, auto_join=False, replace_after_ms=700,
    faults={"kill_controller": 0.7, "resign": 3.0, "isolate": 4.0},
)  # fmt: skip

REMOVED = replace(VOTERS, faults={"removed_campaigns": 1.0, "resign": 3.0})
"""Voters that are removed, do not hear of it, and campaign on."""

REPLICAS = replace(
    FAST, brokers=4, writes_per_s=8.0, topics_share=0.4, isr_changes_per_s=20.0, safety_s=20.0, session_timeout_ms=900,
    faults={"kill_broker": 0.7, "twin_broker": 3.0, "resign": 5.0, "pause": 3.0, "partition": 4.0},
)  # fmt: skip
"""Leaders of partitions propose ISRs, brokers restart all the time, and proposals are late."""

MOVING = SwarmConfig(
    brokers=5, writes_per_s=8.0, reads_per_s=0.0, topics_share=0.3, isr_changes_per_s=20.0, admin_per_s=15.0, unclean=True,
    balance_interval_s=1, safety_s=20.0, session_timeout_ms=900,
    faults={"kill_broker": 1.0, "pause": 3.0, "resign": 8.0, "partition": 6.0},
)  # fmt: skip
"""Partitions are moved about while brokers come and go."""

CORDONED = replace(MOVING, cordons_per_s=1.0)

UNFENCING = SwarmConfig(
    clients=8, writes_per_s=40.0, reads_per_s=60.0, topics_share=0.0, numbered_share=0.0, timeout_s=1.0, delay_min_ms=1.0,
    delay_mean_ms=3.0, disk_max_ms=5.0, election_timeout_ms=300, session_timeout_ms=500,
    faults={"broker_behind": 0.5, "kill_broker": 4.0, "resign": 2.0, "kill_controller": 4.0},
)  # fmt: skip
"""Brokers are fenced, lag, and request unfencing too early; controllers change."""

SNAPSHOTS = replace(
    FAST, brokers=2, clients=3, writes_per_s=30.0, reads_per_s=5.0, timeout_s=1.0, disk_max_ms=20.0, snapshot_bytes=800,
    retention_bytes=1, faults={"kill_controller": 2.0, "isolate": 2.0, "kill_broker": 4.0, "long_pause": 6.0, "resign": 4.0},
)  # fmt: skip
"""Snapshots every few records, the log cut behind them, and nodes that are left behind."""

PARTS = replace(
    SNAPSHOTS, snapshot_part_bytes=300, faults={**SNAPSHOTS.faults, "kill_broker": 2.0, "long_pause": 3.0, "snapshot_cut": 0.3},
)  # fmt: skip
"""The same, and each snapshot is fetched in many parts, between which something happens."""

TRANSFERS = replace(
    SNAPSHOTS, voters=5, brokers=0, reads_per_s=0.0, value_bytes=300, election_timeout_ms=1000, fetch_timeout_ms=1000, held_bytes=1,
    snapshot_part_bytes=100, faults={"long_pause": 3.0, "snapshot_cut": 0.2, "kill_controller": 1.5},
)  # fmt: skip
"""Followers that fetch snapshots which a stable leader replaces meanwhile."""

EXPORTS = replace(
    SNAPSHOTS, brokers=0, clients=1, reads_per_s=0.0, topics_share=0.0, safety_s=40.0, exports_per_s=0.5,
    faults={"kill_controller": 6.0, "resign": 6.0},
)  # fmt: skip

STRICT = replace(
    CLUSTER, brokers=4, clients=5, writes_per_s=20.0, reads_per_s=100.0, topics_share=0.0, numbered_share=0.0, timeout_s=1.0,
    fetch_timeout_ms=1000, strict_share=0.9, round_robin=True, faults={"partition": 1.0, "split": 3.0, "pause": 2.0},
)  # fmt: skip
"""Strict reads at all brokers in turn, of which some are cut off, late, or asleep."""

LIVES = replace(
    BROKERS, faults={**BROKERS.faults, "stop_broker": 2.0, "roll_heartbeats": 2.5, "long_pause": 6.0},
)  # fmt: skip
"""``BROKERS`` with orderly stops, long pauses, and heartbeats enabled some of the time."""

SILENCED = replace(
    CLUSTER, reads_per_s=5.0, safety_s=30.0, faults={"connection_dead": 3.0, "conversation_cut": 1.5, "resign": 15.0},
)  # fmt: skip
"""Single conversations of brokers that carry nothing any more, while all their others go on."""

SILENCED_QUORUM = replace(SILENCED, brokers=0, clients=0, direct_clients=2)

DYING = replace(
    CLUSTER, brokers=4, clients=2, reads_per_s=20.0, safety_s=30.0, strict_share=0.7,
    faults={"broker_away": 4.0, "reset_links": 1.0, "partition": 3.0, "resign": 15.0},
)  # fmt: skip
"""Brokers that die, and connections of others that break."""

REFUSED = replace(DYING, faults={"broker_refused": 2.0, "resign": 15.0})
"""Brokers that look dead to the controllers, and serve clients."""

LEAVES = replace(TWINS, session_timeout_ms=3000, faults={"stop_broker": 1.0, "twin_broker": 1.0})
"""Brokers that leave in order, and others that take their ids on another machine."""

LED = replace(
    FAST, clients=1, writes_per_s=2.0, topics_share=0.0, session_timeout_ms=3000, data_per_s=10.0, replica_lag_ms=500,
    faults={"kill_broker": 2.0, "kill_controller": 3.0, "partition": 1.5, "one_way": 2.0, "pause": 2.0, "clog": 2.0, "resign": 4.0},
)  # fmt: skip
"""Followers that fall behind and come back, and leaders that wait for the controllers' answer."""

ROLLED = replace(
    UNFENCING, faults={**UNFENCING.faults, "roll_heartbeats": 0.7, "kill_broker": 1.0, "kill_controller": 8.0},
)  # fmt: skip
"""Brokers that are behind, while heartbeats go out of force and in again."""

DATA = SwarmConfig(
    brokers=4, clients=1, writes_per_s=2.0, reads_per_s=0.0, topics_share=0.2, balance_interval_s=1, timeout_s=1.5,
    disk_max_ms=10.0, session_timeout_ms=1000, data_per_s=60.0, replica_lag_ms=700,
    faults={"kill_broker": 1.0, "broker_pause": 2.5, "brokers_cut": 1.5, "broker_alone": 3.0, "kill_all_brokers": 8.0,
        "resign": 8.0, "fetches_late": 2.0},
)  # fmt: skip
"""Brokers with partitions die, sleep and are isolated; leaders move all the time."""

DATA_DISKS = replace(
    DATA, faults={"replace_broker_disk": 0.8, "kill_broker": 2.0, "broker_pause": 4.0, "brokers_cut": 3.0, "isr_change_late": 0.3},
)  # fmt: skip

DATA_LOW = replace(
    DATA, broker_reserve_bytes=100000, faults={"broker_disk_low": 2.0, "kill_broker": 6.0, "brokers_cut": 4.0},
)  # fmt: skip
"""Brokers whose disks are below their reserves, one at a time or all."""

DATA_LATE = replace(
    DATA, faults={"isr_change_late": 0.6, "kill_broker": 1.0, "replace_broker_disk": 3.0, "brokers_cut": 2.0, "broker_pause": 3.0},
)  # fmt: skip
"""Late ISR proposals from brokers that have restarted since."""

DATA_TWINS = replace(
    DATA, brokers=3, topics_share=0.0, faults={"broker_alone": 0.7, "twin_broker": 0.8, "kill_broker": 4.0},
)  # fmt: skip
"""Replaced brokers that do not know it, while their leaders still hear them."""

DATA_UNKNOWN = replace(
    DATA, brokers=3, topics_share=0.0, balance_interval_s=0, safety_s=30.0, session_timeout_ms=9000, replica_lag_ms=500,
    faults={"fetches_late": 0.15, "brokers_cut": 0.6, "isr_change_late": 0.5},
)  # fmt: skip
"""ISR changes arrive after their leader's timeout, of followers that lag by then."""

OPERATED = replace(
    CLUSTER, clients=2, writes_per_s=10.0, reads_per_s=5.0, topics_share=0.3, admin_per_s=1.0, snapshot_bytes=5000,
    exports_per_s=1.0, adopt_after_ms=2000, faults={"unregister_broker": 2.0, "lower_features": 2.0, "resign": 5.0},
)  # fmt: skip

MAPPED = replace(OPERATED, faults={"alter_hostnames": 1.0, "newcomer": 2.0, "broker_away": 3.0})
"""Hosts that are mapped to ids by hand before a newcomer is started there."""

MOVED = replace(
    OPERATED, brokers=1, safety_s=30.0, exports_per_s=0.0, faults={"move_voter": 1.5, "kill_controller": 1.5, "isolate": 2.0},
)  # fmt: skip
"""Voters that get another endpoint, one after the other, among kills and cuts."""

CLOCKS = replace(
    QUORUM, timeout_s=3.0, safety_s=20.0, snapshot_bytes=2000, retention_bytes=2000,
    faults={"clock_jump": 1.0, "resign": 2.0, "kill_controller": 2.0},
)  # fmt: skip
"""Wall clocks that are hours wrong, and controllers that change."""

CLOCKS_RIGHTED = replace(CLOCKS, safety_s=40.0, faults={"clocks_ahead": 15.0, "resign": 4.0})

STEPS = replace(
    FAST, brokers=0, writes_per_s=20.0, topics_share=0.0, safety_s=20.0, snapshot_bytes=500, retention_bytes=1,
    faults={"kill_between_steps": 0.3, "isolate": 2.0, "kill_controller": 2.0},
)  # fmt: skip
"""Frequent snapshots, and death within the store's multi-step operations."""

LOW = replace(
    QUORUM, brokers=1, timeout_s=3.0, safety_s=30.0, election_timeout_ms=500, fetch_timeout_ms=500, reserve_bytes=100000,
    faults={"disk_low": 2.0, "kill_controller": 10.0},
)  # fmt: skip
"""Disks with less than their reserve, on one node, some, or all."""

BUSY = SwarmConfig(
    voters=1, brokers=1, clients=1, direct_clients=400, writes_per_s=6000.0, reads_per_s=0.0, topics_share=0.0, asks_share=0.5,
    shared_keys=1, numbered_share=0.0, safety_s=1.0, disk_max_ms=50.0, work_us=300.0, faults={"burst": 0.5},
)  # fmt: skip
"""More requests than can be decided in time, and code that takes virtual time."""

RECOVERED = replace(
    CLUSTER, clients=2, writes_per_s=10.0, reads_per_s=5.0, topics_share=0.3, safety_s=6.0, snapshot_bytes=5000,
    retention_bytes=5000, recovery=True, data_per_s=30.0, replica_lag_ms=500,
    faults={"kill_broker": 2.0, "kill_controller": 3.0, "brokers_cut": 2.0},
)  # fmt: skip
"""Run in which the disks of a majority are lost permanently, and the remaining log is led on."""

HOLDERS = replace(
    RECOVERED, writes_per_s=1.0, reads_per_s=0.0, topics_share=0.0, drift=0.05, snapshot_bytes=100000, data_per_s=0.0, keepers=3,
    lockers=3, faults={"kill_controller": 6.0},
)  # fmt: skip
"""The same with holders of leases and locks: in the recovered log known offsets occur again."""

OUTLIVED = SwarmConfig(
    brokers=2, clients=1, writes_per_s=4.0, reads_per_s=0.0, safety_s=2.0, session_timeout_ms=1500, recovery=True, round_robin=True,
    watchers=4,
)  # fmt: skip
"""The same, among watchers, and with nothing else to do."""

BUILDS = replace(
    CLUSTER, reads_per_s=5.0, safety_s=15.0, release_version=1, old_build=1,
    faults={"change_build": 0.7, "raise_features": 0.5, "kill_broker": 4.0, "kill_controller": 6.0},
)  # fmt: skip
"""Nodes of two builds, restarted as the other, and an operator eager for the newer level."""

RIGHTS = SwarmConfig(
    clients=1, writes_per_s=2.0, reads_per_s=2.0, topics_share=0.0, safety_s=8.0, strict_share=0.3, authorizer=True,
    entries_per_s=10.0, callers_per_s=100.0,
)  # fmt: skip
"""Rights that change all the time, and clients that try them."""

WATCHED = replace(
    RIGHTS, brokers=2, reads_per_s=0.0, topics_share=0.2, watchers=4, callers_per_s=40.0, faults={"kill_broker": 2.0, "clog": 1.5},
)  # fmt: skip
"""Watchers with rights that change all the time, sent from broker to broker."""

RIGHTS_LATE = replace(
    RIGHTS, delay_min_ms=1.0, delay_mean_ms=20.0, disk_max_ms=5.0, fetch_timeout_ms=2000, session_timeout_ms=3000,
    faults={"clog": 1.0, "broker_behind": 1.0},
)  # fmt: skip
"""The same over long ways: some brokers know of a change before others do, and reads wait."""

RIGHTS_PENDING = replace(
    RIGHTS, disk_min_ms=30.0, disk_max_ms=90.0, fetch_timeout_ms=2000, entries_per_s=40.0, callers_per_s=200.0,
)  # fmt: skip
"""The same on slow disks: many decisions precede the commit of what they build on."""

DISKS = replace(
    CLUSTER, brokers=4, topics_share=0.3,
    faults={"lose_broker_disk": 2.0, "kill_broker": 4.0, "kill_controller": 6.0, "resign": 6.0},
)  # fmt: skip
"""Brokers that come back on empty disks, under controllers that change."""

NEWCOMERS = replace(
    CLUSTER, brokers=4, topics_share=0.5, faults={"newcomer": 1.0, "kill_broker": 1.5, "resign": 3.0},
)  # fmt: skip
"""Brokers on new hosts, while others are down for a moment."""

ADOPTED = replace(
    CLUSTER, brokers=4, topics_share=0.5, safety_s=40.0, adopt_after_ms=2000,
    faults={"newcomer": 1.0, "broker_away": 3.0, "kill_broker": 6.0, "resign": 8.0},
)  # fmt: skip
"""Brokers on new hosts, while others are away for so long that their ids are missing."""

KEEPS_LITTLE = replace(DATA, data_kept_bytes=150)
