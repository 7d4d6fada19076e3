----------------------------- MODULE QuorumTrace -----------------------------
(***************************************************************************)
(* Compares traces of the shipped code with Quorum:                         *)
(* spec/quorum_trace.py records them, spec/quorum_traces.py makes the *)
(* module QuorumTraces of them. Each event has to be a step that Quorum can *)
(* take, to the state that the code has after it.                           *)
(*                                                                          *)
(* Messages take time in a trace. So a Fetch that reaches the leader is one *)
(* that its sender has made, and an answer is one that the leader could     *)
(* give at some time of its epoch.                                          *)
(***************************************************************************)
EXTENDS Quorum, QuorumTraces

VARIABLES
  trace,   \* number of the trace
  at,      \* number of the next event in it
  fetches, \* Fetches that were sent
  said     \* [epoch -> the longest log and highest high watermark of its leader]

TInit ==
  /\ trace \in 1..Len(Traces) /\ at = 1
  /\ role = [n \in Nodes |-> "unattached"]
  /\ vote = [n \in Nodes |-> Ballot(0, Nobody)] /\ dvote = vote
  /\ leader = [n \in Nodes |-> Nobody] /\ hears = [n \in Nodes |-> FALSE]
  /\ log = [n \in Nodes |-> <<>>] /\ disk = log /\ installing = log
  /\ hw = [n \in Nodes |-> 0] /\ start = hw /\ snap = hw
  /\ acked = [l \in Nodes |-> [f \in Nodes |-> 0]]
  /\ asks = {} /\ grants = {}
  /\ led = [e \in Epochs |-> [n |-> Nobody, start |-> 0, times |-> 0]]
  /\ committed = <<>>
  /\ spent = [writes |-> 0, restarts |-> 0, changes |-> 0, snapshots |-> 0, resignations |-> 0,
              damages |-> 0, setbacks |-> 0]
  /\ fetches = {} /\ said = [e \in Epochs |-> [log |-> <<>>, hw |-> 0]]

