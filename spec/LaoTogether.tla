---------------------------- MODULE LaoTogether ----------------------------
(***************************************************************************)
(* The search of Lao with fewer steps and fewer states: what no promise can *)
(* tell apart is looked at once. Whoever reads Lao needs nothing of this.   *)
(* Each reduction has its argument here; docs/specification.md says how     *)
(* both forms were compared.                                                *)
(***************************************************************************)
EXTENDS Lao

(* What the arguments below do not speak of: a process that hears a deposed controller after its
   predecessor has left that, a legacy broker that is unfenced before the first commit of an epoch,
   and leases and tokens that outlast a restore. *)
ASSUME /\ MaxEpoch = 1 \/ (MaxEpoch = 2 /\ MaxRestarts = 0 /\ Legacy = {})
       /\ MaxRestores = 0 \/ ~(Strict \/ Tokens \/ MayDie)

-----------------------------------------------------------------------------
(* Steps. *)

(* A write shows nothing to anybody until it is committed, another entry follows it, or an election
   or a restore keeps it. Neither does a fencing: its broker counts until it is committed. What a
   controller may propose now it may propose later, too, and what was never proposed leaves more for
   later. So both are written in the step that first shows them: a commit, an unfencing or
   registration behind them, an election or a restore. These are the logs that may be made so of l. *)
RECURSIVE Longer(_, _, _)
Longer(l, writes, fences) ==
  {l} \cup (IF writes > 0 THEN Longer(Also(l, "w", newest), writes - 1, fences) ELSE {})
      \cup UNION {Longer(With(l, "fen", newest, Holder(l, b)), writes, fences - 1) :
                    b \in {b \in Brokers : LET p == Holder(l, b) IN
                             /\ Unfencer(l, Len(l), p) > 0
                             /\ lease[p] \notin 1..newest \/ Off = "fencing waits for the lease"
                             /\ fences > 0 \/ ~Alive(p)}}
Behind == Longer(log[newest], MaxWrites - Count("w"), MaxFences - Count("fen"))

(* What was appended is committed or kept to its end: a shorter part of it is one of these logs, too. *)
Ends(l, ends) == IF l = log[newest] THEN ends ELSE {Len(l)}

CommitNow(l) == \E n \in Ends(l, Uncommitted) : CommitUpTo(n, l)

(* What a deposed controller does, and those who hear it, is in no step of its successor, and the other
   way round: the answers of the deposed, and what it learns late, may as well come before the
   election. So after it only the newest controller takes steps. What the deposed would have learnt
   late it has committed then.

   A new controller that has not committed the first record of its epoch counts no report, grants no
   lease and unfences nobody; it knows no LAO. So that commit is part of the election, and answers
   before it come after it: they bring no LAO, either, for the members have not reported. Nor is
   anything lost that a promise says in between. A log that is committed up to an offset which the
   deposed has not heard of: the promises ask more where it has committed that itself. An answer of
   the new one before its first commit: they ask as much after an election that keeps no more than
   is committed. *)
Begins(l, kept, g) ==
  /\ newest < MaxEpoch /\ newest' = newest + 1
  /\ log' = [log EXCEPT ![newest] = l, ![newest + 1] = Also(SubSeq(l, 1, kept), "lead", newest + 1)]
  /\ start' = [start EXCEPT ![newest + 1] = kept]
  /\ hw' = [hw EXCEPT ![newest + 1] = kept + 1]
  /\ gen' = [gen EXCEPT ![newest + 1] = g]
  /\ chosen' = [chosen EXCEPT ![g] = kept + 1]
  /\ UNCHANGED <<limit, trackers, processes, views, lease, token>>
ElectNow(l) == \E kept \in Ends(l, chosen[gen[newest]]..Len(l)) : Begins(l, kept, gen[newest])

(* A restore makes all void that was before it, but the log that it begins with. So that log may as
   well end with what was written last; and no more is asked of it than that its entries can follow
   each other: whoever may be unfenced is. Then the history before it does not matter. Nor does it matter
   whether a broker has heard of the former generation: in the new one it begins anew, and is told no LAO
   before it has reported. *)
