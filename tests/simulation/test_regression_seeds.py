"""Runs that once failed, each by its seed and config, and what it was."""

from collections.abc import Iterator

import pytest
import structlog

from simulation.cli import silence
from simulation.run import run_swarm
from simulation.swarm.config import SwarmConfig

REGRESSIONS = [
    pytest.param(
        59,
        '{"clients": 3, "reads_per_s": 0.0, "topics_share": 0.3, "value_bytes": 20000,'
        ' "shared_keys": 2, "safety_s": 19.76244894508787, "delay_min_ms": 0.5, "delay_mean_ms":'
        ' 1.5, "disk_max_ms": 0.5, "election_timeout_ms": 500, "fetch_timeout_ms": 500,'
        ' "session_timeout_ms": 1500, "snapshot_bytes": 1000, "retention_bytes": 5000, "faults":'
        ' {"pause": 5.83, "loop_blocked": 1.67, "clock_jump": 5.24, "one_way": 1.06, "ring": 9.49,'
        ' "flapping": 4.4, "clog": 2.12, "reset_links": 1.49, "link_broken": 0.000622,'
        ' "request_repeated": 0.489, "connect_refused": 0.0238, "disk_error": 1.43, "kill_broker":'
        " 1.94}}",
        id=(
            "a replica named snapshots that an installed one had replaced; the controller's timer"
            " died of it"
        ),
    ),
    pytest.param(
        1795267923672,
        '{"clients": 3, "writes_per_s": 2.0, "reads_per_s": 10.0, "value_bytes": 20000,'
        ' "shared_keys": 1, "numbered_share": 0.0, "safety_s": 14.490574681206036,'
        ' "session_timeout_ms": 3000, "queue_messages": 64, "drift": 0.1, "retention_bytes": 5000,'
        ' "faults": {"connect_refused": 0.248, "disk_error": 2.25, "disk_full": 2.56,'
        ' "kill_controller": 2.28, "partition": 1.43, "reset_links": 1.06, "resign": 1.22, "split":'
        " 2.64}}",
        id=(
            "a follower truncated to the lower of two ends of different epochs, in the middle of a"
            " batch"
        ),
    ),
    pytest.param(
        1795269198009,
        '{"direct_clients": 1, "topics_share": 0.0, "value_bytes": 1000, "shared_keys": 4,'
        ' "numbered_share": 1.0, "timeout_s": 10.0, "safety_s": 9.371447994935362,'
        ' "queue_messages": 64, "snapshot_bytes": 1000, "retention_bytes": 1, "faults":'
        ' {"disk_error": 1.49, "isolate": 1.39, "kill_controller": 1.51, "loop_blocked": 3.17,'
        ' "split": 7.3}}',
        id="a follower dropped what it had acknowledged, to fetch a snapshot in its place",
    ),
    pytest.param(
        1795269199029,
        '{"voters": 5, "brokers": 8, "clients": 1, "direct_clients": 1, "reads_per_s": 10.0,'
        ' "topics_share": 0.0, "shared_keys": 0, "numbered_share": 0.0, "timeout_s": 0.3,'
        ' "safety_s": 22.610386580049678, "session_timeout_ms": 1500, "queue_messages": 64,'
        ' "snapshot_bytes": 1000, "retention_bytes": 5000, "release_version": 1, "faults":'
        ' {"bridge": 10.3, "clog": 2.97, "disk_error": 1.18, "isolate": 3.85, "kill_mid_write":'
        ' 2.74, "link_broken": 0.00157, "loop_blocked": 2.1, "message_late": 0.0106, "resign":'
        ' 4.53, "ring": 8.12, "transfer": 3.0}}',
        id="a controller whose disk had failed still answered a transfer",
    ),
    pytest.param(
        1795269200180,
        '{"voters": 5, "brokers": 8, "direct_clients": 1, "writes_per_s": 10.0, "reads_per_s":'
        ' 10.0, "topics_share": 0.0, "value_bytes": 1000, "shared_keys": 1, "timeout_s": 10.0,'
        ' "safety_s": 11.438448628691638, "session_timeout_ms": 1500, "drift": 0.1,'
        ' "snapshot_bytes": 1000, "retention_bytes": 5000, "faults": {"bit_flip": 10.4, "clog":'
        ' 1.67, "disk_error": 1.4, "flapping": 6.72, "heartbeats_lost": 5.0, "one_way": 5.16,'
        ' "pause": 2.39, "resign": 3.89, "transfer": 4.52}}',
        id="a checker took a bit flipped in the log for a false acknowledgement",
    ),
    pytest.param(
        7002,
        '{"voters": 7, "observers": 1, "brokers": 8, "clients": 3, "direct_clients": 1,'
        ' "writes_per_s": 10.0, "topics_share": 0.3, "admin_per_s": 5.0, "balance_interval_s": 1,'
        ' "value_bytes": 20000, "shared_keys": 2, "numbered_share": 1.0, "safety_s":'
        ' 20.152205320321407, "delay_min_ms": 0.5, "delay_mean_ms": 1.5, "disk_max_ms": 20.0,'
        ' "snapshot_bytes": 50000, "retention_bytes": 100000, "data_per_s": 20.0, "max_clients": 2,'
        ' "round_robin": true, "lag_max_ms": 1500, "faults": {"kill_controller": 2.43,'
        ' "kill_mid_write": 1.07, "kill_all_controllers": 4.74, "pause": 1.26, "loop_blocked":'
        ' 2.73, "resign": 1.61, "request_repeated": 0.0199, "message_late": 0.000519, "disk_error":'
        ' 5.81, "disk_slow": 6.16, "lose_disk": 2.26, "transfer": 1.67, "raise_features": 2.33,'
        ' "twin_broker": 4.99, "burst": 3.25, "lose_broker_disk": 7.97, "broker_pause": 5.58,'
        ' "broker_alone": 7.33, "broker_disk_full": 4.27, "replace_broker_disk": 2.54}}',
        id=(
            "a checker took a partition's answer, which waited for those of other partitions, for"
            " one of now"
        ),
    ),
    pytest.param(
        1795287281338,
        '{"brokers": 4, "clients": 1, "direct_clients": 1, "writes_per_s": 2.0, "reads_per_s":'
        ' 10.0, "asks_share": 0.5, "admin_per_s": 1.0, "unclean": true, "balance_interval_s": 1,'
        ' "shared_keys": 4, "numbered_share": 0.0, "safety_s": 22.4799412282824, "disk_max_ms":'
        ' 0.5, "session_timeout_ms": 3000, "queue_messages": 64, "snapshot_bytes": 1000,'
        ' "retention_bytes": 5000, "data_per_s": 5.0, "replica_lag_ms": 10000, "strict_share": 0.3,'
        ' "faults": {"bit_flip": 4.8, "broker_disk_full": 3.75, "clog": 1.48, "connect_refused":'
        ' 0.0408, "disk_full": 2.81, "flapping": 9.24, "isolate": 1.45, "isr_change_late": 0.292,'
        ' "kill_mid_write": 1.6, "lose_broker_disk": 3.26, "replace_broker_disk": 4.16,'
        ' "request_repeated": 0.0389, "resign": 4.06, "roll_heartbeats": 2.65, "split": 3.69,'
        ' "stop_broker": 2.56, "stranded": 3.24, "twin_broker": 4.53}}',
        id=(
            "an unclean leader completed the reassignment that only the ISR which it replaced could"
            " have completed"
        ),
    ),
    pytest.param(
        1795291675324,
        '{"voters": 2, "observers": 2, "brokers": 4, "writes_per_s": 2.0, "reads_per_s": 0.0,'
        ' "topics_share": 0.3, "asks_share": 0.5, "isr_changes_per_s": 10.0, "shared_keys": 2,'
        ' "numbered_share": 1.0, "safety_s": 8.29427367762722, "session_timeout_ms": 1500, "drift":'
        ' 0.1, "snapshot_bytes": 1000, "round_robin": true, "faults": {"answers_late": 3.67,'
        ' "connect_refused": 0.276, "disk_full": 2.4, "flapping": 6.63, "link_broken": 0.00238,'
        ' "lose_broker_disk": 9.95, "message_late": 0.00312, "one_way": 1.46, "overtaken": 5.09,'
        ' "partition": 1.65, "pause": 3.42, "request_repeated": 0.0121, "transfer": 1.28}}',
        id="the simulated network forgot to tell one end of a connection that the other had died",
    ),
    pytest.param(
        1795299166456,
        '{"observers": 1, "writes_per_s": 10.0, "topics_share": 0.3, "asks_share": 0.9,'
        ' "admin_per_s": 5.0, "unclean": true, "shared_keys": 4, "safety_s": 15.775282017469198,'
        ' "disk_max_ms": 0.5, "election_timeout_ms": 500, "fetch_timeout_ms": 500,'
        ' "session_timeout_ms": 3000, "queue_messages": 64, "drift": 0.1, "snapshot_bytes": 1000,'
        ' "retention_bytes": 5000, "data_per_s": 20.0, "strict_share": 0.3, "round_robin": true,'
        ' "faults": {"kill_controller": 1.31, "split": 4.81, "link_broken": 0.0018}}',
        id=(
            "a cancelled reassignment went back to replicas of which none lived, and the ISR was"
            " none of them"
        ),
    ),
    pytest.param(
        1795299166292,
        '{"clients": 3, "writes_per_s": 2.0, "reads_per_s": 10.0, "topics_share": 0.3,'
        ' "admin_per_s": 5.0, "unclean": true, "balance_interval_s": 1, "shared_keys": 4,'
        ' "numbered_share": 1.0, "safety_s": 20.806602710321815, "disk_max_ms": 0.5,'
        ' "election_timeout_ms": 500, "fetch_timeout_ms": 500, "drift": 0.1, "snapshot_bytes":'
        ' 1000, "retention_bytes": 5000, "data_per_s": 20.0, "replica_lag_ms": 500, "strict_share":'
        ' 0.7, "round_robin": true, "lag_max_ms": 1500, "faults": {"broker_alone": 4.93,'
        ' "broker_behind": 3.19, "change_voters": 3.22, "connect_refused": 0.078, "disk_error":'
        ' 1.62, "disk_full": 2.61, "disk_slow": 5.19, "flapping": 6.43, "isolate": 4.84,'
        ' "isr_change_late": 0.158, "kill_all_controllers": 6.28, "kill_controller": 3.23,'
        ' "kill_mid_write": 1.53, "link_broken": 0.0198, "long_pause": 14.6, "resign": 1.54}}',
        id="a disk of the healed part was still to fail, as a fault from before had ordered",
    ),
    pytest.param(
        1795299608152,
        '{"voters": 6, "brokers": 1, "clients": 1, "writes_per_s": 10.0, "reads_per_s": 0.0,'
        ' "topics_share": 0.3, "asks_share": 0.5, "admin_per_s": 5.0, "unclean": true,'
        ' "value_bytes": 20000, "numbered_share": 0.0, "timeout_s": 10.0, "safety_s":'
        ' 9.514583860444871, "disk_max_ms": 20.0, "election_timeout_ms": 500, "fetch_timeout_ms":'
        ' 500, "session_timeout_ms": 1500, "queue_messages": 64, "snapshot_bytes": 1000,'
        ' "retention_bytes": 1, "data_per_s": 20.0, "faults": {"broker_alone": 2.27,'
        ' "broker_disk_error": 2.19, "disk_error": 1.6, "disk_slow": 7.04, "kill_broker": 1.07}}',
        id=(
            "a snapshot that was given up while it was being completed was there again after a"
            " restart, below the log start"
        ),
    ),
    pytest.param(
        1795300761837,
        '{"voters": 6, "brokers": 2, "clients": 3, "writes_per_s": 2.0, "reads_per_s": 0.0,'
        ' "admin_per_s": 1.0, "value_bytes": 20000, "shared_keys": 2, "safety_s":'
        ' 20.585640270109977, "disk_max_ms": 20.0, "session_timeout_ms": 3000, "queue_messages":'
        ' 64, "snapshot_bytes": 50000, "retention_bytes": 1, "round_robin": true, "faults":'
        ' {"connect_refused": 0.021, "disk_error": 1.95, "disk_slow": 3.02, "isolate": 4.08,'
        ' "long_pause": 17.0, "loop_blocked": 1.53, "one_way": 1.31, "overtaken": 4.66, "pause":'
        ' 1.45, "reset_links": 2.01, "roll_heartbeats": 7.2, "split": 4.21, "transfer": 5.1}}',
        id="a checker took an error on another link for the answer to a heartbeat",
    ),
    pytest.param(
        1795300762601,
        '{"voters": 6, "observers": 1, "clients": 1, "writes_per_s": 10.0, "reads_per_s": 10.0,'
        ' "asks_share": 0.5, "admin_per_s": 5.0, "unclean": true, "balance_interval_s": 5,'
        ' "value_bytes": 1000, "shared_keys": 1, "numbered_share": 1.0, "timeout_s": 0.3,'
        ' "safety_s": 23.383451843937152, "election_timeout_ms": 500, "fetch_timeout_ms": 500,'
        ' "queue_messages": 64, "snapshot_bytes": 5000, "retention_bytes": 1, "data_per_s": 20.0,'
        ' "replica_lag_ms": 500, "lag_max_ms": 1500, "faults": {"answers_late": 3.18, "bridge":'
        ' 5.54, "broker_disk_error": 2.29, "broker_disk_hang": 4.65, "burst": 2.28, "clog": 2.35,'
        ' "connect_refused": 0.215, "disk_error": 3.51, "flapping": 3.44, "heartbeats_lost": 3.54,'
        ' "isolate": 2.76, "isr_change_late": 0.0962, "kill_all_brokers": 9.72, "kill_broker":'
        ' 1.42, "kill_controller": 2.98, "kill_mid_write": 4.38, "link_broken": 0.0228,'
        ' "long_pause": 12.1, "loop_blocked": 0.54, "lose_broker_disk": 3.18, "lose_disk": 5.72,'
        ' "one_way": 1.18, "raise_features": 2.41, "replace_broker_disk": 2.61, "request_repeated":'
        ' 0.0251, "reset_links": 1.83, "resign": 1.31, "roll_heartbeats": 2.48, "split": 4.15,'
        ' "stop_broker": 4.79, "stranded": 3.18, "transfer": 1.35}}',
        id=(
            "records were asked of a leader whose disk still hung: the leadership had gone back"
            " to it"
        ),
    ),
    pytest.param(
        880037,
        '{"observers": 1, "clients": 1, "writes_per_s": 2.0, "topics_share": 0.3, "asks_share":'
        ' 0.5, "admin_per_s": 5.0, "unclean": true, "balance_interval_s": 1, "value_bytes": 20000,'
        ' "shared_keys": 1, "safety_s": 24.569052371515475, "election_timeout_ms": 200,'
        ' "fetch_timeout_ms": 200, "session_timeout_ms": 3000, "drift": 0.1, "retention_bytes": 1,'
        ' "data_per_s": 20.0, "replica_lag_ms": 10000, "strict_share": 0.3, "exports_per_s": 0.2,'
        ' "adopt_after_ms": 2000, "faults": {"clock_jump": 7.15, "ring": 8.35, "flapping": 9.75,'
        ' "clog": 3.35, "twin_broker": 9.27, "broker_behind": 4.02, "lose_broker_disk": 5.79,'
        ' "newcomer": 2.74, "connection_dead": 2.18, "conversation_cut": 2.84, "broker_pause":'
        ' 5.11, "broker_alone": 2.92, "fetches_late": 3.93, "isr_change_late": 0.105,'
        ' "broker_bit_flip": 4.89}}',
        id=(
            "a checker took an id for its broker's own that no controller had heard from for a"
            " session and what makes it missing"
        ),
    ),
    pytest.param(
        890036,
        '{"voters": 2, "observers": 2, "brokers": 4, "direct_clients": 1, "writes_per_s": 10.0,'
        ' "reads_per_s": 10.0, "asks_share": 0.5, "value_bytes": 20000, "safety_s":'
        ' 9.074389333001887, "election_timeout_ms": 200, "fetch_timeout_ms": 200,'
        ' "session_timeout_ms": 1500, "queue_messages": 64, "snapshot_bytes": 50000,'
        ' "retention_bytes": 5000, "round_robin": true, "faults": {"kill_all_controllers": 4.24,'
        ' "ring": 6.76, "disk_full": 2.97, "burst": 3.17, "broker_behind": 1.29, "stranded":'
        " 7.05}}",
        id=(
            "a checker did not know that a broker looks dead to a controller that a firewall cuts"
            " off in company"
        ),
    ),
    pytest.param(
        530010,
        '{"brokers": 2, "direct_clients": 1, "reads_per_s": 10.0, "admin_per_s": 5.0, "unclean":'
        ' true, "balance_interval_s": 1, "value_bytes": 1000, "numbered_share": 1.0, "timeout_s":'
        ' 10.0, "safety_s": 11.835558039834805, "delay_min_ms": 0.5, "delay_mean_ms": 1.5,'
        ' "election_timeout_ms": 200, "fetch_timeout_ms": 200, "session_timeout_ms": 1500,'
        ' "snapshot_bytes": 50000, "retention_bytes": 100000, "max_clients": 2, "strict_share":'
        ' 0.3, "round_robin": true, "faults": {"unregister_broker": 3.01}}',
        id="a checker took a broker for alive that the same batch unregisters a record later",
    ),
    pytest.param(
        14,
        '{"voters": 7, "brokers": 5, "clients": 1, "reads_per_s": 10.0, "asks_share": 0.9,'
        ' "admin_per_s": 1.0, "shared_keys": 4, "timeout_s": 0.3, "safety_s": 11.034879426989118,'
        ' "disk_max_ms": 0.5, "election_timeout_ms": 200, "fetch_timeout_ms": 200,'
        ' "session_timeout_ms": 1500, "queue_messages": 64, "snapshot_bytes": 50000,'
        ' "retention_bytes": 1, "data_per_s": 20.0, "replica_lag_ms": 500, "exports_per_s": 1.0,'
        ' "adopt_after_ms": 2000, "faults": {"long_pause": 14.1, "loop_blocked": 1.92, "partition":'
        ' 1.43, "ring": 4.15, "overtaken": 4.88, "bit_flip": 6.93, "transfer": 3.97,'
        ' "raise_features": 3.95, "kill_broker": 1.14, "burst": 2.1, "lose_broker_disk": 8.5,'
        ' "conversation_cut": 6.76, "unregister_broker": 4.39, "alter_hostnames": 1.15,'
        ' "broker_disk_slow": 2.16, "newcomer": 2.0, "broker_away": 3.0}}',
        id=(
            "a checker took a process that only asked for its id for the one of that id that had"
            " been heard from, and had died"
        ),
    ),
    pytest.param(
        1,
        '{"brokers": 2, "clients": 1, "writes_per_s": 2.0, "reads_per_s": 0.0, "safety_s": 2.0,'
        ' "session_timeout_ms": 1500, "reserve_bytes": 100000, "faults": {"stop_broker": 0.5,'
        ' "all_disks_low": 12.0}}',
        id=(
            "while the disks were low a broker's heartbeats were refused and kept its session"
            " alive: it served nothing, and led on"
        ),
    ),
    pytest.param(
        720137,
        '{"voters": 4, "observers": 2, "brokers": 8, "clients": 3, "direct_clients": 1,'
        ' "topics_share": 0.3, "asks_share": 0.5, "admin_per_s": 1.0, "unclean": true,'
        ' "value_bytes": 20000, "shared_keys": 1, "numbered_share": 1.0, "safety_s":'
        ' 11.274476201134217, "disk_max_ms": 20.0, "snapshot_bytes": 5000, "auto_join": true,'
        ' "adopt_after_ms": 2000, "faults": {"kill_controller": 2.57, "kill_mid_write": 2.61,'
        ' "kill_all_controllers": 8.76, "pause": 1.36, "resign": 2.8, "partition": 4.21, "isolate":'
        ' 4.62, "ring": 11.5, "flapping": 3.02, "overtaken": 4.56, "reset_links": 1.07,'
        ' "request_repeated": 0.17, "disk_full": 4.91, "disk_hang": 3.81, "change_voters": 2.56,'
        ' "lose_disk": 3.94, "transfer": 1.23, "kill_broker": 2.33, "burst": 4.9, "broker_behind":'
        ' 3.83, "stranded": 3.75, "stop_broker": 1.22, "lose_broker_disk": 3.49, "newcomer": 2.56,'
        ' "broker_away": 11.3, "unregister_broker": 4.83, "alter_hostnames": 1.87,'
        ' "kill_between_steps": 0.614}}',
        id=(
            "a checker did not know that a broker that has left has no session, though its process"
            " runs for a moment more"
        ),
    ),
    pytest.param(
        1795379987406,
        '{"voters": 5, "brokers": 4, "writes_per_s": 2.0, "reads_per_s": 0.0, "asks_share": 0.5,'
        ' "admin_per_s": 1.0, "unclean": true, "unclean_topics": true, "balance_interval_s": 1,'
        ' "safety_s": 9.353732540028972, "delay_min_ms": 0.5, "delay_mean_ms": 1.5, "disk_max_ms":'
        ' 20.0, "session_timeout_ms": 1500, "drift": 0.01, "snapshot_bytes": 50000,'
        ' "retention_bytes": 1, "snapshot_part_bytes": 100, "release_version": 1, "old_build": 1,'
        ' "data_per_s": 8.0, "replica_lag_ms": 500, "strict_share": 0.3, "round_robin": true,'
        ' "adopt_after_ms": 1000, "faults": {"disk_slow": 6.27, "kill_all_brokers": 4.0,'
        ' "kill_broker": 0.8, "lower_features": 1.0, "move_voter": 5.06, "newcomer": 0.5,'
        ' "one_way": 1.42, "raise_features": 1.05, "snapshot_cut": 2.82, "stop_broker": 1.0,'
        ' "unregister_broker": 4.37}}',
        id=(
            "a checker took the end of a process that nobody had heard for the death of the one"
            " before it"
        ),
    ),
    pytest.param(
        1795379987844,
        '{"observers": 1, "clients": 1, "topics_share": 0.3, "admin_per_s": 3.0, "unclean": true,'
        ' "unclean_topics": true, "shared_keys": 4, "timeout_s": 10.0, "safety_s":'
        ' 9.274960060021327, "disk_max_ms": 10.0, "election_timeout_ms": 500, "fetch_timeout_ms":'
        ' 500, "session_timeout_ms": 1500, "queue_messages": 64, "snapshot_bytes": 1000,'
        ' "retention_bytes": 1, "data_per_s": 8.0, "replica_lag_ms": 500, "strict_share": 0.7,'
        ' "lag_max_ms": 1500, "exports_per_s": 1.0, "adopt_after_ms": 1000, "work_us": 50.0,'
        ' "faults": {"alter_hostnames": 1.0, "broker_pause": 2.0, "kill_all_brokers": 4.0,'
        ' "kill_broker": 0.8, "newcomer": 0.5, "reset_links": 1.11, "unregister_broker": 2.1}}',
        id="a checker waited for the session of a broker that an operator had unregistered",
    ),
    pytest.param(
        1795379988197,
        '{"direct_clients": 1, "reads_per_s": 0.0, "topics_share": 0.3, "asks_share": 0.9,'
        ' "admin_per_s": 3.0, "shared_keys": 1, "safety_s": 9.0, "delay_min_ms": 0.5,'
        ' "delay_mean_ms": 1.5, "election_timeout_ms": 500, "fetch_timeout_ms": 500,'
        ' "session_timeout_ms": 1500, "queue_messages": 64, "drift": 0.1, "snapshot_bytes": 1000,'
        ' "retention_bytes": 1, "snapshot_part_bytes": 1000, "data_per_s": 5.0, "strict_share":'
        ' 0.3, "exports_per_s": 0.2, "adopt_after_ms": 1000, "faults": {"alter_hostnames": 1.0,'
        ' "broker_away": 2.0, "newcomer": 0.5, "ring": 4.04, "snapshot_cut": 2.66,'
        ' "unregister_broker": 7.66}}',
        id=(
            "a checker waited for the session of a broker that an operator had unregistered, before"
            " its host was mapped by hand"
        ),
    ),
    pytest.param(
        1795379988386,
        '{"voters": 1, "observers": 1, "direct_clients": 1, "unclean": true, "unclean_topics":'
        ' true, "shared_keys": 0, "numbered_share": 1.0, "timeout_s": 10.0, "safety_s": 9.0,'
        ' "disk_max_ms": 10.0, "session_timeout_ms": 1500, "queue_messages": 64, "drift": 0.1,'
        ' "snapshot_bytes": 5000, "retention_bytes": 1, "snapshot_part_bytes": 300, "data_per_s":'
        ' 8.0, "replica_lag_ms": 500, "max_clients": 2, "strict_share": 0.3, "round_robin": true,'
        ' "exports_per_s": 1.0, "adopt_after_ms": 1000, "faults": {"broker_disk_slow": 2.04,'
        ' "brokers_cut": 1.0, "change_voters": 2.7, "disk_full": 2.61, "flapping": 5.29,'
        ' "kill_all_brokers": 4.0, "kill_all_controllers": 4.91, "kill_between_steps": 2.15,'
        ' "kill_broker": 0.8, "kill_mid_write": 3.51, "long_pause": 8.98, "lose_disk": 3.49,'
        ' "lower_features": 2.19, "move_voter": 4.81, "newcomer": 0.5, "one_way": 1.43,'
        ' "raise_features": 3.15, "replace_broker_disk": 8.16, "resign": 5.85, "snapshot_cut":'
        ' 0.811, "split": 6.5}}',
        id="the one controller that brokers are configured with was moved elsewhere",
    ),
    pytest.param(
        15,
        '{"voters": 1, "observers": 2, "clients": 3, "isr_changes_per_s": 10.0, "unclean": true,'
        ' "balance_interval_s": 5, "shared_keys": 2, "numbered_share": 0.0, "timeout_s": 0.3,'
        ' "safety_s": 9.0, "session_timeout_ms": 1500, "queue_messages": 64, "drift": 0.01,'
        ' "snapshot_bytes": 200, "retention_bytes": 1, "snapshot_part_bytes": 300, "max_clients":'
        ' 2, "strict_share": 0.7, "adopt_after_ms": 1000, "work_us": 300.0, "faults":'
        ' {"thought_dead": 1.0558442350900719, "newcomer": 0.5, "broker_away": 1.0, "snapshot_cut":'
        ' 0.3, "kill_broker": 2.0, "long_pause": 8.0}}',
        id=(
            "a heartbeat heard before a controller noticed its own pause was given the pause as"
            " well: a dead broker counted on"
        ),
    ),
    pytest.param(
        1795379987733,
        '{"voters": 5, "clients": 1, "direct_clients": 1, "topics_share": 0.3, "asks_share": 0.9,'
        ' "admin_per_s": 3.0, "unclean": true, "unclean_topics": true, "balance_interval_s": 5,'
        ' "value_bytes": 1000, "shared_keys": 4, "numbered_share": 0.0, "timeout_s": 10.0,'
        ' "safety_s": 9.78971570572349, "delay_min_ms": 0.5, "delay_mean_ms": 1.5, "disk_max_ms":'
        ' 20.0, "session_timeout_ms": 1500, "queue_messages": 64, "drift": 0.1, "snapshot_bytes":'
        ' 50000, "retention_bytes": 5000, "data_per_s": 8.0, "replica_lag_ms": 500, "max_clients":'
        ' 2, "round_robin": true, "adopt_after_ms": 1000, "reserve_bytes": 100000, "faults":'
        ' {"kill_controller": 1.54, "loop_blocked": 0.758, "resign": 2.13, "answers_late": 4.76,'
        ' "conversation_cut": 2.13, "fetches_late": 1.34, "kill_broker": 0.8, "kill_all_brokers":'
        ' 4.0, "brokers_cut": 1.0, "broker_pause": 2.0, "newcomer": 0.5, "broker_away": 1.0}}',
        id="an absent broker's id was given away a session too early after a failover",
    ),
    pytest.param(
        150,
        '{"voters": 5, "observers": 1, "clients": 3, "direct_clients": 1, "topics_share": 0.3,'
        ' "asks_share": 0.9, "admin_per_s": 3.0, "unclean": true, "unclean_topics": true,'
        ' "balance_interval_s": 5, "shared_keys": 4, "numbered_share": 0.0, "timeout_s": 0.5,'
        ' "safety_s": 9.0, "disk_max_ms": 10.0, "session_timeout_ms": 1500, "queue_messages": 64,'
        ' "drift": 0.1, "snapshot_bytes": 1000, "retention_bytes": 1, "recovery": true,'
        ' "data_per_s": 8.0, "replica_lag_ms": 500, "max_clients": 2, "strict_share": 0.7,'
        ' "exports_per_s": 1.0, "adopt_after_ms": 1000, "reserve_bytes": 100000, "faults":'
        ' {"kill_controller": 1.0, "pause": 2.0, "loop_blocked": 3.87, "resign": 2.54, "partition":'
        ' 2.62, "ring": 9.9, "bridge": 6.48, "link_broken": 0.0126, "request_repeated": 0.338,'
        ' "transfer": 1.94, "raise_features": 5.06, "kill_broker": 0.8, "answers_late": 4.58,'
        ' "newcomer": 0.5, "conversation_cut": 2.96, "broker_away": 1.0, "thought_dead":'
        ' 1.2359574506277196, "kill_all_brokers": 4.0, "brokers_cut": 1.0, "broker_pause": 2.0,'
        ' "stop_broker": 0.7, "alter_hostnames": 1.0, "all_disks_low": 7.248612468723051,'
        ' "controllers_away": 0.8814946142677965}}',
        id="a broker that had registered in a log which was taken back asked for ever",
    ),
    pytest.param(
        1795392183082,
        '{"voters": 5, "observers": 1, "brokers": 4, "clients": 3, "topics_share": 0.3,'
        ' "asks_share": 0.5, "admin_per_s": 3.0, "unclean": true, "balance_interval_s": 1,'
        ' "shared_keys": 2, "numbered_share": 1.0, "timeout_s": 0.3, "safety_s": 9.0,'
        ' "election_timeout_ms": 500, "fetch_timeout_ms": 500, "session_timeout_ms": 1500,'
        ' "queue_messages": 64, "snapshot_bytes": 500, "retention_bytes": 1, "data_per_s": 5.0,'
        ' "replica_lag_ms": 500, "exports_per_s": 1.0, "adopt_after_ms": 1000, "reserve_bytes":'
        ' 100000, "faults": {"pause": 1.62, "split": 2.93, "flapping": 8.77, "request_repeated":'
        ' 0.248, "connect_refused": 0.215, "change_voters": 5.72, "transfer": 4.49,'
        ' "broker_behind": 1.6, "answers_late": 3.27, "newcomer": 0.5, "lower_features": 0.7,'
        ' "move_voter": 2.22, "broker_disk_full": 6.02, "broker_bit_flip": 10.4, "stop_broker":'
        ' 0.7, "kill_broker": 4.0, "broker_away": 2.0, "alter_hostnames": 1.0, "all_disks_low":'
        ' 7.133891343647486, "controllers_away": 0.5767022319320633}}',
        id=(
            "a checker took a broker for away whose id a newcomer had got, while it was back"
            " already"
        ),
    ),
    pytest.param(
        1795392183013,
        '{"brokers": 4, "clients": 3, "asks_share": 0.9, "balance_interval_s": 5, "value_bytes":'
        ' 20000, "shared_keys": 2, "numbered_share": 1.0, "timeout_s": 0.3, "safety_s": 9.0,'
        ' "session_timeout_ms": 1500, "queue_messages": 64, "drift": 0.1, "retention_bytes": 1,'
        ' "release_version": 1, "old_build": 1, "data_per_s": 5.0, "replica_lag_ms": 500,'
        ' "adopt_after_ms": 1000, "reserve_bytes": 100000, "faults": {"message_late": 0.00454,'
        ' "connect_refused": 0.0468, "unregister_broker": 3.29, "kill_all_brokers": 10.9,'
        ' "newcomer": 0.5, "broker_away": 2.0, "alter_hostnames": 1.0, "all_disks_low":'
        ' 6.8507678740676585, "controllers_away": 0.44628182440274056, "change_build":'
        ' 0.6056563002127209, "raise_features": 0.596416628282763, "whole_roll": 0.177}}',
        id=(
            "a checker waited for the session of a broker that an operator had unregistered before"
            " its id was missing"
        ),
    ),
    pytest.param(
        1795392972451,
        '{"clients": 1, "topics_share": 0.3, "asks_share": 0.9, "admin_per_s": 3.0, "unclean":'
        ' true, "unclean_topics": true, "balance_interval_s": 5, "value_bytes": 20000,'
        ' "shared_keys": 1, "numbered_share": 1.0, "safety_s": 9.0, "disk_max_ms": 10.0,'
        ' "session_timeout_ms": 1500, "drift": 0.01, "snapshot_bytes": 1000, "retention_bytes":'
        ' 5000, "recovery": true, "data_per_s": 8.0, "replica_lag_ms": 500, "strict_share": 0.7,'
        ' "lag_max_ms": 1500, "adopt_after_ms": 1000, "reserve_bytes": 20000, "work_us": 50.0,'
        ' "faults": {"kill_all_controllers": 10.6, "clock_jump": 3.84, "resign": 4.89, "bridge":'
        ' 6.38, "clog": 4.25, "link_broken": 0.00685, "message_late": 0.00117, "heartbeats_lost":'
        ' 2.93, "burst": 4.58, "conversation_cut": 4.57, "broker_disk_hang": 2.2, "kill_broker":'
        ' 0.8, "kill_all_brokers": 4.0, "brokers_cut": 1.0, "broker_pause": 2.0, "newcomer": 0.5,'
        ' "broker_away": 2.0, "alter_hostnames": 1.0}}',
        id=(
            "a checker wanted an id given by hand whose broker lived on while the newcomer asked,"
            " and was heard of after its death"
        ),
    ),
    pytest.param(
        1795392972549,
        '{"voters": 5, "clients": 3, "reads_per_s": 0.0, "asks_share": 0.9, "unclean": true,'
        ' "value_bytes": 20000, "shared_keys": 2, "timeout_s": 0.3, "safety_s": 7.064163207139517,'
        ' "disk_max_ms": 20.0, "election_timeout_ms": 200, "fetch_timeout_ms": 200,'
        ' "session_timeout_ms": 1500, "snapshot_bytes": 50000, "retention_bytes": 1,'
        ' "snapshot_part_bytes": 100, "recovery": true, "data_per_s": 20.0, "replica_lag_ms": 500,'
        ' "strict_share": 0.3, "round_robin": true, "lag_max_ms": 1500, "reserve_bytes": 100000,'
        ' "faults": {"thought_dead": 1.4932757359185747, "all_disks_low": 7.3885252099086856,'
        ' "controllers_away": 0.46251726986983777, "snapshot_cut": 2.04}}',
        id=(
            "a reply with a part of a snapshot waited for a vote, and the snapshot was dropped"
            " meanwhile"
        ),
    ),
    pytest.param(
        1795397324330,
        '{"voters": 4, "clients": 3, "direct_clients": 1, "topics_share": 0.3, "admin_per_s": 3.0,'
        ' "unclean": true, "numbered_share": 1.0, "timeout_s": 0.3, "safety_s": 9.0,'
        ' "delay_min_ms": 0.5, "delay_mean_ms": 1.5, "disk_max_ms": 20.0, "session_timeout_ms":'
        ' 1500, "queue_messages": 64, "drift": 0.01, "snapshot_bytes": 500, "retention_bytes": 1,'
        ' "release_version": 1, "old_build": 1, "data_per_s": 20.0, "replica_lag_ms": 500,'
        ' "strict_share": 0.3, "round_robin": true, "lag_max_ms": 1500, "exports_per_s": 1.0,'
        ' "adopt_after_ms": 1000, "reserve_bytes": 3000, "work_us": 50.0, "faults":'
        ' {"alter_hostnames": 1.0, "broker_away": 2.0, "change_build": 0.6819466003182975,'
        ' "change_voters": 1.19, "isolate": 2.16, "kill_between_steps": 2.73, "message_late":'
        ' 0.00552, "newcomer": 0.5, "partition": 3.3, "raise_features": 0.5071530700748441,'
        ' "request_repeated": 0.0175, "resign": 2.81, "thought_dead": 1.9120778512709231,'
        ' "transfer": 1.7}}',
        id=(
            "a checker took a broker for gone whose heartbeat was answered after the commit that"
            " unfenced it"
        ),
    ),
    pytest.param(
        1795400954305,
        '{"voters": 5, "observers": 2, "clients": 1, "direct_clients": 1, "reads_per_s": 0.0,'
        ' "admin_per_s": 5.0, "unclean": true, "balance_interval_s": 1, "value_bytes": 1000,'
        ' "shared_keys": 0, "numbered_share": 1.0, "safety_s": 20.48377717617003, "disk_max_ms":'
        ' 20.0, "session_timeout_ms": 1500, "snapshot_bytes": 50000, "release_version": 1,'
        ' "old_build": 1, "data_per_s": 5.0, "replica_lag_ms": 10000, "max_clients": 2,'
        ' "strict_share": 0.3, "exports_per_s": 1.0, "faults": {"clock_jump": 3.44, "isolate":'
        ' 1.41, "clog": 4.49, "reset_links": 1.97, "link_broken": 0.0207, "disk_error": 1.28,'
        ' "change_voters": 1.99, "stranded": 3.35, "answers_late": 2.54, "roll_heartbeats": 4.78,'
        ' "newcomer": 2.6, "broker_refused": 3.06, "broker_alone": 2.89, "broker_disk_error": 3.55,'
        ' "change_build": 0.6634906427501053, "raise_features": 0.5897371824542448, "whole_roll":'
        " 0.224}}",
        id=(
            "a checker took it for a loss that an unclean leader, which lagged, first deleted what"
            " it was to delete"
        ),
    ),
    pytest.param(
        1795400954475,
        '{"voters": 4, "observers": 2, "direct_clients": 1, "topics_share": 0.3, "admin_per_s": 3.0,'
        ' "balance_interval_s": 5, "value_bytes": 1000, "shared_keys": 1, "timeout_s": 0.3, "safety_s": 9.0,'
        ' "session_timeout_ms": 1500, "drift": 0.01, "snapshot_bytes": 500, "retention_bytes": 1, "recovery":'
        ' true, "data_per_s": 5.0, "replica_lag_ms": 500, "strict_share": 0.7, "round_robin": true,'
        ' "exports_per_s": 1.0, "adopt_after_ms": 1000, "reserve_bytes": 100000, "faults":'
        ' {"alter_hostnames": 1.0, "broker_away": 2.0, "disk_error": 1.25, "heartbeats_lost": 4.41,'
        ' "kill_broker": 4.0, "loop_blocked": 0.615, "newcomer": 0.5, "one_way": 3.44, "partition": 1.25,'
        ' "pause": 3.91, "raise_features": 2.65, "resign": 1.77, "split": 5.97, "stop_broker": 0.7,'
        ' "thought_dead": 1.451248176176897, "unregister_broker": 2.01}}',
        id="a checker took a broker for gone whose wish to leave was committed together with a newcomer's id",
    ),
    pytest.param(
        1795406469030,
        '{"observers": 1, "brokers": 4, "clients": 1, "direct_clients": 1, "reads_per_s": 0.0,'
        ' "balance_interval_s": 1, "value_bytes": 1000, "shared_keys": 4, "numbered_share": 0.0, "timeout_s":'
        ' 10.0, "safety_s": 9.0, "disk_max_ms": 20.0, "election_timeout_ms": 500, "fetch_timeout_ms": 500,'
        ' "session_timeout_ms": 1500, "queue_messages": 64, "snapshot_bytes": 5000, "retention_bytes":'
        ' 100000, "data_per_s": 5.0, "round_robin": true, "lag_max_ms": 1500, "adopt_after_ms": 1000,'
        ' "faults": {"broker_away": 1.0, "broker_behind": 1.0, "burst": 2.21, "lower_features": 0.7,'
        ' "message_late": 0.000637, "move_voter": 3.53, "newcomer": 0.5, "replace_broker_disk": 6.21,'
        ' "stop_broker": 0.7, "stranded": 3.07, "twin_broker": 10.2}}',
        id="a checker waited for the session of a broker that had left",
    ),
    pytest.param(
        1795406469206,
        '{"voters": 2, "brokers": 4, "topics_share": 0.3, "unclean": true, "balance_interval_s": 1,'
        ' "value_bytes": 1000, "shared_keys": 4, "numbered_share": 1.0, "safety_s": 9.0, "disk_max_ms": 0.5,'
        ' "election_timeout_ms": 200, "fetch_timeout_ms": 200, "session_timeout_ms": 1500, "snapshot_bytes":'
        ' 500, "retention_bytes": 5000, "snapshot_part_bytes": 100, "release_version": 1, "old_build": 1,'
        ' "data_per_s": 5.0, "replica_lag_ms": 500, "strict_share": 0.3, "exports_per_s": 1.0,'
        ' "adopt_after_ms": 1000, "faults": {"alter_hostnames": 1.0, "broker_away": 1.0, "broker_bit_flip":'
        ' 4.3, "disk_full": 2.15, "disk_hang": 3.14, "disk_slow": 2.2, "kill_between_steps": 0.78, "one_way":'
        ' 1.6, "partition": 1.37, "reset_links": 1.61, "snapshot_cut": 2.61, "thought_dead":'
        ' 1.1101121369402709, "whole_roll": 0.218}}',
        id="a checker read a chunk in which a bit had flipped, and died of it",
    ),
    pytest.param(
        1795415011332,
        '{"observers": 2, "clients": 3, "unclean": true, "unclean_topics": true, "balance_interval_s": 1,'
        ' "shared_keys": 0, "numbered_share": 1.0, "safety_s": 9.0, "delay_min_ms": 0.5, "delay_mean_ms":'
        ' 1.5, "disk_max_ms": 10.0, "election_timeout_ms": 200, "fetch_timeout_ms": 200,'
        ' "session_timeout_ms": 1500, "snapshot_bytes": 200, "retention_bytes": 1, "snapshot_part_bytes":'
        ' 500, "data_per_s": 8.0, "replica_lag_ms": 500, "strict_share": 0.7, "round_robin": true,'
        ' "adopt_after_ms": 1000, "work_us": 300.0, "faults": {"kill_broker": 0.8, "kill_all_brokers": 4.0,'
        ' "brokers_cut": 1.0, "broker_pause": 2.0, "stop_broker": 0.7, "lower_features": 0.7, "newcomer":'
        ' 0.5, "broker_away": 2.0, "alter_hostnames": 1.0, "slow_fetch": 1.2047711749043584}}',
        id="a paused broker whose code takes time did what it had before it when it was killed",
    ),
    pytest.param(
        990143,
        '{"voters": 4, "clients": 3, "reads_per_s": 0.0, "isr_changes_per_s": 10.0, "admin_per_s": 1.0,'
        ' "shared_keys": 2, "numbered_share": 0.0, "timeout_s": 0.5, "safety_s": 9.0, "disk_max_ms": 20.0,'
        ' "session_timeout_ms": 1500, "queue_messages": 64, "snapshot_bytes": 5000, "retention_bytes": 1,'
        ' "snapshot_part_bytes": 100, "auto_join": true, "strict_share": 0.3, "adopt_after_ms": 1000,'
        ' "reserve_bytes": 100000, "faults": {"pause": 2.46, "partition": 3.58, "message_late": 0.0263,'
        ' "lower_features": 0.7, "thought_dead": 1.5699287539902245, "stop_broker": 0.7, "kill_broker": 4.0,'
        ' "newcomer": 0.5, "broker_away": 2.0, "alter_hostnames": 1.0, "all_disks_low": 7.26001536824892,'
        ' "controllers_away": 0.18956026917219865, "snapshot_cut": 1.04}}',
        id="a checker of broker ids took a cause that a downgrade writes in words for a word of the broker",
    ),
    pytest.param(
        990208,
        '{"voters": 4, "clients": 3, "writes_per_s": 2.0, "reads_per_s": 0.0, "topics_share": 0.3,'
        ' "asks_share": 0.9, "admin_per_s": 5.0, "unclean": true, "unclean_topics": true, "value_bytes":'
        ' 1000, "shared_keys": 4, "numbered_share": 0.0, "safety_s": 9.0, "delay_min_ms": 0.5,'
        ' "delay_mean_ms": 1.5, "disk_max_ms": 20.0, "election_timeout_ms": 500, "fetch_timeout_ms": 500,'
        ' "session_timeout_ms": 1500, "queue_messages": 64, "drift": 0.01, "snapshot_bytes": 50000,'
        ' "retention_bytes": 5000, "recovery": true, "data_per_s": 8.0, "replica_lag_ms": 500,'
        ' "adopt_after_ms": 1000, "faults": {"kill_broker": 0.8, "kill_all_brokers": 4.0, "brokers_cut": 1.0,'
        ' "broker_pause": 2.0, "newcomer": 0.5, "broker_away": 2.0, "alter_hostnames": 1.0}}',
        id="a reassignment was cancelled before a recovered log's leader epochs were raised, in the next epoch of the history before",
    ),
    pytest.param(
        740,
        '{"voters": 5, "brokers": 5, "clients": 1, "reads_per_s": 0.0, "topics_share": 0.3, "admin_per_s":'
        ' 1.0, "unclean": true, "balance_interval_s": 5, "shared_keys": 0, "safety_s": 5.0,'
        ' "election_timeout_ms": 200, "fetch_timeout_ms": 200, "session_timeout_ms": 1500, "drift": 0.1,'
        ' "snapshot_bytes": 50000, "retention_bytes": 1, "replica_lag_ms": 500, "reserve_bytes": 20000,'
        ' "authorizer": true, "entries_per_s": 5.0, "callers_per_s": 40.0, "faults": {"long_pause": 11.9,'
        ' "loop_blocked": 0.732, "one_way": 2.46, "bridge": 5.62, "link_broken": 0.00378, "connect_refused":'
        ' 0.0201, "lose_disk": 7.11, "conversation_cut": 4.84, "unregister_broker": 5.05, "alter_hostnames":'
        ' 1.88, "disk_low": 3.01}}',
        id="a guard's refusal of a metadata fetch announced LAO 0",
    ),
    pytest.param(
        316,
        '{"voters": 5, "topics_share": 0.3, "admin_per_s": 3.0, "unclean": true,'
        ' "unclean_topics": true, "value_bytes": 1000, "shared_keys": 1, "numbered_share": 1.0,'
        ' "safety_s": 8.832187071649285, "delay_min_ms": 0.5, "delay_mean_ms": 1.5,'
        ' "disk_max_ms": 10.0, "election_timeout_ms": 200, "fetch_timeout_ms": 200,'
        ' "session_timeout_ms": 1500, "queue_messages": 64, "data_per_s": 8.0, "replica_lag_ms":'
        ' 500, "max_clients": 2, "round_robin": true, "reserve_bytes": 3000, "authorizer": true,'
        ' "entries_per_s": 2.0, "callers_per_s": 10.0, "work_us": 50.0, "faults":'
        ' {"kill_all_controllers": 5.27, "long_pause": 12.8, "partition": 4.94, "split": 2.31,'
        ' "reset_links": 1.35, "change_voters": 1.95, "twin_broker": 5.73, "broker_away": 6.8,'
        ' "broker_refused": 3.84, "kill_broker": 0.8, "kill_all_brokers": 4.0, "brokers_cut":'
        ' 1.0, "broker_pause": 2.0, "stop_broker": 0.7, "removed_campaigns": 5.54}}',
        id=(
            "an observer took the epoch of a removed voter that campaigned on, and every leader"
            " refused it"
        ),
    ),
    pytest.param(
        176,
        '{"voters": 2, "observers": 2, "clients": 1, "writes_per_s": 10.0, "reads_per_s": 0.0,'
        ' "topics_share": 0.0, "asks_share": 0.9, "admin_per_s": 5.0, "unclean": true,'
        ' "balance_interval_s": 1, "value_bytes": 20000, "shared_keys": 1, "numbered_share":'
        ' 0.0, "safety_s": 17.928620240794892, "delay_min_ms": 0.5, "delay_mean_ms": 1.5,'
        ' "session_timeout_ms": 1500, "retention_bytes": 1, "release_version": 1, "old_build":'
        ' 1, "data_per_s": 20.0, "exports_per_s": 1.0, "authorizer": true, "entries_per_s": 2.0,'
        ' "callers_per_s": 10.0, "faults": {"kill_mid_write": 2.35, "partition": 2.51,'
        ' "disk_error": 4.7, "connection_dead": 1.38, "broker_disk_error": 3.49,'
        ' "broker_disk_hang": 4.09, "broker_disk_slow": 6.4, "change_build":'
        ' 0.40720682013799453, "raise_features": 0.5154077754528066, "whole_roll": 0.214}}',
        id=(
            "a checker took it for a word of a failed disk that a broker refused who posed as a"
            " follower"
        ),
    ),
    pytest.param(
        710177,
        '{"voters": 1, "brokers": 4, "clients": 1, "reads_per_s": 0.0, "topics_share": 0.3, '
        '"asks_share": 0.5, "isr_changes_per_s": 10.0, "balance_interval_s": 5, '
        '"shared_keys": 2, "numbered_share": 0.0, "timeout_s": 0.5, "safety_s": 9.0, '
        '"disk_max_ms": 0.5, "session_timeout_ms": 1500, "queue_messages": 64, "drift": '
        '0.01, "snapshot_bytes": 200, "retention_bytes": 1, "snapshot_part_bytes": 300, '
        '"round_robin": true, "lag_max_ms": 1500, "watchers": 2, "adopt_after_ms": 1000, '
        '"reserve_bytes": 100000, "work_us": 300.0, "faults": {"kill_controller": 3.02, '
        '"bit_flip": 9.03, "thought_dead": 1.8609089715343794, "stop_broker": 0.7, '
        '"kill_broker": 4.0, "lower_features": 0.7, "newcomer": 0.5, "broker_away": 1.0, '
        '"all_disks_low": 7.44082119550027, "controllers_away": 0.523933237542444, '
        '"slow_fetch": 1.3716910252096945}}',
        id="every watch began at the first broker of its list, which was dead",
    ),
    pytest.param(
        710236,
        '{"voters": 5, "observers": 1, "brokers": 4, "balance_interval_s": 1, "shared_keys": '
        '2, "numbered_share": 0.0, "timeout_s": 0.5, "safety_s": 6.976951200567588, '
        '"delay_min_ms": 0.5, "delay_mean_ms": 1.5, "election_timeout_ms": 200, '
        '"fetch_timeout_ms": 200, "session_timeout_ms": 1500, "snapshot_bytes": 500, '
        '"retention_bytes": 1, "snapshot_part_bytes": 1000, "data_per_s": 20.0, '
        '"lag_max_ms": 1500, "exports_per_s": 1.0, "watchers": 4, "reserve_bytes": 100000, '
        '"work_us": 300.0, "faults": {"long_pause": 10.2, "loop_blocked": 0.56, '
        '"clock_jump": 7.02, "one_way": 5.83, "split": 6.51, "bridge": 6.61, "flapping": '
        '4.76, "connect_refused": 0.0595, "disk_slow": 3.55, "heartbeats_lost": 2.7, '
        '"newcomer": 4.39, "connection_dead": 2.83, "kill_all_brokers": 8.21, '
        '"broker_pause": 3.16, "fetches_late": 4.45, "broker_disk_error": 5.54, '
        '"broker_disk_full": 4.49, "broker_disk_slow": 2.02, "replace_broker_disk": 3.06, '
        '"thought_dead": 1.330229794941311, "stop_broker": 0.7, "kill_broker": 4.0, '
        '"lower_features": 0.7, "all_disks_low": 7.439310881150453, "controllers_away": '
        '0.5756240298027449, "snapshot_cut": 2.97}}',
        id="every watch began at the first broker of its list, which was dead, beside other faults",
    ),
    pytest.param(
        29,
        '{"brokers": 0, "writes_per_s": 10.0, "reads_per_s": 0.0, "timeout_s": 0.5, "disk_max_ms": '
        '20.0, "election_timeout_ms": 200, "fetch_timeout_ms": 200, "faults": {"kill_controller": '
        '1.0, "kill_all_controllers": 4.0, "kill_mid_write": 1.5, "isolate": 1.5, "partition": '
        '2.0, "one_way": 2.0, "split": 3.0, "resign": 2.0}}',
        id="a follower in doubt took a late question for an answer, and deposed a leader that led",
    ),
    pytest.param(
        760157,
        '{"voters": 1, "observers": 2, "clients": 3, "topics_share": 0.3, "asks_share": 0.5, '
        '"admin_per_s": 3.0, "unclean": true, "balance_interval_s": 5, "shared_keys": 0, '
        '"numbered_share": 1.0, "timeout_s": 10.0, "safety_s": 9.0, "disk_max_ms": 0.5, '
        '"session_timeout_ms": 1500, "queue_messages": 64, "snapshot_bytes": 200, '
        '"retention_bytes": 1, "snapshot_part_bytes": 500, "data_per_s": 5.0, '
        '"replica_lag_ms": 500, "strict_share": 0.3, "watchers": 4, "adopt_after_ms": 1000, '
        '"faults": {"kill_mid_write": 1.6, "long_pause": 16.2, "bridge": 9.95, "link_broken": '
        '0.00609, "message_late": 0.00374, "conversation_cut": 6.41, "kill_all_brokers": 4.8, '
        '"isr_change_late": 0.189, "replace_broker_disk": 2.75, "stop_broker": 0.7, '
        '"kill_broker": 4.0, "lower_features": 0.7, "newcomer": 0.5, "broker_away": 1.0, '
        '"slow_fetch": 1.2239254144079685}}',
        id=(
            "a client looked whether a broker was silent after a span too short to move the clock, for"
            " ever"
        ),
    ),
    pytest.param(
        760190,
        '{"voters": 5, "clients": 3, "admin_per_s": 1.0, "unclean": true, '
        '"balance_interval_s": 5, "value_bytes": 20000, "shared_keys": 2, "numbered_share": '
        '1.0, "safety_s": 9.0, "disk_max_ms": 20.0, "session_timeout_ms": 1500, '
        '"queue_messages": 64, "drift": 0.1, "snapshot_bytes": 5000, "retention_bytes": 5000, '
        '"snapshot_part_bytes": 100, "data_per_s": 5.0, "replica_lag_ms": 500, '
        '"strict_share": 0.7, "round_robin": true, "exports_per_s": 0.2, "adopt_after_ms": '
        '1000, "faults": {"clock_jump": 2.84, "message_late": 0.0178, "disk_hang": 5.65, '
        '"stranded": 7.23, "broker_away": 1.0, "broker_refused": 2.46, "replace_broker_disk": '
        '7.59, "stop_broker": 0.7, "kill_broker": 4.0, "lower_features": 0.7, "newcomer": '
        '0.5, "alter_hostnames": 1.0, "snapshot_cut": 0.621}}',
        id=("a broker began a snapshot anew for each piece that was late, and was never unfenced"),
    ),
    pytest.param(
        773620,
        '{"voters": 5, "topics_share": 0.3, "asks_share": 0.9, "unclean": true, '
        '"balance_interval_s": 5, "value_bytes": 20000, "timeout_s": 0.5, "safety_s": 9.0, '
        '"election_timeout_ms": 500, "fetch_timeout_ms": 500, "session_timeout_ms": 1500, '
        '"queue_messages": 64, "drift": 0.1, "snapshot_bytes": 1000, "retention_bytes": '
        '5000, "snapshot_part_bytes": 300, "data_per_s": 20.0, "replica_lag_ms": 500, '
        '"strict_share": 0.7, "round_robin": true, "exports_per_s": 1.0, "adopt_after_ms": '
        '1000, "reserve_bytes": 100000, "work_us": 300.0, "faults": {"disk_hang": 5.25, '
        '"change_voters": 1.65, "broker_refused": 3.18, "lower_features": 2.16, '
        '"unregister_broker": 3.81, "broker_disk_full": 5.57, "thought_dead": '
        '1.9170284683031464, "newcomer": 0.5, "broker_away": 2.0, "alter_hostnames": 1.0, '
        '"all_disks_low": 6.8388756110662685, "controllers_away": 0.6685103918560976, '
        '"snapshot_cut": 1.18, "removed_campaigns": 6.25}}',
        id=(
            "a voter whose disk hung took a removed one's epochs and was removed then: no operator"
            " gave it an empty disk"
        ),
    ),
    pytest.param(
        1,
        '{"brokers": 2, "clients": 1, "writes_per_s": 4.0, "reads_per_s": 0.0, "safety_s": 2.0,'
        ' "session_timeout_ms": 1500, "recovery": true, "round_robin": true, "watchers": 4}',
        id=(
            "a watch whose log was over ended with its place in it, named as one in the log that"
            " went on"
        ),
    ),
    pytest.param(
        880038,
        '{"clients": 1, "topics_share": 0.3, "admin_per_s": 3.0, "unclean": true, '
        '"balance_interval_s": 5, "shared_keys": 1, "numbered_share": 1.0, "safety_s": 9.0, '
        '"election_timeout_ms": 500, "fetch_timeout_ms": 500, "session_timeout_ms": 1500, '
        '"queue_messages": 64, "snapshot_bytes": 50000, "auto_join": true, "data_per_s": 20.0, '
        '"replica_lag_ms": 10000, "strict_share": 0.7, "round_robin": true, "watchers": 2, '
        '"adopt_after_ms": 1000, "reserve_bytes": 20000, "work_us": 300.0, "faults": '
        '{"one_way": 3.5, "bridge": 8.52, "flapping": 4.25, "clog": 1.44, "overtaken": 5.91, '
        '"disk_error": 1.06, "bit_flip": 4.72, "change_voters": 2.49, "transfer": 1.18, '
        '"kill_broker": 2.08, "heartbeats_lost": 7.69, "burst": 6.19, "disk_low": 2.76, '
        '"broker_alone": 2.06, "isr_change_late": 0.0678, "stop_broker": 0.7, "lower_features": '
        '0.7, "newcomer": 0.5, "broker_away": 1.0, "alter_hostnames": 1.0}}',
        id="an operator had the leader resign for a node that was low on space, which stood back",
    ),
    pytest.param(
        882383,
        '{"observers": 1, "topics_share": 0.3, "admin_per_s": 3.0, "unclean": true, '
        '"balance_interval_s": 1, "numbered_share": 0.0, "safety_s": 9.0, '
        '"election_timeout_ms": 200, "fetch_timeout_ms": 200, "session_timeout_ms": 1500, '
        '"drift": 0.1, "snapshot_bytes": 200, "retention_bytes": 1, "held_bytes": 1, '
        '"snapshot_part_bytes": 300, "recovery": true, "data_per_s": 20.0, '
        '"replica_lag_ms": 500, "data_kept_bytes": 100, "max_clients": 2, "strict_share": '
        '0.7, "lockers": 2, "adopt_after_ms": 1000, "faults": {"broker_away": 2.0, '
        '"kill_all_brokers": 6.52, "kill_between_steps": 1.7, "loop_blocked": 1.05, '
        '"newcomer": 0.5, "one_way": 4.74, "overtaken": 3.81, "slow_fetch": '
        '1.3833380718128945, "stranded": 4.26, "thought_dead": 1.2210716050427979}}',
        id=(
            "records were acknowledged that retention had dropped, with those of another partition"
            " that took their time: no harm, but a check took it for one"
        ),
    ),
    pytest.param(
        883423,
        '{"voters": 5, "observers": 2, "brokers": 4, "clients": 1, "reads_per_s": 0.0, '
        '"topics_share": 0.3, "asks_share": 0.5, "unclean": true, "unclean_topics": true, '
        '"balance_interval_s": 1, "shared_keys": 0, "numbered_share": 1.0, "timeout_s": '
        '0.5, "safety_s": 9.0, "delay_min_ms": 0.5, "delay_mean_ms": 1.5, "disk_max_ms": '
        '10.0, "election_timeout_ms": 500, "fetch_timeout_ms": 500, "session_timeout_ms": '
        '1500, "drift": 0.1, "snapshot_bytes": 200, "retention_bytes": 1, "held_bytes": '
        '1, "snapshot_part_bytes": 300, "release_version": 1, "old_build": 1, '
        '"auto_join": true, "data_per_s": 8.0, "replica_lag_ms": 500, "strict_share": '
        '0.7, "adopt_after_ms": 1000, "reserve_bytes": 100000, "work_us": 50.0, "faults": '
        '{"change_build": 0.7720130863975928, "change_voters": 2.03, "clog": 1.07, '
        '"connect_refused": 0.104, "controllers_away": 0.7271051272004728, '
        '"kill_all_brokers": 4.0, "kill_between_steps": 0.876, "kill_broker": 0.8, '
        '"kill_mid_write": 2.55, "lower_features": 0.7, "message_late": 0.00437, '
        '"newcomer": 0.5, "overtaken": 7.61, "pause": 1.59, "raise_features": '
        '0.5112794416631156, "removed_campaigns": 7.39, "slow_fetch": 1.6849200029818265, '
        '"split": 3.31, "stop_broker": 0.7, "stranded": 3.29, "transfer": 4.57, '
        '"whole_roll": 0.131}}',
        id=(
            "a snapshot had taken the place of a log that diverged, and its process died before it"
            " knew: no harm, but a check took it for one"
        ),
    ),
    pytest.param(
        883457,
        '{"brokers": 4, "clients": 3, "direct_clients": 1, "topics_share": 0.3, '
        '"admin_per_s": 3.0, "balance_interval_s": 5, "shared_keys": 1, "safety_s": 9.0, '
        '"session_timeout_ms": 1500, "queue_messages": 64, "drift": 0.1, '
        '"snapshot_bytes": 200, "retention_bytes": 1, "held_bytes": 1, '
        '"snapshot_part_bytes": 300, "recovery": true, "data_per_s": 5.0, '
        '"replica_lag_ms": 500, "data_kept_bytes": 100, "max_clients": 2, "round_robin": '
        'true, "lag_max_ms": 1500, "keepers": 2, "lockers": 3, "adopt_after_ms": 1000, '
        '"authorizer": true, "entries_per_s": 2.0, "faults": {"bridge": 6.17, '
        '"broker_away": 2.0, "broker_disk_full": 3.95, "broker_disk_hang": 2.53, '
        '"broker_refused": 2.4, "brokers_cut": 4.02, "change_voters": 3.97, '
        '"connect_refused": 0.0582, "heartbeats_lost": 3.1, "kill_between_steps": 1.3, '
        '"kill_broker": 2.13, "move_voter": 4.13, "one_way": 2.36, "overtaken": 2.31, '
        '"partition": 2.95, "resign": 3.05, "slow_fetch": 1.3506342017835737, '
        '"thought_dead": 1.3921190191454718}}',
        id="a partition had dropped all of its records when its quorum was recovered: a check fell",
    ),
    pytest.param(
        883548,
        '{"voters": 5, "clients": 1, "direct_clients": 1, "topics_share": 0.3, '
        '"admin_per_s": 3.0, "balance_interval_s": 1, "value_bytes": 1000, "safety_s": '
        '9.0, "delay_min_ms": 0.5, "delay_mean_ms": 1.5, "session_timeout_ms": 1500, '
        '"queue_messages": 64, "drift": 0.1, "snapshot_bytes": 500, "retention_bytes": 1, '
        '"data_per_s": 20.0, "round_robin": true, "lag_max_ms": 1500, "exports_per_s": '
        '1.0, "adopt_after_ms": 1000, "work_us": 300.0, "faults": {"alter_hostnames": '
        '1.0, "broker_behind": 4.65, "disk_hang": 4.22, "isr_change_late": 0.173, '
        '"kill_broker": 4.0, "kill_mid_write": 2.62, "lower_features": 0.7, "newcomer": '
        '0.5, "stop_broker": 0.7}}',
        id=(
            "a leader whose disk had hung since before the healing resigned while the last reads"
            " were made: the run wanted one at each moment"
        ),
    ),
    pytest.param(
        883853,
        '{"voters": 5, "brokers": 4, "direct_clients": 1, "writes_per_s": 2.0, '
        '"asks_share": 0.5, "admin_per_s": 5.0, "unclean": true, "balance_interval_s": 5, '
        '"shared_keys": 1, "numbered_share": 1.0, "timeout_s": 0.3, "safety_s": 9.0, '
        '"delay_min_ms": 0.5, "delay_mean_ms": 1.5, "disk_max_ms": 0.5, '
        '"election_timeout_ms": 500, "fetch_timeout_ms": 500, "session_timeout_ms": 1500, '
        '"snapshot_bytes": 1000, "retention_bytes": 1, "release_version": 1, "old_build": '
        '4, "data_per_s": 20.0, "replica_lag_ms": 10000, "round_robin": true, "watchers": '
        '2, "adopt_after_ms": 1000, "work_us": 300.0, "faults": {"broker_away": 1.0, '
        '"broker_pause": 4.11, "change_build": 0.5777455411161813, "clog": 1.28, '
        '"disk_slow": 4.17, "flapping": 9.06, "isr_change_late": 0.0775, '
        '"kill_all_brokers": 5.02, "kill_broker": 4.0, "lower_features": 0.7, '
        '"move_voter": 5.61, "newcomer": 0.5, "one_way": 5.26, "raise_features": '
        '0.4591423336686744, "replace_broker_disk": 3.78, "request_repeated": 0.019, '
        '"stop_broker": 0.7, "whole_roll": 0.129}}',
        id=(
            "records were acknowledged, with those of another partition that took their time, when"
            " their replica had moved to its followers: no harm, but a check took it for one"
        ),
    ),
    pytest.param(
        910051,
        '{"voters": 5, "brokers": 4, "clients": 3, "direct_clients": 1, '
        '"topics_share": 0.3, "admin_per_s": 3.0, "unclean": true, "unclean_topics": '
        'true, "shared_keys": 4, "numbered_share": 0.0, "timeout_s": 10.0, '
        '"safety_s": 9.0, "disk_max_ms": 20.0, "election_timeout_ms": 200, '
        '"fetch_timeout_ms": 200, "session_timeout_ms": 1500, "queue_messages": 64, '
        '"drift": 0.01, "snapshot_bytes": 200, "retention_bytes": 1, "held_bytes": 1, '
        '"snapshot_part_bytes": 500, "data_per_s": 8.0, "replica_lag_ms": 500, '
        '"strict_share": 0.3, "watchers": 4, "adopt_after_ms": 1000, "reserve_bytes": '
        '20000, "work_us": 50.0, "faults": {"kill_mid_write": 2.96, '
        '"kill_all_controllers": 9.61, "resign": 1.02, "ring": 5.28, "overtaken": '
        '3.81, "change_voters": 2.28, "transfer": 3.34, "twin_broker": 8.73, '
        '"stop_broker": 0.7, "connection_dead": 1.46, "disk_low": 2.58, '
        '"kill_all_brokers": 4.0, "brokers_cut": 1.0, "broker_disk_error": 1.63, '
        '"kill_broker": 0.8, "broker_pause": 2.0, "lower_features": 0.7, "newcomer": '
        '0.5, "broker_away": 1.0, "alter_hostnames": 1.0, "slow_fetch": '
        '1.3051782914633918, "removed_campaigns": 3.28}}',
        id=(
            "a voter dialed its silent leader where the configuration has other nodes, took their"
            " refusals for the leader's resignation, and campaigned for ever"
        ),
    ),
    pytest.param(
        920065,
        '{"observers": 1, "brokers": 0, "direct_clients": 1, "reads_per_s": 0.0, '
        '"topics_share": 0.3, "shared_keys": 2, "numbered_share": 1.0, "timeout_s": '
        '10.0, "safety_s": 5.81647669425992, "queue_messages": 64, "snapshot_bytes": '
        '500, "retention_bytes": 1, "release_version": 1, "old_build": 1, '
        '"strict_share": 0.7, "exports_per_s": 1.0, "watchers": 4, "work_us": 50.0, '
        '"faults": {"bridge": 11.4, "change_build": 0.5928271817907851, '
        '"connect_refused": 0.141, "kill_mid_write": 4.73, "loop_blocked": 1.83, '
        '"removed_campaigns": 3.48, "whole_roll": 0.152}}',
        id=(
            "an observer asked another node, at an address of the configuration, for its leader's"
            " log for ever: it asks for no votes, and heard no id"
        ),
    ),
    pytest.param(
        920295,
        '{"clients": 3, "topics_share": 0.3, "admin_per_s": 3.0, "shared_keys": 2, '
        '"numbered_share": 0.0, "timeout_s": 0.5, "safety_s": 9.0, "session_timeout_ms": 1500, '
        '"queue_messages": 64, "snapshot_bytes": 1000, "retention_bytes": 100000, "data_per_s": '
        '20.0, "replica_lag_ms": 10000, "max_clients": 2, "adopt_after_ms": 1000, '
        '"reserve_bytes": 100000, "faults": {"broker_disk_error": 2.27, "clocks_ahead": 5.4, '
        '"loop_blocked": 0.775}}',
        id=(
            "a timestamp of which no batch was made counted as the log's time, which then went"
            " back by less than it may stand still"
        ),
    ),
]


IN_TIERS = [
    one if index % 6 == 0 else one._replace(marks=[pytest.mark.nightly])
    for index, one in enumerate(reversed(REGRESSIONS))
]
"""One of six is in the gate, the newest among them."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    silence()
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize(("seed", "config"), IN_TIERS)
def test_what_failed_once_holds(seed: int, config: str) -> None:
    outcome = run_swarm(seed, SwarmConfig.from_json(config))
    assert outcome.failure is None