(* The leader's own records; its first one is an event of its own here. *)
TWin(n) ==
  /\ Elected(n) /\ dvote[n] = vote[n]
  /\ TakeOffice(n) /\ UNCHANGED <<dvote, asks, log>>
TWrite(ev) ==
  LET n == ev.n
      set(i) == LET here == {s \in ev.sets : s[1] = i} IN IF here = {} THEN {} ELSE (CHOOSE s \in here : TRUE)[2]
      old == Voters(n)
  IN
  /\ role[n] = "leader"
  /\ \A s \in ev.sets :
       /\ MayChangeVoters(n)
       /\ SetAt(log[n]) = 0 \/ Cardinality((s[2] \ old) \cup (old \ s[2])) <= 1
  /\ log' = [log EXCEPT ![n] = @ \o [i \in 1..ev.count |-> [e |-> vote[n].e, set |-> set(i)]]]
  /\ UNCHANGED <<election, disk, hw, snapshots, messages, acked, history, spent>>

TFlush(n, end) ==
  /\ end <= Len(log[n])
  /\ disk' = [disk EXCEPT ![n] = SubSeq(log[n], 1, end)]
  /\ UNCHANGED <<election, log, hw, snapshots, messages, acked, history, spent>>

(* A voter that has granted its vote sends a Fetch before it knows that the candidate leads. *)
TFetch(ev) ==
  LET f == ev.n IN
  /\ role[f] \notin {"leader", "candidate"} /\ installing[f] = <<>>
  /\ ev.end = Len(log[f]) /\ ev.last = LastEpoch(log[f])
  /\ Flushed(f) = Len(log[f])
  /\ fetches' = fetches \cup {<<f, ev.to, vote[f].e, ev.end, ev.last>>}
  /\ UNCHANGED vars
TAcked(ev) ==
  /\ role[ev.n] = "leader"
  /\ <<ev.f, ev.n, vote[ev.n].e, ev.end, ev.last>> \in fetches
  /\ dvote[ev.f].e >= vote[ev.n].e
  /\ Serves(ev.n, ev.end, ev.last)
  /\ Acknowledge(ev.n, ev.f, ev.end)

Source(f) == said[vote[f].e]
MayUse(f) ==
  /\ leader[f] # Nobody /\ leader[f] # f /\ led[vote[f].e].n = leader[f] /\ role[f] = "follower"
  /\ dvote[f].e = vote[f].e
TFetched(ev) ==
  LET f == ev.n IN
  /\ MayUse(f)
  /\ Len(log[f]) + ev.count <= Len(Source(f).log) /\ ev.hw <= Max(hw[f], Source(f).hw)
  /\ ~Diverges(Source(f).log, Len(log[f]), LastEpoch(log[f]))
  /\ Fetched(f, Source(f).log, ev.hw, Len(log[f]) + ev.count)
  /\ LastEpoch(log'[f]) = ev.last
TTruncated(ev) ==
  LET f == ev.n
      p == EndOffsetForEpoch(Source(f).log, ev.e)
  IN /\ MayUse(f) /\ p.e = ev.e /\ ev.end <= p.end
     /\ Truncated(f, [e |-> ev.e, end |-> ev.end])
TInstalling(ev) ==
  LET f == ev.n IN
  /\ MayUse(f) /\ ev.end <= Source(f).hw /\ EpochAt(Source(f).log, ev.end) = ev.last
  /\ SnapshotFetched(f, SubSeq(Source(f).log, 1, ev.end))
TUnsound(n) ==
  /\ installing' = [installing EXCEPT ![n] = <<>>]
  /\ UNCHANGED <<election, logs, start, snap, messages, acked, history, spent>>
TDrop(n, end) ==
  /\ end <= snap[n] /\ end > start[n]
  /\ start' = [start EXCEPT ![n] = end]
  /\ disk' = IF Flushed(n) >= end THEN disk ELSE [disk EXCEPT ![n] = SubSeq(log[n], 1, end)]
  /\ UNCHANGED <<election, log, hw, snap, installing, messages, acked, history, spent>>

(* A request that is answered once more changes nothing. *)
TGranted(ev, pre) ==
  LET old == Ballot(ev.e, ev.to) = vote[ev.n] /\ UpToDate(ev.last, ev.end, log[ev.n])
      these == {a \in asks : a.n = ev.to /\ a.e = ev.e /\ a.last = ev.last /\ a.end = ev.end /\ a.pre = pre}
  IN \/ \E a \in these : IF pre THEN GrantPreVote(ev.n, a) ELSE Grant(ev.n, a)
     \/ ~pre /\ old /\ (these = {} \/ \E a \in these : Yes(ev.n, a) \in grants) /\ UNCHANGED vars

(* An observer, or a node that is about to be one, looks for another leader. *)
TForget(n) ==
  /\ role[n] \in {"follower", "resigned"} /\ ~Participates(n)
  /\ Become(n, "unattached", Nobody)
  /\ UNCHANGED <<vote, dvote, logs, snapshots, acked, messages, history, spent>>
THears(n) ==
  /\ role[n] = "follower"
  /\ hears' = [hears EXCEPT ![n] = TRUE]
  /\ UNCHANGED <<role, vote, dvote, leader, logs, snapshots, messages, acked, history, spent>>

(* A start: of a cluster that is new, or after a crash. The leader may have been saved. *)
TRestart(ev) ==
  LET n == ev.n
      fits(l) == Len(l) = ev.end /\ LastEpoch(l) = ev.last
      kept == {l \in Left(n) : fits(Recovered(n, l))}
      w == Ballot(ev.w[1], ev.w[2])
      mayHave == dvote[n] = w \/ (dvote[n].e <= w.e /\ (w = vote[n] \/ w.e < vote[n].e \/ w.v = Nobody))
  IN /\ mayHave
     /\ IF kept # {} THEN Restart(n, CHOOSE l \in kept : TRUE, w, FALSE) ELSE Restart(n, <<>>, w, TRUE)

Do(ev) ==
  \/ ev.t = "fetch" /\ TFetch(ev)
  \/ /\ \/ ev.t = "learn" /\ ev.e <= Opened /\ Learn(ev.n, ev.e)
        \/ ev.t = "follow" /\ Follow(ev.n, ev.l, ev.e)
        \/ ev.t = "time_out" /\ TimeOut(ev.n)
        \/ ev.t = "fall_back" /\ FallBack(ev.n)
        \/ ev.t = "campaign" /\ ev.e = vote[ev.n].e + 1 /\ Campaign(ev.n, ev.e)
        \/ ev.t = "persist" /\ Persist(ev.n, Ballot(ev.w[1], ev.w[2]))
        \/ ev.t = "win" /\ TWin(ev.n)
        \/ ev.t = "resign" /\ Resign(ev.n)
        \/ ev.t = "doubt" /\ Doubt(ev.n)
        \/ ev.t = "hears" /\ THears(ev.n)
        \/ ev.t = "forget" /\ TForget(ev.n)
        \/ ev.t = "granted_pre" /\ TGranted(ev, TRUE)
        \/ ev.t = "granted" /\ TGranted(ev, FALSE)
        \/ ev.t = "write" /\ TWrite(ev)
        \/ ev.t = "flush" /\ TFlush(ev.n, ev.end)
        \/ ev.t = "acked" /\ TAcked(ev)
        \/ ev.t = "fetched" /\ TFetched(ev)
        \/ ev.t = "truncated" /\ TTruncated(ev)
        \/ ev.t = "commit" /\ Commit(ev.n, ev.end)
        \/ ev.t = "freeze" /\ Freeze(ev.n, ev.end)
        \/ ev.t = "drop" /\ TDrop(ev.n, ev.end)
        \/ ev.t = "installing" /\ TInstalling(ev)
        \/ ev.t = "stored" /\ SnapshotStored(ev.n)
        \/ ev.t = "unsound" /\ TUnsound(ev.n)
        \/ ev.t = "restart" /\ TRestart(ev)
     /\ UNCHANGED fetches

(* The code has the same state as the module after its last action of a step. A restarted node may
   know the saved leader at once. *)
Same(ev) ==
  "after" \in DOMAIN ev =>
    LET n == ev.n
        after == ev.after
    IN /\ after.role = RoleName(n)' /\ vote'[n] = Ballot(after.e, after.v) /\ leader'[n] = after.l
       /\ Len(log'[n]) = after.end /\ Flushed(n)' >= after.flushed /\ hw'[n] = after.hw
       /\ hears'[n] = after.hears

Led(n) == IF role'[n] = "leader" THEN vote'[n].e ELSE IF role[n] = "leader" THEN vote[n].e ELSE 0
TNext ==
  /\ at <= Len(Traces[trace])
  /\ \E ev \in {Traces[trace][at]} :
       /\ Do(ev) /\ Same(ev)
       /\ said' = IF Led(ev.n) = 0 THEN said
                  ELSE [said EXCEPT ![Led(ev.n)] = [log |-> log'[ev.n], hw |-> Max(@.hw, hw'[ev.n])]]
  /\ at' = at + 1 /\ UNCHANGED trace
  /\ PrintT(<<"followed", trace, at>>)
TSpec == TInit /\ [][TNext]_<<vars, trace, at, fetches, said>>
(* States are told apart by their place in the trace: a step has one outcome. *)
Place == <<trace, at>>
=============================================================================