RECURSIVE AnyLog(_, _, _)
AnyLog(l, writes, fences) ==
  {l} \cup (IF writes > 0 THEN AnyLog(Also(l, "w", 1), writes - 1, fences) ELSE {})
      \cup UNION {LET p == Holder(l, b) IN
                    IF Unfencer(l, Len(l), p) = 0 THEN AnyLog(With(l, "unf", 1, p), writes, fences)
                    ELSE IF fences > 0 THEN AnyLog(With(l, "fen", 1, p), writes, fences - 1) ELSE {} :
                    b \in Brokers}
RestoreAny ==
  /\ newest = 1 /\ hw[1] = 1 /\ Len(log[1]) = 2 /\ MaxRestores > 0 /\ \A p \in Processes : seen[p] = 0
  /\ \/ Begins(log[1], 1, 2)
     \/ \E l \in AnyLog(log[1], MaxWrites, MaxFences) : Begins(l, Len(l), 2)

(* A broker that is fenced in the committed image, and in all after it, is in the dark: nobody counts it,
   and the promises are about the others. (But ReadLevels: what a broker shows without knowing that it
   is fenced rests on its own steps alone, and is searched step by step.) So what it does is left out
   until it is unfenced. Then it has applied any offset with which it may join, and knows the LAO that
   it was told last before, or any since up to the highest. Where there are strict reads, tokens or
   several processes of a broker, nobody is in the dark. *)
Dark(b) ==
  /\ ~Strict /\ ~Tokens /\ MaxRestarts = 0 /\ Legacy = {}
  /\ \A m \in Members(log[newest], hw[newest]) : Id(m.p) # b
ToldBefore(p) == IF GenOf(p) = gen[newest] THEN told[p] ELSE Nothing
Wake(l, b) ==
  LET e == newest
      p == Present(b)
      was == ToldBefore(p)
  IN /\ Dark(b) /\ Alive(p) /\ hw[e] > start[e]
     /\ \E n \in 1..hw[e] :
        \E k \in {was} \cup UNION {{[l |-> x, e |-> d] : x \in Max(was.l, 1)..Min(n, lao[d])} :
                                   d \in {d \in Now : d >= was.e}} :
          /\ JoinsWith(e, l[Len(l)].image[b], [a |-> n, k |-> k.l])
          /\ seen' = [seen EXCEPT ![p] = e]
          /\ applied' = [applied EXCEPT ![p] = n]
          /\ told' = [told EXCEPT ![p] = k]
          /\ known' = [known EXCEPT ![p] = k]
          /\ reported' = [reported EXCEPT ![p][e] = [a |-> n, k |-> k.l]]
          /\ log' = [log EXCEPT ![e] = With(l, "unf", e, p)]
          /\ Advance(e, log'[e], hw[e], reported')
          /\ UNCHANGED <<newest, start, hw, limit, gen, chosen, processes, lease, token>>

Together ==
  \/ \E l \in Behind :
       \/ CommitNow(l) \/ ElectNow(l)
       \/ \E b \in Brokers :
            Wake(l, b) \/ (~Dark(b) /\ UnfenceIn(newest, l, b)) \/ RegisterIn(newest, l, b)
  \/ RestoreAny
  \/ \E p \in Processes : ~Dark(Id(p)) /\ Answer(newest, p)
  \/ \E b \in Brokers : Grant(newest, b) \/ Restart(b) \/ Die(b)
  \/ \E p \in Processes : LeaseEnds(p) \/ Read(p)
TogetherSpec == Init /\ [][Together]_vars

-----------------------------------------------------------------------------
(* States. Two are one if they differ in nothing that a promise or a later step can use. *)

(* Brokers that follow the newest generation; the others begin anew at their next answer. *)
Follows(b) == b \notin down /\ GenOf(Present(b)) = gen[newest]

(* The lowest offset that a broker may still apply, or the controller may still commit. Offsets below
   it are only compared with each other: their order matters, and no image there does. *)
