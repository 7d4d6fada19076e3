------------------------------ MODULE Quorum ------------------------------
(***************************************************************************)
(* The quorum: pull-based Raft as raftlog/quorum has it. A step of this     *)
(* module is what one node does at one event, by the names of the code:     *)
(* node.py, campaign.py, follower.py, fetcher.py, leader.py, log_state.py,  *)
(* voters.py, messages.py. docs/specification.md explains how to read it,   *)
(* what is left out, and why that is safe.                                  *)
(*                                                                          *)
(* There is no time: a timeout is a step that a node may take at any        *)
(* moment. A process that is down is one that takes no steps; its crash and *)
(* its next start are one step, Restart.                                    *)
(*                                                                          *)
(* Messages. A request for a vote stays in `asks` as long as a node may     *)
(* still answer it, for its sender may have lost the log that it tells of;  *)
(* an answer stays in `grants`. A Fetch is answered and the answer used in  *)
(* one step: between the two nobody else looks at the follower, and what    *)
(* the follower itself does makes it drop the answer. `acked` is what the   *)
(* leader knows of the Fetches that have reached it.                        *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
  Nodes,           \* all replicas, voters or not
  Configured,      \* the voter set until the log names one
  Nobody,          \* stands for "no node"
  Begin,           \* "cold", "calm" or "two tails", see Init
  MaxEpoch,        \* epochs; each begins with a campaign
  MaxWrites,       \* records that clients propose
  MaxRestarts,     \* crashes, each with or without the tail that was not flushed
  MaxChanges,      \* voter sets that are proposed
  MaxSnapshots,    \* snapshots that nodes make
  MaxResignations, \* leaders that resign
  MaxDamages,      \* disks that are damaged; then nodes outside Configured are directories to come
  MaxSetBacks,     \* directories that are put back to an earlier state
  PreVotes,        \* whether a campaign begins with pre-votes; else any node may campaign
  SlowVotes,       \* whether a vote for another node is written in a step of its own
  Off              \* the rule that is switched off; "none" in the protocol itself

VARIABLES
  role,       \* [node -> its role, but that a node which does not take part is an observer];
              \* "none": this directory does not exist yet; "gone": no more; "set back": it was put
              \* back to an earlier state, and the others know that
  vote,       \* [node -> [e |-> its epoch, v |-> who has its vote]]: node.vote
  dvote,      \* [node -> the vote on its disk]: node.durable_vote
  leader,     \* [node -> the leader of its epoch, as far as it knows]: node.leader_id
  hears,      \* [node -> whether the leader has answered it lately]: role.hears_leader
  log,        \* [node -> its log, a sequence of entries]
  disk,       \* [node -> its durable log]
  hw,         \* [node -> its high watermark]
  start,      \* [node -> offset at which its log begins; what is below is in the snapshot]
  snap,       \* [node -> end of its newest snapshot, 0: none]
  installing, \* [node -> content of the snapshot that is about to replace its log; <<>>: none]
  acked,      \* [leader -> [node -> offset of its newest Fetch]]: progress
  asks,       \* requests for votes and pre-votes that may still be answered
  grants,     \* votes and pre-votes that may still be counted
  led,        \* [epoch -> [n |-> its leader, start |-> where it began, times |-> elections won]]
  committed,  \* the longest log that was ever committed
  spent       \* how often the world has used what the constants limit

election  == <<role, vote, dvote, leader, hears>>
logs      == <<log, disk, hw>>
snapshots == <<start, snap, installing>>
messages  == <<asks, grants>>
history   == <<led, committed>>
vars == <<election, logs, snapshots, messages, acked, history, spent>>

Epochs == 1..MaxEpoch
Max(x, y) == IF x > y THEN x ELSE y
Min(x, y) == IF x < y THEN x ELSE y
Least(S) == CHOOSE x \in S : \A y \in S : x <= y
Greatest(S) == CHOOSE x \in S : \A y \in S : y <= x
Majority(some, all) == 2 * Cardinality(some \cap all) > Cardinality(all)

-----------------------------------------------------------------------------
(* Logs. An entry has the epoch e of its writer and, if it is a VotersRecord, the set of voters; the
   value of any other record does not matter, as (offset, epoch) names one record. Offsets of ends
   are counts of entries. *)

Record(e) == [e |-> e, set |-> {}]
EpochAt(l, n) == IF n = 0 THEN 0 ELSE l[n].e
LastEpoch(l) == EpochAt(l, Len(l))
Prefix(a, b) == Len(a) <= Len(b) /\ SubSeq(b, 1, Len(a)) = a
Common(a, b) ==   \* how long two logs agree
  LET end == Min(Len(a), Len(b))
      differ == {n \in 1..end : a[n] # b[n]}
  IN IF differ = {} THEN end ELSE Least(differ) - 1

(* What is durable of the log of n: LogEnds.flushed_end. *)
Flushed(n) == IF disk[n] = log[n] THEN Len(log[n]) ELSE Common(disk[n], log[n])

(* LogEnds.is_up_to_date: Raft 5.4.1. *)
UpToDate(last, end, l) == last > LastEpoch(l) \/ (last = LastEpoch(l) /\ end >= Len(l))

(* EpochIndex.end_offset_for_epoch: the highest epoch that is not above e, and its end. *)
EndOffsetForEpoch(l, e) ==
  LET end == Cardinality({n \in 1..Len(l) : l[n].e <= e}) IN [e |-> EpochAt(l, end), end |-> end]

(* LogEnds.divergence: a log that ends at `end` in epoch `last` is not a prefix of l. *)
Diverges(l, end, last) ==
  LET p == EndOffsetForEpoch(l, last)
  IN Off # "logs are compared" /\ end > 0 /\ (p.e # last \/ end > p.end)

(* LogEnds.truncation_point: where l is cut if the leader's answer is p. *)
TruncationPoint(l, p) ==
  LET q == EndOffsetForEpoch(l, p.e) IN IF q.e = p.e THEN Min(p.end, q.end) ELSE q.end

(* LogState.snapshot_for: l begins too late for a log that ends at `end` in epoch `last`. *)
NeedsSnapshot(l, begins, snapshot, end, last) ==
  /\ snapshot > 0
  /\ \/ end = 0 \/ end < begins \/ last < EpochAt(l, begins)
     \/ (end = begins /\ last # EpochAt(l, begins))

(* Voter sets (VoterHistory): the last one in the log is in force as soon as it is appended. A node
   that was removed takes part until it knows that its removal is committed. *)
SetsAt(l) == {n \in 1..Len(l) : l[n].set # {}}
SetAt(l) == LET sets == SetsAt(l) IN IF sets = {} THEN 0 ELSE Greatest(sets)
SetOf(l, n) == IF n = 0 THEN Configured ELSE l[n].set
Before(l) == SetOf(l, SetAt(SubSeq(l, 1, SetAt(l) - 1)))
VotersIn(l, w) ==
  IF Off = "a set is in force when appended" THEN SetOf(l, SetAt(SubSeq(l, 1, w)))
  ELSE SetOf(l, SetAt(l))
Voters(n) == VotersIn(log[n], hw[n])
TakesPart(n, l, w) ==
  \/ n \in VotersIn(l, w)
  \/ (SetAt(l) > w /\ n \in Before(l))
Participates(n) == TakesPart(n, log[n], hw[n])
Exists(n) == role[n] \notin {"none", "gone", "set back"}
RoleName(n) ==
  IF Participates(n) \/ role[n] \in {"leader", "resigned"} THEN role[n] ELSE "observer"

-----------------------------------------------------------------------------
(* Epochs and votes. *)

Ballot(e, v) == [e |-> e, v |-> v]
SetVote(n, e, v) ==
  /\ vote' = [vote EXCEPT ![n] = Ballot(e, v)]
  /\ dvote' = IF SlowVotes THEN dvote ELSE [dvote EXCEPT ![n] = Ballot(e, v)]
Become(n, r, l) ==
  /\ role' = [role EXCEPT ![n] = r]
  /\ leader' = [leader EXCEPT ![n] = l]
  /\ hears' = [hears EXCEPT ![n] = FALSE]
(* A leader that leads no more forgets what it knew of the others. *)
Forget(n) ==
  acked' = IF role[n] = "leader" THEN [acked EXCEPT ![n] = [f \in Nodes |-> 0]] ELSE acked

(* The requests that some node may still answer, when votes are w. *)
Answerable(a, w) ==
  \E v \in a.to : \/ w[v].e < a.e
                  \/ w[v].e = a.e /\ (a.pre \/ w[v].v = Nobody \/ Off = "one vote an epoch" \/ (w[v].v = a.n /\ w[a.n].e = a.e))
Remaining(all, w) == {a \in all : Answerable(a, w)}
(* The answers that n may still count: those to its present process and role. *)
WithoutTo(n) == IF Off = "late votes are dropped" THEN grants ELSE {g \in grants : g.n # n}
Ask(n, e, pre) ==
  [n |-> n, e |-> e, last |-> LastEpoch(log[n]), end |-> Len(log[n]), pre |-> pre,
   to |-> Voters(n) \ {n}]
(* An answer finds only the process that asked; its log stands for that here. *)
Yes(v, a) == [v |-> v, n |-> a.n, e |-> a.e, pre |-> a.pre, last |-> a.last, end |-> a.end]
Asked(n, g) ==
  \/ g.last = LastEpoch(log[n]) /\ g.end = Len(log[n])
  \/ Off = "an answer finds the process that asked"
Leads(l, e) == l # Nobody /\ role[l] = "leader" /\ vote[l].e = e
Opened == Greatest({vote[n].e : n \in Nodes} \cup {a.e : a \in asks})

(* Cold: empty disks. Calm: a node leads epoch 1, and the others have all of its log. A set of its
   own: that leader was cut off with a voter set that nobody else has, and another leads epoch 2. Two
   tails: a node led epoch 1 and another one epoch 2, and what each wrote nobody else has. *)
Init ==
  \E one \in Configured : \E two \in Configured \ {one} :
    LET calm == Begin = "calm"
        own == Begin = "a set of its own"
        tails == Begin = "two tails"
        in(n) == n \in Configured
        at2(n) == ((own /\ in(n)) \/ tails) /\ n # one      \* has heard of epoch 2
        leads(n) == (calm /\ n = one) \/ (own /\ n \in {one, two})
        common == IF tails THEN <<>> ELSE <<Record(1)>>
        None == [n |-> Nobody, start |-> 0, times |-> 0]
    IN
    /\ log = [n \in Nodes |->
         IF Begin = "cold" \/ ~in(n) THEN <<>>
         ELSE IF n = one /\ own THEN <<Record(1), [e |-> 1, set |-> Nodes]>>
         ELSE IF n = one THEN <<Record(1)>>
         ELSE IF n = two /\ ~calm THEN Append(common, Record(2)) ELSE common]
    /\ vote = [n \in Nodes |->
         IF at2(n) THEN Ballot(2, two)
         ELSE IF Begin # "cold" /\ in(n) THEN Ballot(1, IF n = one THEN one ELSE Nobody)
         ELSE Ballot(0, Nobody)]
    /\ role = [n \in Nodes |->
         IF leads(n) THEN "leader" ELSE IF tails /\ n \in {one, two} THEN "resigned"
         ELSE IF calm /\ in(n) THEN "follower"
         ELSE IF ~in(n) /\ MaxDamages > 0 THEN "none" ELSE "unattached"]
    /\ leader = [n \in Nodes |->
         IF leads(n) THEN n ELSE IF calm /\ in(n) THEN one ELSE Nobody]
    /\ hw = [n \in Nodes |-> IF (calm \/ own) /\ in(n) THEN 1 ELSE 0]
    /\ acked = [l \in Nodes |-> [n \in Nodes |-> IF calm /\ in(n) /\ l = one /\ n # one THEN 1 ELSE 0]]
    /\ led = [e \in Epochs |->
         IF Begin # "cold" /\ e = 1 THEN [None EXCEPT !.n = one, !.times = 1]
         ELSE IF (own \/ tails) /\ e = 2 THEN [n |-> two, start |-> Len(common), times |-> 1] ELSE None]
    /\ committed = IF calm \/ own THEN <<Record(1)>> ELSE <<>>
    /\ dvote = vote /\ disk = log
    /\ hears = [n \in Nodes |-> PreVotes /\ role[n] = "follower"]
    /\ start = [n \in Nodes |-> 0] /\ snap = start /\ installing = [n \in Nodes |-> <<>>]
    /\ asks = {} /\ grants = {}
    /\ spent = [writes |-> 0, restarts |-> 0, changes |-> 0, snapshots |-> 0, resignations |-> 0,
                damages |-> 0, setbacks |-> 0]

(* A message names a higher epoch (`learn` with no leader): the node enters it, and knows no leader. *)
Learn(n, e) ==
  /\ e > vote[n].e /\ Exists(n)
  /\ SetVote(n, e, Nobody)
  /\ Become(n, "unattached", Nobody) /\ Forget(n)
  /\ grants' = WithoutTo(n) /\ asks' = Remaining(asks, vote')
  /\ UNCHANGED <<logs, snapshots, history, spent>>

(* A message names the leader of this epoch, or of a higher one (`learn`, become_follower): a
   BeginQuorumEpoch of the leader, or the answer of any node. *)
Follow(n, l, e) ==
  /\ l # n /\ led[e].n = l
  /\ e > vote[n].e \/ (e = vote[n].e /\ leader[n] = Nobody /\ role[n] # "leader")
  /\ IF e > vote[n].e THEN SetVote(n, e, Nobody) ELSE UNCHANGED <<vote, dvote>>
  /\ Become(n, "follower", l) /\ Forget(n)
  /\ grants' = WithoutTo(n) /\ asks' = Remaining(asks, vote')
  /\ UNCHANGED <<logs, snapshots, history, spent>>

(* An election timer or the fetch timer ends, or the leader is proven gone: the node asks for
   pre-votes (Prospective). It changes nothing durable, and keeps the leader that it knows and its
   vote. *)
TimeOut(n) ==
  /\ PreVotes /\ Participates(n)
  /\ role[n] \in {"unattached", "follower", "candidate", "resigned"}
  /\ Become(n, "prospective", leader[n])
  /\ IF Off = "a pre-vote keeps the vote" THEN SetVote(n, vote[n].e, Nobody)
     ELSE UNCHANGED <<vote, dvote>>
  /\ asks' = Remaining(asks \cup {Ask(n, vote[n].e, TRUE)}, vote')
  /\ grants' = {g \in grants : g.n # n \/ g.pre}
  /\ UNCHANGED <<logs, snapshots, acked, history, spent>>

(* The pre-vote is lost, or decides nothing in time. *)
FallBack(n) ==
  /\ role[n] = "prospective"
  /\ Become(n, IF leader[n] = Nobody THEN "unattached" ELSE "follower", leader[n])
  /\ UNCHANGED <<vote, dvote, logs, snapshots, acked, messages, history, spent>>

(* A node grants a pre-vote (`_grants`): it would vote for that log, and hears no leader. *)
GrantPreVote(v, a) ==
  /\ a \in asks /\ a.pre /\ v \in a.to /\ a.e = vote[v].e
  /\ UpToDate(a.last, a.end, log[v])
  /\ role[v] # "leader" /\ Exists(v)
  /\ ~hears[v] \/ Off = "who hears the leader refuses"
  /\ role[v] # "prospective" \/ Off # "prospective voters grant"
  /\ grants' = grants \cup {Yes(v, a)}
  /\ UNCHANGED <<election, logs, snapshots, acked, asks, history, spent>>

(* The log of n is as complete as one that ends so. *)
AtLeast(n, last, end) == LastEpoch(log[n]) > last \/ (LastEpoch(log[n]) = last /\ Len(log[n]) >= end)

(* Who would vote for n: those that have granted the pre-vote; those that ask themselves, with a log
   that is no longer; and the leader that has resigned for it. *)
Supporters(n) ==
  LET same(m) == m.pre /\ m.e = vote[n].e /\ AtLeast(n, m.last, m.end)
  IN {n} \cup {g.v : g \in {g \in grants : g.n = n /\ same(g)}}
         \cup {a.n : a \in {a \in asks : n \in a.to /\ same(a) /\ Off # "prospective voters grant"}}
         \cup {v \in {leader[n]} \cap Nodes : ~Leads(v, vote[n].e)}

(* become_candidate: the next epoch, with a vote for itself. It asks for votes at once: to ask is no
   vote, and it counts its own only when that is durable. Without pre-votes a leader resigns in the
   same step. *)
Campaign(n, e) ==
  /\ Exists(n) /\ Participates(n) /\ installing[n] = <<>> /\ e > vote[n].e /\ e <= MaxEpoch
  /\ PreVotes => role[n] = "prospective" /\ Majority(Supporters(n), Voters(n))
  /\ IF role[n] # "leader" THEN UNCHANGED spent
     ELSE spent.resignations < MaxResignations /\ spent' = [spent EXCEPT !.resignations = @ + 1]
  /\ vote' = [vote EXCEPT ![n] = Ballot(e, n)]
  /\ UNCHANGED dvote
  /\ Become(n, "candidate", Nobody) /\ Forget(n)
  /\ grants' = WithoutTo(n)
  /\ asks' = Remaining(asks \cup {Ask(n, e, FALSE)}, vote')
  /\ UNCHANGED <<logs, snapshots, history>>

(* VotePersisted. *)
Persist(n, w) ==
  /\ dvote[n] # w /\ dvote[n].e <= w.e
  /\ w = vote[n] \/ (SlowVotes /\ w.e <= vote[n].e)
  /\ dvote' = [dvote EXCEPT ![n] = w]
  /\ UNCHANGED <<role, vote, leader, hears, logs, snapshots, acked, messages, history, spent>>

(* A node grants its vote (`_grants`): one in an epoch, to a log that is as complete as its own, and
   only if it neither leads nor follows nor campaigns. A candidate that repeats its request may have
   lost a part of its log since: the log is compared again. *)
Grant(v, a) ==
  /\ a \in asks /\ ~a.pre /\ v \in a.to /\ a.e >= vote[v].e /\ Exists(v)
  /\ Yes(v, a) \notin grants
  /\ LET complete == UpToDate(a.last, a.end, log[v])
         free == /\ RoleName(v) \in {"unattached", "prospective", "observer"}
                 /\ leader[v] = Nobody /\ (vote[v].v = Nobody \/ Off = "one vote an epoch")
     IN \/ /\ a.e > vote[v].e \/ free
           /\ complete \/ Off = "votes only for a complete log"
           /\ SetVote(v, a.e, a.n)
           /\ Become(v, "unattached", Nobody) /\ Forget(v)
        \/ /\ vote[v] = Ballot(a.e, a.n) /\ RoleName(v) \in {"unattached", "prospective", "observer"}
           /\ complete \/ Off = "votes only for a complete log" \/ Off = "a repeated request is checked"
           /\ UNCHANGED <<election, acked>>
  /\ grants' = (IF a.e > vote[v].e THEN WithoutTo(v) ELSE grants) \cup {Yes(v, a)}
  /\ asks' = Remaining(asks, vote')
  /\ UNCHANGED <<logs, snapshots, history, spent>>

(* A grant is held back by the shell until it is durable, and is lost in a crash before. *)
Told(g) == Off = "votes are durable before they are told" \/ g.pre \/ dvote[g.v].e > g.e
           \/ (dvote[g.v].e = g.e /\ dvote[g.v].v # Nobody)
Granted(n) ==
  {g.v : g \in {g \in grants : g.n = n /\ ~g.pre /\ Told(g) /\ Asked(n, g)
                               /\ (g.e = vote[n].e \/ Off = "late votes are dropped")}}

(* become_leader: a majority has voted for it, and its own vote is durable. Its first record is
   appended at once: a LeaderChange. *)
Elected(n) ==
  /\ role[n] = "candidate" /\ Participates(n)
  /\ Off = "a majority elects" \/ Majority(Granted(n) \cup {n}, Voters(n))
TakeOffice(n) ==
  LET e == vote[n].e IN
  /\ Become(n, "leader", n)
  /\ acked' = [acked EXCEPT ![n] = [f \in Nodes |-> 0]]
  /\ led' = [led EXCEPT ![e] = [n |-> n, start |-> Len(log[n]), times |-> @.times + 1]]
  /\ grants' = WithoutTo(n)
  /\ UNCHANGED <<vote, disk, hw, snapshots, committed, spent>>
Lead(n) == TakeOffice(n) /\ log' = [log EXCEPT ![n] = Append(@, Record(vote[n].e))]
Win(n) == Elected(n) /\ dvote[n] = vote[n] /\ Lead(n) /\ UNCHANGED <<dvote, asks>>

(* A leader resigns: no majority fetches from it (check-quorum), its disk hangs, it is stopped, or it
   hands over. It takes no more part in its epoch. *)
Resign(n) ==
  /\ role[n] = "leader" /\ spent.resignations < MaxResignations
  /\ Become(n, "resigned", Nobody) /\ Forget(n)
  /\ spent' = [spent EXCEPT !.resignations = @ + 1]
  /\ UNCHANGED <<vote, dvote, logs, snapshots, messages, history>>

(* The follower expects an election: its leader has resigned or is gone. *)
Doubt(n) ==
  /\ hears[n]
  /\ hears' = [hears EXCEPT ![n] = FALSE]
  /\ UNCHANGED <<role, vote, dvote, leader, logs, snapshots, messages, acked, history, spent>>

-----------------------------------------------------------------------------
(* The log. *)

Extend(n, entry) ==
  /\ log' = [log EXCEPT ![n] = Append(@, entry)]
  /\ UNCHANGED <<election, disk, hw, snapshots, messages, acked, history>>

(* Proposed: the leader appends, and sends before it has flushed. *)
Write(n) ==
  /\ role[n] = "leader" /\ spent.writes < MaxWrites
  /\ Extend(n, Record(vote[n].e))
  /\ spent' = [spent EXCEPT !.writes = @ + 1]

(* The leader appends a VotersRecord (voters_refusal): one change at a time, of one replica, and only
   when a record of its own epoch is committed. *)
MayChangeVoters(n) ==
  /\ hw[n] > led[vote[n].e].start \/ Off = "a change waits for the epoch's first commit"
  /\ SetAt(log[n]) <= hw[n] \/ Off = "one change at a time"
ChangeVoters(n, set) ==
  /\ role[n] = "leader" /\ spent.changes < MaxChanges /\ set # {}
  /\ \A m \in set \ Voters(n) : Exists(m)
  /\ MayChangeVoters(n)
  /\ \/ Cardinality((set \ Voters(n)) \cup (Voters(n) \ set)) = 1
     \/ (Off = "a change of one replica" /\ set # Voters(n))
  /\ Extend(n, [e |-> vote[n].e, set |-> set])
  /\ spent' = [spent EXCEPT !.changes = @ + 1]

(* Flushed: the log up to n entries is durable. *)
Flush(f, n) ==
  /\ disk[f] # SubSeq(log[f], 1, n)
  /\ n >= Flushed(f)
  /\ disk' = [disk EXCEPT ![f] = SubSeq(log[f], 1, n)]
  /\ UNCHANGED <<election, log, hw, snapshots, messages, acked, history, spent>>

(* Fetcher.pump: a Fetch leaves when all of the log is flushed, as its offset is the
   acknowledgement; and not before the epoch is durable. *)
MayFetch(f) ==
  /\ role[f] \notin {"leader", "candidate"}
  /\ Flushed(f) = Len(log[f]) \/ Off = "flush before acknowledge"
  /\ installing[f] = <<>>
  /\ dvote[f].e = vote[f].e

(* Leader.on_fetch: a Fetch at an offset that continues the leader's log acknowledges it. *)
Serves(l, end, last) ==
  /\ ~NeedsSnapshot(log[l], start[l], snap[l], end, last)
  /\ ~Diverges(log[l], end, last)
Acknowledge(l, f, end) ==
  /\ acked' = [acked EXCEPT ![l][f] = end]
  /\ UNCHANGED <<election, logs, snapshots, messages, history, spent>>
Fetch(f) ==
  LET l == leader[f] IN
  /\ role[f] = "follower" /\ MayFetch(f) /\ Leads(l, vote[f].e)
  /\ Serves(l, Len(log[f]), LastEpoch(log[f]))
  /\ acked[l][f] # Len(log[f])
  /\ Acknowledge(l, f, Len(log[f]))

(* Fetcher._append: the answer has records of the leader's log, up to n, and its high watermark. *)
Fetched(f, source, top, n) ==
  /\ n >= Len(log[f])
  /\ log' = [log EXCEPT ![f] = @ \o SubSeq(source, Len(@) + 1, n)]
  /\ hw' = [hw EXCEPT ![f] = Max(@, IF Off = "the high watermark is in the log" THEN top ELSE Min(n, top))]
  /\ hears' = [hears EXCEPT ![f] = PreVotes]
  /\ UNCHANGED <<role, vote, dvote, leader, disk, snapshots, messages, acked, history, spent>>
Answer(f) ==
  LET l == leader[f] IN
  /\ role[f] = "follower" /\ MayFetch(f) /\ Leads(l, vote[f].e)
  /\ acked[l][f] = Len(log[f]) /\ Serves(l, Len(log[f]), LastEpoch(log[f]))
  /\ \E n \in Len(log[f])..Len(log[l]) : Fetched(f, log[l], hw[l], n)
  /\ <<log, hw, hears>>' # <<log, hw, hears>>

(* Fetcher._truncate: the leader's answer is where its own log has the follower's last epoch end. The
   follower never drops what is committed. *)
Truncated(f, p) ==
  LET n == Max(start[f], TruncationPoint(log[f], p)) IN
  /\ n < Len(log[f])
  /\ n >= hw[f]
  /\ log' = [log EXCEPT ![f] = SubSeq(@, 1, n)]
  /\ hears' = [hears EXCEPT ![f] = PreVotes]
  /\ UNCHANGED <<role, vote, dvote, leader, disk, hw, snapshots, messages, acked, history, spent>>
Truncate(f) ==
  LET l == leader[f] IN
  /\ role[f] = "follower" /\ MayFetch(f) /\ Leads(l, vote[f].e)
  /\ ~NeedsSnapshot(log[l], start[l], snap[l], Len(log[f]), LastEpoch(log[f]))
  /\ Diverges(log[l], Len(log[f]), LastEpoch(log[f]))
  /\ Truncated(f, EndOffsetForEpoch(log[l], LastEpoch(log[f])))

(* Leader._commit: a majority has flushed the log up to n, the leader counted at its flushed end and
   only if it is a voter, and it covers a record of its own epoch (Raft 5.4.2). *)
MayCommit(l, n, own) ==
  LET holders == {v \in Nodes \ {l} : acked[l][v] >= n} \cup (IF own THEN {l} ELSE {}) IN
  /\ n > hw[l] /\ n <= Len(log[l])
  /\ n > led[vote[l].e].start \/ Off = "a record of its own epoch"
  /\ IF Off = "a majority commits" THEN holders # {}
     ELSE IF Off = "only voters count" THEN 2 * Cardinality(holders) > Cardinality(Voters(l))
     ELSE Majority(holders, Voters(l))
Commits(l, n, own) ==
  /\ role[l] = "leader" /\ MayCommit(l, n, own)
  /\ hw' = [hw EXCEPT ![l] = n]
  /\ committed' = IF Len(committed) < n /\ Prefix(committed, log[l]) THEN SubSeq(log[l], 1, n) ELSE committed
  /\ IF TakesPart(l, log[l], n) THEN UNCHANGED <<election, acked>>
     ELSE Become(l, "resigned", Nobody) /\ Forget(l) /\ UNCHANGED <<vote, dvote>>
  /\ UNCHANGED <<log, snapshots, messages, led, spent>>
Commit(l, n) == Commits(l, n, Flushed(l) >= n) /\ UNCHANGED disk

-----------------------------------------------------------------------------
(* Snapshots. *)

(* SnapshotFrozen: a node has made a snapshot of what it has committed; it is durable. *)
Freeze(n, end) ==
  /\ end > snap[n]
  /\ end <= hw[n] \/ (Off = "a snapshot of what is committed" /\ end <= Len(log[n]))
  /\ spent.snapshots < MaxSnapshots
  /\ snap' = [snap EXCEPT ![n] = end]
  /\ spent' = [spent EXCEPT !.snapshots = @ + 1]
  /\ UNCHANGED <<election, logs, start, installing, messages, acked, history>>

(* LogStartAdvanced: the log below the snapshot is dropped. *)
DropLog(n) ==
  /\ start[n] < snap[n]
  /\ start' = [start EXCEPT ![n] = snap[n]]
  /\ disk' = IF Flushed(n) >= snap[n] THEN disk ELSE [disk EXCEPT ![n] = SubSeq(log[n], 1, snap[n])]
  /\ UNCHANGED <<election, log, hw, snap, installing, messages, acked, history, spent>>

(* All parts of the leader's snapshot have arrived (SnapshotFetcher): the disk is about to replace the
   log by it. What is committed here is never taken back. *)
SnapshotFetched(f, content) ==
  /\ Len(content) > hw[f]
  /\ disk[f] = log[f]
  /\ installing' = [installing EXCEPT ![f] = content]
  /\ hears' = [hears EXCEPT ![f] = PreVotes]
  /\ UNCHANGED <<role, vote, dvote, leader, logs, start, snap, messages, acked, history, spent>>
FetchSnapshot(f) ==
  LET l == leader[f] IN
  /\ role[f] = "follower" /\ MayFetch(f) /\ Leads(l, vote[f].e)
  /\ NeedsSnapshot(log[l], start[l], snap[l], Len(log[f]), LastEpoch(log[f]))
  /\ SnapshotFetched(f, SubSeq(log[l], 1, snap[l]))

(* SnapshotStored: it is durable, and the log begins anew at its end. *)
Install(n, content) ==
  /\ log' = [log EXCEPT ![n] = content] /\ disk' = [disk EXCEPT ![n] = content]
  /\ hw' = [hw EXCEPT ![n] = Len(content)]
  /\ start' = [start EXCEPT ![n] = Len(content)] /\ snap' = [snap EXCEPT ![n] = Len(content)]
  /\ installing' = [installing EXCEPT ![n] = <<>>]
SnapshotStored(n) ==
  /\ installing[n] # <<>>
  /\ Install(n, installing[n])
  /\ UNCHANGED <<election, messages, acked, history, spent>>

-----------------------------------------------------------------------------
(* A process dies and starts again. The disk has what was flushed, and any part of what was not: a
   truncation and appends that were on their way. A snapshot that the log is not the log of takes its
   place. *)

Left(n) ==
  LET c == Common(disk[n], log[n])
  IN {SubSeq(disk[n], 1, k) : k \in c..Len(disk[n])} \cup {SubSeq(log[n], 1, k) : k \in c..Len(log[n])}
Recovered(n, l) ==
  IF Prefix(SubSeq(log[n], 1, snap[n]), l) THEN l ELSE SubSeq(log[n], 1, snap[n])

(* A node that has voted for itself is Resigned: it may have led, and lost what it sent. The high
   watermark is unknown but for the snapshot. What was held back is gone. *)
Restart(n, l, w, wasInstalled) ==
  LET kept == Recovered(n, l)
      own == IF LastEpoch(kept) > w.e THEN Ballot(LastEpoch(kept), Nobody) ELSE w
      resumes == Off = "a former candidate is silent" /\ own.v = n
  IN
  /\ spent.restarts < MaxRestarts /\ Exists(n)
  /\ spent' = [spent EXCEPT !.restarts = @ + 1]
  /\ IF wasInstalled THEN installing[n] # <<>> /\ Install(n, installing[n])
     ELSE /\ log' = [log EXCEPT ![n] = kept] /\ disk' = [disk EXCEPT ![n] = kept]
          /\ hw' = [hw EXCEPT ![n] = snap[n]]
          /\ installing' = [installing EXCEPT ![n] = <<>>]
          /\ UNCHANGED <<start, snap>>
  /\ vote' = [vote EXCEPT ![n] = own] /\ dvote' = [dvote EXCEPT ![n] = own]
  /\ role' = [role EXCEPT ![n] =
       IF resumes THEN "candidate" ELSE IF own.v = n THEN "resigned" ELSE "unattached"]
  /\ leader' = [leader EXCEPT ![n] = Nobody] /\ hears' = [hears EXCEPT ![n] = FALSE]
  /\ Forget(n)
  /\ grants' = {g \in WithoutTo(n) : g.v # n \/ Told(g)}
  /\ asks' = Remaining(
       IF resumes THEN asks \cup {[Ask(n, own.e, FALSE) EXCEPT !.last = LastEpoch(kept), !.end = Len(kept)]}
       ELSE asks, vote')
  /\ UNCHANGED history

(* The disk of n is damaged: what it has promised is not known. Once the quorum has committed, without
   it, that it is not a voter, its data is set aside, and its next directory, the replica m, begins with
   an empty log (controller/rejoin.py, docs/decisions/035-a-damaged-voter-joins-anew.md). *)
JoinAnew(n, m) ==
  LET sameId == Off = "a damaged voter gets a new id" IN
  /\ spent.damages < MaxDamages /\ (Exists(n) \/ role[n] = "set back")
  /\ IF sameId THEN m = n ELSE role[m] = "none"
  /\ sameId \/ n \notin VotersIn(committed, Len(committed)) \/ Off = "a damaged voter is removed first"
  /\ spent' = [spent EXCEPT !.damages = @ + 1]
  /\ role' = [role EXCEPT ![n] = "gone", ![m] = "unattached"]
  /\ leader' = [leader EXCEPT ![n] = Nobody] /\ hears' = [hears EXCEPT ![n] = FALSE] /\ Forget(n)
  /\ vote' = IF sameId THEN [vote EXCEPT ![n] = Ballot(0, Nobody)] ELSE vote
  /\ dvote' = IF sameId THEN [dvote EXCEPT ![n] = Ballot(0, Nobody)] ELSE dvote
  /\ log' = [log EXCEPT ![n] = <<>>] /\ disk' = [disk EXCEPT ![n] = <<>>] /\ hw' = [hw EXCEPT ![n] = 0]
  /\ start' = [start EXCEPT ![n] = 0] /\ snap' = [snap EXCEPT ![n] = 0]
  /\ installing' = [installing EXCEPT ![n] = <<>>]
  /\ grants' = {g \in WithoutTo(n) : g.v # n \/ Told(g)} /\ asks' = Remaining(asks, vote')
  /\ UNCHANGED history

(* The directory of n is put back to an earlier state: votes and acknowledgements are forgotten. The
   others remember a start of it that it does not remember (directory_starts.py): nobody votes for it,
   counts its votes or its Fetches. So it has no effect on others, and takes no step here, until it is
   removed and joins anew. *)
SetBack(n) ==
  /\ spent.setbacks < MaxSetBacks /\ Exists(n)
  /\ \E k \in 0..Len(disk[n]), e \in 0..dvote[n].e :
       /\ LastEpoch(SubSeq(disk[n], 1, k)) <= e
       /\ log' = [log EXCEPT ![n] = SubSeq(disk[n], 1, k)] /\ disk' = [disk EXCEPT ![n] = log'[n]]
       /\ vote' = [vote EXCEPT ![n] = Ballot(e, Nobody)] /\ dvote' = [dvote EXCEPT ![n] = Ballot(e, Nobody)]
  /\ spent' = [spent EXCEPT !.setbacks = @ + 1]
  /\ Become(n, IF Off = "a directory that was set back is refused" THEN "unattached" ELSE "set back", Nobody)
  /\ Forget(n)
  /\ hw' = [hw EXCEPT ![n] = 0] /\ start' = [start EXCEPT ![n] = 0] /\ snap' = [snap EXCEPT ![n] = 0]
  /\ installing' = [installing EXCEPT ![n] = <<>>]
  /\ grants' = WithoutTo(n) /\ asks' = {a \in Remaining(asks, vote') : a.n # n}
  /\ UNCHANGED history

-----------------------------------------------------------------------------
(* Every event of a node in a step of its own. *)
Step(n) ==
  \/ \E e \in 1..Opened : Learn(n, e)
  \/ \E e \in Epochs, l \in Nodes : Leads(l, e) /\ Follow(n, l, e)
  \/ TimeOut(n) \/ FallBack(n) \/ Campaign(n, vote[n].e + 1) \/ Persist(n, vote[n]) \/ Win(n)
  \/ Resign(n) \/ Doubt(n)
  \/ \E a \in asks : GrantPreVote(n, a)
  \/ \E a \in asks : Grant(n, a)
  \/ Write(n) \/ \E set \in SUBSET Nodes : ChangeVoters(n, set)
  \/ Flush(n, Len(log[n])) \/ Fetch(n) \/ Answer(n) \/ Truncate(n)
  \/ \E k \in 1..Len(log[n]) : Commit(n, k)
  \/ Freeze(n, hw[n]) \/ DropLog(n) \/ FetchSnapshot(n) \/ SnapshotStored(n)
  \/ \E l \in Left(n) : Restart(n, l, dvote[n], FALSE)
  \/ Restart(n, <<>>, dvote[n], TRUE)

(* The same with fewer steps: what only stops a node, or only makes durable what a crash might have
   kept as well, is taken together with the step that needs it. So a node learns an epoch when it
   votes, campaigns or fetches in it; a follower flushes when it fetches, a leader when it counts
   itself, a candidate when it wins. A leader commits all that it may. With pre-votes it learns an epoch in a step of its own, too. *)
Pull(f, l) ==
  LET e == vote[l].e
      end == Len(log[f])
      flushed == IF Off = "flush before acknowledge" THEN disk ELSE [disk EXCEPT ![f] = log[f]]
      truncated == Max(start[f], TruncationPoint(log[f], EndOffsetForEpoch(log[l], LastEpoch(log[f]))))
  IN
  /\ role[l] = "leader" /\ l # f /\ installing[f] = <<>> /\ Exists(f)
  /\ \/ e > vote[f].e
     \/ e = vote[f].e /\ leader[f] \in (IF role[f] = "prospective" THEN {Nobody} ELSE {Nobody, l})
  /\ IF e > vote[f].e THEN SetVote(f, e, Nobody)
     ELSE UNCHANGED vote /\ dvote' = IF SlowVotes THEN dvote ELSE [dvote EXCEPT ![f] = vote[f]]
  /\ role' = [role EXCEPT ![f] = "follower"] /\ leader' = [leader EXCEPT ![f] = l]
  /\ asks' = Remaining(asks, vote') /\ grants' = WithoutTo(f)
  /\ LET forgotten == IF role[f] = "leader" THEN [acked EXCEPT ![f] = [m \in Nodes |-> 0]] ELSE acked
     IN CASE NeedsSnapshot(log[l], start[l], snap[l], end, LastEpoch(log[f])) ->
               /\ snap[l] > hw[f]
               /\ disk' = [disk EXCEPT ![f] = log[f]]
               /\ installing' = [installing EXCEPT ![f] = SubSeq(log[l], 1, snap[l])]
               /\ acked' = forgotten
               /\ UNCHANGED <<log, hw>>
          [] Diverges(log[l], end, LastEpoch(log[f])) ->
               /\ truncated < end /\ truncated >= hw[f]
               /\ disk' = flushed
               /\ log' = [log EXCEPT ![f] = SubSeq(@, 1, truncated)]
               /\ acked' = forgotten
               /\ UNCHANGED <<hw, installing>>
          [] OTHER ->
               /\ disk' = flushed
               /\ acked' = [forgotten EXCEPT ![l][f] = end]
               /\ \/ UNCHANGED <<log, hw>>   \* the answer is lost
                  \/ \E n \in end..Max(end, Len(log[l])) :
                       /\ log' = [log EXCEPT ![f] = @ \o SubSeq(log[l], end + 1, n)]
                       /\ hw' = [hw EXCEPT ![f] = Max(@, IF Off = "the high watermark is in the log"
                                                          THEN hw[l] ELSE Min(n, hw[l]))]
               /\ UNCHANGED installing
  /\ hears' = [hears EXCEPT ![f] = PreVotes]
  /\ UNCHANGED <<start, snap, history, spent>>
PersistAndWin(n) ==
  /\ Elected(n)
  /\ dvote' = IF Off = "its own vote is durable" THEN dvote ELSE [dvote EXCEPT ![n] = vote[n]]
  /\ Lead(n)
  /\ asks' = {a \in asks : a.n # n}   \* a vote that comes later only stops its voter
FlushAndCommit(l, n) ==
  \E own \in BOOLEAN :
    /\ Commits(l, n, own) /\ \A m \in (n + 1)..Len(log[l]) : ~MayCommit(l, m, own)
    /\ disk' = IF own /\ Off # "the leader counts what it has flushed" THEN [disk EXCEPT ![l] = log[l]] ELSE disk
Together(n) ==
  \/ \E e \in IF PreVotes THEN {vote[n].e + 1} ELSE 1..(Opened + 1) : Campaign(n, e)
  \/ \E e \in IF PreVotes THEN 1..Opened ELSE {} : Learn(n, e)
  \/ TimeOut(n) \/ FallBack(n) \/ Doubt(n)
  \/ \E a \in IF PreVotes THEN asks ELSE {} : GrantPreVote(n, a)
  \/ PersistAndWin(n) \/ Resign(n)
  \/ \E a \in asks : Grant(n, a)
  \/ \E l \in Nodes : Pull(n, l)
  \/ Write(n) \/ \E set \in SUBSET Nodes : ChangeVoters(n, set)
  \/ \E k \in 1..Len(log[n]) : FlushAndCommit(n, k)
  \/ Freeze(n, IF Off = "a snapshot of what is committed" THEN Len(log[n]) ELSE hw[n])
  \/ DropLog(n) \/ SnapshotStored(n)
  \/ \E l \in IF spent.restarts < MaxRestarts THEN Left(n) ELSE {}, w \in {dvote[n], vote[n]} :
       Restart(n, l, w, FALSE)
  \/ \E w \in {dvote[n], vote[n]} : Restart(n, <<>>, w, TRUE)
  \/ \E m \in Nodes : JoinAnew(n, m)
  \/ SetBack(n)

Spec == Init /\ [][\E n \in Nodes : Together(n)]_vars
StepSpec == Init /\ [][\E n \in Nodes : Step(n)]_vars

(* States that differ in nothing else are one. A request of a node that can never count the answer
   only stops its voters. An epoch is over when every node has durably reached it and nobody can be
   elected in it any more: then it does not matter who voted for whom in it, or followed. Who led an
   epoch, and where it began, matters only to a leader itself; and how far a node has acknowledged
   what is committed does not matter. *)
MayCount(a) == \/ a.pre \/ dvote[a.n].e < a.e
               \/ role[a.n] = "candidate" /\ vote[a.n].e = a.e
Over(e) == /\ ~PreVotes
           /\ \A n \in Nodes : dvote[n].e >= e /\ ~(role[n] = "candidate" /\ vote[n].e = e)
           /\ \A a \in asks : a.e = e => ~MayCount(a)
WhatMatters ==
  <<[n \in Nodes |->
       IF Over(vote[n].e) /\ role[n] # "leader" /\ Exists(n) THEN <<vote[n].e>>
       ELSE <<role[n], vote[n], dvote[n], hears[n], IF PreVotes THEN leader[n] ELSE leader[n] = Nobody>>],
    logs, snapshots, {a \in asks : MayCount(a)}, grants, committed, spent,
    [e \in Epochs |-> <<led[e].times, IF Leads(led[e].n, e) THEN led[e].start ELSE 0>>],
    [l \in Nodes |-> [f \in Nodes |-> IF acked[l][f] <= hw[l] THEN 0 ELSE acked[l][f]]]>>
Symmetry == {p \in Permutations(Nodes) : {p[n] : n \in Configured} = Configured}

-----------------------------------------------------------------------------
(* The promises. *)

OneLeaderAnEpoch == \A e \in Epochs : led[e].times <= 1

(* The leader of the newest epoch has all that was ever committed (leader completeness). *)
LeaderHasAllCommitted ==
  \A n \in Nodes : role[n] = "leader" /\ (\A e \in (vote[n].e + 1)..MaxEpoch : led[e].times = 0)
    => Prefix(committed, log[n])

(* No two nodes commit different records, and none ever takes back what was committed. *)
CommittedNeverChanges == 
  \A n \in Nodes : Prefix(SubSeq(log[n], 1, Min(hw[n], Len(log[n]))), committed)

(* No majority of voters is without one that has on its disk all that was committed. (While a voter set is
   smaller than the one before and not yet committed, a majority of it may be half of that one.) A
   replica that was set back has forgotten what it had, but is in no majority any more. *)
CommittedIsDurable ==
  LET voters == VotersIn(committed, Len(committed))
  IN ~Majority({n \in voters : role[n] # "set back" /\ ~Prefix(committed, disk[n])}, voters)

(* The same by counting. It holds while no set of an even number of voters becomes smaller. *)
DurableAtAMajority ==
  Majority({n \in Nodes : Prefix(committed, disk[n])}, VotersIn(committed, Len(committed)))

LogMatching ==
  \A m, n \in Nodes : m # n =>
    LET same == {i \in 1..Min(Len(log[m]), Len(log[n])) : log[m][i].e = log[n][i].e}
    IN same = {} \/ SubSeq(log[m], 1, Greatest(same)) = SubSeq(log[n], 1, Greatest(same))

(* `Invariants` of core.py. *)
NodeInvariants ==
  \A n \in Nodes :
    /\ hw[n] <= Len(log[n])
    /\ start[n] <= snap[n] /\ snap[n] <= hw[n]
    /\ LastEpoch(log[n]) <= vote[n].e
    /\ role[n] \in {"candidate", "leader"} => vote[n].v = n
    /\ role[n] = "leader" => dvote[n] = vote[n] /\ Participates(n) /\ installing[n] = <<>>
    /\ (role[n] = "leader") = (leader[n] = n)
    /\ role[n] = "follower" => leader[n] \notin {n, Nobody}
    /\ dvote[n].e <= vote[n].e

(* A vote is never changed or forgotten within its epoch, and the epoch never goes down. *)
VoteNeverChanges ==
  [][\A n \in Nodes : \/ role'[n] = "set back"
                      \/ /\ dvote'[n].e >= dvote[n].e
                         /\ dvote'[n].e = dvote[n].e => dvote[n].v \in {Nobody, dvote'[n].v}]_dvote

(* The search for a long story may leave out what the story does not need: here one leader of epoch 1
   and one of epoch 2 are looked at, only the first one campaigns, and nobody follows it before. *)
FirstLeaderReturns ==
  LET one == CHOOSE n \in Configured : TRUE
      two == CHOOSE n \in Configured \ {one} : TRUE
  IN /\ led[1].n = one /\ led[2].n = two
     /\ \A a \in asks : a.n = one
     /\ \A n \in Nodes : leader[n] = one => n = one

(* Situations that must be reached, else the promises say little. *)
NeverRemovedLeaderReplaced ==
  ~\E l, n \in Nodes : /\ led[1].n = l /\ role[l] = "resigned" /\ vote[l].e = 1
                       /\ l \notin VotersIn(committed, Len(committed))
                       /\ role[n] = "leader" /\ hw[n] > led[vote[n].e].start
NeverVoterAsksForPreVotes ==
  ~\E m, n \in Nodes : /\ role[m] = "prospective" /\ vote[m].v = n /\ n # m
                       /\ role[n] = "leader" /\ vote[n].e = vote[m].e
NeverInstalling == \A n \in Nodes : installing[n] = <<>>
NeverJoinedAnew ==
  ~(spent.damages > 0 /\ Cardinality(VotersIn(committed, Len(committed))) = Cardinality(Configured))
=============================================================================
