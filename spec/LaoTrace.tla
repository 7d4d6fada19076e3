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
  said,    \* [epoch -> values of LAO that were announced]
  made     \* [process -> reports that it may have made: <<epoch, applied, known>>]

TInit ==
  /\ trace \in 1..Len(Traces) /\ at = 1
  /\ newest = 1
  /\ log = [e \in Epochs |-> IF e > 1 THEN <<>> ELSE Lead(<<[t |-> "first", e |-> 1, image |->
       [b \in Brokers |-> [p |-> <<b, 0>>, r |-> 0, by |-> 0]]]>>, 1)]
  /\ start = [e \in Epochs |-> IF e = 1 THEN 1 ELSE 0] /\ hw = start /\ limit = start
  /\ gen = [e \in Epochs |-> 1]
  /\ chosen = [g \in Generations |-> 1]
  /\ lao = [e \in Epochs |-> 0] /\ minKnown = lao
  /\ inc = [b \in Brokers |-> 1] /\ down = {}
  /\ seen = [p \in Processes |-> 0] /\ applied = [p \in Processes |-> 1] /\ lease = seen
  /\ told = [p \in Processes |-> Nothing] /\ known = told
  /\ reported = [p \in Processes |-> [e \in Epochs |-> None]]
  /\ token = [g |-> 0, o |-> 0]
  /\ high = start
  /\ said = [e \in Epochs |-> {0}]
  /\ made = [p \in Processes |-> {}]

MinKnownOf(e) ==
  LET heard == Heard(e, log[e], hw[e], reported)
  IN IF heard = {} THEN 0 ELSE Least({h.k : h \in heard})

(* The tracker has the same LAO as the module now, and announces it from now on. *)
Same(ev) ==
  /\ ev.lao \in {-1, LaoOf(ev.e)'} /\ ev.known \in {-1, MinKnownOf(ev.e)'}
  /\ said' = [said EXCEPT ![ev.e] = @ \cup {LaoOf(ev.e)'}]

TElect(ev) ==
  /\ ev.e = newest + 1
  /\ Len(log[ev.from]) >= ev.kept /\ ev.kept >= chosen[1]
  /\ SubSeq(log[ev.from], 1, chosen[1]) = Chosen(1)
  /\ ev.secret >= chosen[1] /\ ev.kept >= ev.secret
  /\ Begin(log[ev.from], ev.kept, hw[ev.from], ev.secret, 1)
  /\ chosen' = [chosen EXCEPT ![1] = ev.secret]
  /\ UNCHANGED <<high, said, made>>

TRegister(ev) ==
  /\ ev.p[2] <= inc[ev.p[1]] /\ Holder(log[ev.e], ev.p[1]) # ev.p
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
          /\ chosen' = [chosen EXCEPT ![1] = ev.n]
     ELSE ev.n <= limit[ev.e] /\ UNCHANGED chosen
  /\ UNCHANGED <<newest, log, start, hw, limit, gen, trackers, processes, views, lease, token, said, made>>

TCommit(ev) ==
  /\ ev.n <= high[ev.e] /\ ev.n > Max(hw[ev.e], start[ev.e])
  /\ hw' = [hw EXCEPT ![ev.e] = ev.n]
  /\ Advance(ev.e, log[ev.e], ev.n, reported)
  /\ UNCHANGED <<newest, log, start, limit, gen, chosen, processes, views, lease, token>>

TReport(ev) ==
  /\ <<ev.e, ev.a, ev.k>> \in made[ev.p]
  /\ reported' = [reported EXCEPT ![ev.p][ev.e] = [a |-> Max(@.a, ev.a), k |-> Max(@.k, ev.k)]]
  /\ Advance(ev.e, log[ev.e], hw[ev.e], reported')
  /\ UNCHANGED <<controllers, processes, seen, applied, told, known, lease, token>>

TMove(ev) ==
  LET p == ev.p
  IN /\ Alive(p) /\ ev.e >= seen[p] /\ ev.l \in {0} \cup said[ev.e]
     /\ ev.n >= applied[p] /\ (ev.n > applied[p] => ev.n <= high[ev.e])
     /\ seen' = [seen EXCEPT ![p] = ev.e]
     /\ Hear(ev.e, p, ev.n, ev.l)
     /\ known'[p] = ev.known /\ (told'[p].l > ev.n) = ev.above
     /\ made' = [made EXCEPT ![p] = @ \cup {<<ev.e, ev.n, known'[p].l>>}]
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
     /\ Same(ev) /\ UNCHANGED <<high, made>>
  \/ ev.t = "elect" /\ TElect(ev)
  \/ ev.t = "high" /\ THigh(ev)
  \/ ev.t = "move" /\ TMove(ev)
  \/ /\ \/ ev.t = "start" /\ Restart(ev.b)
        \/ ev.t = "die" /\ Die(ev.b)
        \/ ev.t = "grant" /\ Grant(ev.e, ev.p[1]) /\ Holder(log[ev.e], ev.p[1]) = ev.p
        \/ ev.t = "lease_ends" /\ LeaseEnds(ev.p)
        \/ ev.t = "leased" /\ lease[ev.p] # 0 /\ UNCHANGED vars
        \/ ev.t = "serves" /\ Serves(ev.p) /\ UNCHANGED vars
        \/ ev.t = "read" /\ TRead(ev) /\ UNCHANGED vars
     /\ UNCHANGED <<high, said, made>>

Promises ==
  /\ LaoNeverAhead /\ LaoNeverFalls /\ RepeatableRead /\ ReadAfterAcknowledged /\ ReadAfterVisible
  /\ StrictReadLinearizable /\ ReadLevels

(* TLC prints how far each trace was followed, and whether a promise stopped it. *)
TNext ==
  /\ at <= Len(Traces[trace])
  /\ \E ev \in {Traces[trace][at]} : Do(ev)
  /\ at' = at + 1 /\ UNCHANGED trace
  /\ Promises' \/ (PrintT(<<"broken", trace, at>>) /\ FALSE)
  /\ PrintT(<<"followed", trace, at>>)
TSpec == TInit /\ [][TNext]_<<vars, trace, at, high, said, made>>
(* States are told apart by their place in the trace: a step has one outcome. *)
Place == <<trace, at>>
=============================================================================