Lit == {b \in Brokers \ down : ~Dark(b)}
Low ==
  IF Off # "none" \/ \E b \in Lit : ~Follows(b) THEN 1
  ELSE Least({applied[Present(b)] : b \in Lit} \cup {hw[newest]}
             \cup (IF Lit = Brokers \ down THEN {} ELSE {Max(lao[newest], start[newest] + 1)}))

(* What is left to tell processes apart by where there may be several of a broker: their registrations
   and reports. Else the report of a process is what it has applied and knows, or none if it has not
   heard the newest controller. *)
MayCount(p) == p = Present(Id(p)) \/ \E m \in Members(log[newest], hw[newest]) : m.p = p
Several == IF MaxRestarts = 0 THEN {} ELSE {p \in Processes : MayCount(p)}

WhatMatters ==
  LET l == log[newest]
      low == Low
      \* What a deposed controller has announced, unless the newest one has announced as much.
      announced(e) == IF e < newest /\ lao[e] <= lao[newest] THEN 0 ELSE lao[e]
      covered(e) == IF e < newest /\ minKnown[e] <= minKnown[newest] THEN 0 ELSE minKnown[e]
      offsets ==
        {hw[newest], chosen[gen[newest]], token.o}
        \cup UNION {{announced(e), covered(e)} : e \in Now}
        \cup UNION {LET p == Present(b) IN IF Follows(b) THEN {told[p].l, known[p].l} ELSE {} : b \in Lit}
        \* What a broker in the dark may know.
        \cup UNION {LET was == ToldBefore(Present(b))
                    IN {was.l} \cup UNION {Max(was.l, minKnown[newest])..lao[e] : e \in {e \in Now : e >= was.e}} :
                    b \in Brokers \ (Lit \cup down)}
        \cup (IF Strict THEN {known[q].l : q \in Processes} ELSE {})
        \cup UNION {{reported[p][newest].a, reported[p][newest].k} : p \in Several}
        \cup (IF Several = {} THEN {} ELSE {l[n].image[b].r : n \in low..Len(l), b \in Brokers})
      lower == TLCEval({x \in offsets : 0 < x /\ x < low})
      rank(x) == IF x >= low THEN 100 + x - low ELSE Cardinality({y \in lower : y <= x})
      of(b) ==
        LET p == Present(b)
        IN <<IF b \in down THEN <<>>
             ELSE IF b \notin Lit THEN <<rank(ToldBefore(p).l), ToldBefore(p).e>>
             ELSE IF ~Follows(b) THEN <<FALSE>>
             ELSE <<seen[p], rank(applied[p]), rank(told[p].l), told[p].e, rank(known[p].l), known[p].e>>,
             [n \in 1..(Len(l) - low + 1) |-> l[low + n - 1].image[b].by],
             IF Legacy = {} THEN FALSE ELSE b \in Legacy,
             IF ~Strict THEN <<>>
             ELSE [i \in 1..inc[b] |-> LET q == <<b, i>> IN
                    <<lease[q], IF GenOf(q) = gen[newest] THEN rank(known[q].l) ELSE 0>>],
             IF Several = {} THEN <<>>
             ELSE <<[i \in 1..inc[b] |-> LET r == reported[<<b, i>>][newest] IN
                      IF <<b, i>> \in Several THEN <<rank(r.a), rank(r.k)>> ELSE <<>>],
                    [n \in 1..(Len(l) - low + 1) |->
                      LET it == l[low + n - 1].image[b] IN <<it.p[2], rank(it.r)>>]>> >>
      brokers == TLCEval([b \in Brokers |-> of(b)])
      all == TLCEval({brokers[b] : b \in Brokers})
  IN <<newest, gen[newest], Count("w"), Count("fen"), rank(chosen[gen[newest]]), rank(hw[newest]),
       IF start[newest] < low THEN 0 ELSE rank(start[newest]),
       [e \in 1..newest |-> IF e \in Now THEN <<rank(announced(e)), rank(covered(e))>> ELSE <<>>],
       IF Cardinality(all) = Cardinality(Brokers) THEN all
       ELSE [x \in all |-> Cardinality({b \in Brokers : brokers[b] = x})],
       token.g, rank(token.o)>>
=============================================================================
