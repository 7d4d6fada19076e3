------------------------------ MODULE LaoTrace ------------------------------
(***************************************************************************)
(* Compares traces of the shipped code with Lao: spec/lao_trace.py          *)
(* records them, spec/traces.py makes the module LaoTraces of them. Each    *)
(* event has to be a step that Lao can take, to the values that the code    *)
(* has after it; the promises are checked in each state.                    *)
(*                                                                          *)
(* Messages take time in a trace. So a report counts when it arrives: it is *)
(* one that its broker has made. And an answer is an earlier one of the     *)
(* same controller: it names a LAO that this one has announced.             *)
(***************************************************************************)
EXTENDS Lao, LaoTraces

VARIABLES
  trace,   \* number of the trace
  at,      \* number of the next event in it
  high,    \* [epoch -> last offset that the leader knows as committed: its tracker hears of that later]
  said     \* [epoch -> values of LAO that were announced]

TInit ==
  /\ trace \in 1..Len(Traces) /\ at = 1
  /\ newest = 1
  /\ log = Table([e \in Epochs |-> IF e > 1 THEN <<>> ELSE Also(<<[t |-> "first", e |-> 1, image |->
       Table([b \in Brokers |-> [p |-> <<b, 0>>, r |-> 0, by |-> 0]])]>>, "lead", 1)])
  /\ start = Table([e \in Epochs |-> IF e = 1 THEN 1 ELSE 0]) /\ hw = start /\ limit = start
  /\ gen = Table([e \in Epochs |-> 1])
  /\ chosen = Table([g \in Generations |-> 1])
  /\ lao = Table([e \in Epochs |-> 0]) /\ minKnown = lao
  /\ inc = Table([b \in Brokers |-> 1]) /\ down = {}
  /\ seen = Table([p \in Processes |-> 0]) /\ applied = Table([p \in Processes |-> 1]) /\ lease = seen
  /\ told = Table([p \in Processes |-> Nothing]) /\ known = told
  /\ reported = Table([p \in Processes |-> Table([e \in Epochs |-> None])])
  /\ token = [g |-> 0, o |-> 0]
  /\ high = start
  /\ said = Table([e \in Epochs |-> {0}])

(* Traces have no bounds. *)
NoCount(t) == 0

MinKnownOf(e) ==
  LET heard == Heard(e, log[e], hw[e], reported)
  IN IF heard = {} THEN 0 ELSE Least({h.k : h \in heard})

(* The tracker has the same LAO as the module now, and announces it from now on. *)
Same(ev) ==
  /\ ev.lao \in {-1, LaoOf(ev.e)'} /\ ev.known \in {-1, MinKnownOf(ev.e)'}
  /\ said' = LET now == LaoOf(ev.e)'
             IN IF now \in said[ev.e] THEN said ELSE [said EXCEPT ![ev.e] = @ \cup {now}]

TElect(ev) ==
  LET g == gen[newest]
  IN /\ ev.e = newest + 1 /\ gen[ev.from] = g
     /\ Len(log[ev.from]) >= ev.kept /\ ev.kept >= chosen[g]
     /\ SubSeq(log[ev.from], 1, chosen[g]) = Chosen(g)
     /\ ev.secret >= chosen[g] /\ ev.kept >= ev.secret
     /\ Begin(ev.from, log[ev.from], ev.kept, hw[ev.from], ev.secret, g)
     /\ chosen' = [chosen EXCEPT ![g] = ev.secret]
     /\ ev.hw <= chosen[g] /\ high' = [high EXCEPT ![ev.e] = ev.hw]
     /\ UNCHANGED said
TRestore(ev) ==
  LET g == gen[newest]
  IN /\ ev.e = newest + 1 /\ gen[ev.from] = g /\ ev.kept <= Len(log[ev.from])
     /\ Begin(ev.from, log[ev.from], ev.kept, ev.kept, chosen[g], g + 1)
     /\ chosen' = [chosen EXCEPT ![g + 1] = ev.kept]
     /\ high' = [high EXCEPT ![ev.e] = ev.kept]
     /\ UNCHANGED said

TRegister(ev) ==
  /\ ev.p[2] <= inc[ev.p[1]] /\ BrokerEpoch(log[ev.e], Len(log[ev.e]), ev.p) = 0
  /\ Propose(ev.e, With(log[ev.e], "reg", ev.e, ev.p))

(* The broker may have died meanwhile: Unfence is only about those that live. *)
TUnfence(ev) ==
  LET p == Holder(log[ev.e], ev.b)
  IN /\ Unfencer(log[ev.e], Len(log[ev.e]), p) = 0 /\ MayJoin(ev.e, p)
     /\ Propose(ev.e, With(log[ev.e], "unf", ev.e, p))

THigh(ev) ==
  /\ ev.n > high[ev.e]
  /\ high' = [high EXCEPT ![ev.e] = ev.n]
  /\ IF ev.e = newest
     THEN /\ ev.n > start[ev.e] /\ ev.n <= Len(log[ev.e])
          /\ chosen' = [chosen EXCEPT ![gen[newest]] = ev.n]
     ELSE ev.n <= limit[ev.e] /\ UNCHANGED chosen
  /\ UNCHANGED <<newest, log, start, hw, limit, gen, trackers, processes, views, lease, token, said>>

TCommit(ev) ==
  /\ ev.n <= high[ev.e] /\ ev.n > Max(hw[ev.e], start[ev.e])
  /\ hw' = [hw EXCEPT ![ev.e] = ev.n]
  /\ Advance(ev.e, log[ev.e], ev.n, reported)
  /\ UNCHANGED <<newest, log, start, limit, gen, chosen, processes, views, lease, token>>

(* The step `of` of the trace is one of the process, after which it may make this report. *)
MadeIn(ev) ==
  LET move == Traces[trace][ev.of]
  IN /\ ev.of \in 1..(at - 1) /\ move.t = "move" /\ move.p = ev.p /\ move.e = ev.e
     /\ move.n = ev.a /\ move.known.l = ev.k
TReport(ev) ==
  /\ MadeIn(ev)
  /\ reported' = [reported EXCEPT ![ev.p][ev.e] = [a |-> Max(@.a, ev.a), k |-> Max(@.k, ev.k)]]
  /\ Advance(ev.e, log[ev.e], hw[ev.e], reported')
  /\ UNCHANGED <<controllers, processes, seen, applied, told, known, lease, token>>

TMove(ev) ==
  LET p == ev.p
  IN /\ Alive(p) /\ ev.e >= seen[p] /\ (GenOf(p) \in {0, gen[ev.e]} \/ ev.n = 1)
     /\ ev.l \in {0} \cup said[ev.e]
     /\ ev.n >= applied[p] /\ (ev.n > applied[p] => ev.n <= high[ev.e])
     /\ seen' = [seen EXCEPT ![p] = ev.e]
     /\ Hear(ev.e, p, ev.n, ev.l)
     /\ known'[p] = ev.known /\ (told'[p].l > ev.n) = ev.above
     /\ UNCHANGED <<controllers, trackers, processes, reported, lease, token, high, said>>

(* The process learns the generation of the log, or that it has become another one. *)
TAnew(ev) ==
  LET p == ev.p
  IN /\ Alive(p) /\ ev.e >= seen[p] /\ (GenOf(p) = gen[ev.e] => applied[p] = 1)
     /\ seen' = [seen EXCEPT ![p] = ev.e]
     /\ BeginAnew(p)
     /\ UNCHANGED <<controllers, trackers, processes, reported, lease, token, high, said>>

(* What a read shows. A strict one that need not wait has a lease, and takes its floor now. *)
TRead(ev) ==
  CASE ev.mode = "latest" -> ev.shown = applied[ev.p] /\ ev.wanted <= ev.shown
    [] ev.mode = "strict" ->
         /\ Repeatable(ev.p) > 0 /\ ev.shown = Repeatable(ev.p) /\ ev.wanted <= ev.shown
         /\ ev.now => lease[ev.p] # 0 /\ ev.shown >= StrictFloor(ev.p)
    [] OTHER -> /\ Repeatable(ev.p) > 0
                /\ IF ev.wanted <= Repeatable(ev.p) THEN ev.shown = Repeatable(ev.p)
                   ELSE ev.wanted <= ev.shown /\ ev.shown <= applied[ev.p]

Do(ev) ==
  \/ /\ \/ ev.t = "write" /\ Write(ev.e)
        \/ ev.t = "reg" /\ TRegister(ev)
        \/ ev.t = "unf" /\ TUnfence(ev)
        \/ ev.t = "fen" /\ Fence(ev.e, ev.b)
        \/ ev.t \in {"commit", "learn"} /\ TCommit(ev)
        \/ ev.t = "report" /\ TReport(ev)
        \/ ev.t = "idle" /\ UNCHANGED vars
     /\ Same(ev) /\ UNCHANGED high
  \/ ev.t = "elect" /\ TElect(ev)
  \/ ev.t = "restore" /\ TRestore(ev)
  \/ ev.t = "anew" /\ TAnew(ev)
  \/ ev.t = "high" /\ THigh(ev)
  \/ ev.t = "move" /\ TMove(ev)
  \/ /\ \/ ev.t = "start" /\ Restart(ev.b)
        \/ ev.t = "die" /\ Die(ev.b)
        \/ ev.t = "grant" /\ Grant(ev.e, ev.p[1]) /\ Holder(log[ev.e], ev.p[1]) = ev.p
        \/ ev.t = "lease_ends" /\ LeaseEnds(ev.p)
        \/ ev.t = "leased" /\ lease[ev.p] # 0 /\ UNCHANGED vars
        \/ ev.t = "serves" /\ Serves(ev.p) /\ UNCHANGED vars
        \/ ev.t = "read" /\ TRead(ev) /\ UNCHANGED vars
     /\ UNCHANGED <<high, said>>

Promises ==
  /\ LaoNeverAhead /\ LaoNeverFalls /\ RepeatableRead /\ ReadAfterAcknowledged /\ ReadAfterVisible
  /\ StrictReadLinearizable /\ ReadLevels

(* These change nothing that a promise is about. *)
Quiet == {"idle", "leased", "serves", "read"}

(* TLC prints how far each trace was followed, and whether a promise stopped it. *)
TNext ==
  /\ at <= Len(Traces[trace])
  /\ \E ev \in {Traces[trace][at]} : Do(ev)
  /\ at' = at + 1 /\ UNCHANGED trace
  /\ Traces[trace][at].t \in Quiet \/ Promises' \/ (PrintT(<<"broken", trace, at>>) /\ FALSE)
  /\ PrintT(<<"followed", trace, at>>)
TSpec == TInit /\ [][TNext]_<<vars, trace, at, high, said>>
(* States are told apart by their place in the trace: a step has one outcome. *)
Place == <<trace, at>>
=============================================================================
