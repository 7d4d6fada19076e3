-------------------------------- MODULE Lao --------------------------------
(***************************************************************************)
(* LAO, the LowestAcknowledgedOffset: what the active controller may        *)
(* announce, whom it may fence and unfence, and what a broker may show.     *)
(* The code: controller/visibility/lao.py, broker/metadata/view.py and      *)
(* read_gate.py, controller/decisions/brokers/heartbeats.py.                *)
(* docs/specification.md explains how to read this module, what is left     *)
(* out, and why that is safe.                                               *)
(*                                                                          *)
(* One write, from the client to all readers: `Write` appends it to the log *)
(* of a controller; `Commit`, once a majority has it; `Answer` brings it to *)
(* a broker, which applies it and reports that; `Advance` raises LAO to the *)
(* lowest report of the brokers that count; the next `Answer` tells brokers *)
(* that LAO, and plain reads show the image at that offset. All else is     *)
(* about what may come in between: fencing, new processes, elections.       *)
(*                                                                          *)
(* Raft is abstract here. There is one controller an epoch; a deposed one   *)
(* is not told so, and goes on. An offset is the place of an entry in a     *)
(* log, from 1 on; 0 means "unknown" or "nothing". An image is the metadata *)
(* after all entries up to an offset; entry 1 is the first one.             *)
(*                                                                          *)
(* No message is stored. An answer is made from the state of its controller *)
(* when a broker receives it: a late one says less than the newest one of   *)
(* the same epoch. A report counts in the step of the broker that it tells  *)
(* of, as soon as it may count: until then no other step depends on that    *)
(* step, so it may as well happen later. Controllers that a broker has left *)
(* go on with its last report under their epoch: `reported` keeps it.       *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
  Brokers,      \* broker ids
  Legacy,       \* those of them whose build reports no applied offset
  AtFirst,      \* how many brokers may be unfenced in the first image
  MaxEpoch,     \* controller epochs; each but the first begins with an election or a restore
  MaxWrites,    \* most writes, in all logs together
  MaxFences,    \* most fencings of live brokers, in all logs together
  MaxRestarts,  \* most new processes of each broker
  MaxRestores,  \* most unsafe recoveries and restores
  MayDie,       \* whether a broker may die for good
  Strict,       \* whether read leases are granted
  Tokens,       \* whether a client reads with the token of its last read
  Off           \* the rule that is switched off; "none" in the protocol itself

VARIABLES
  newest,    \* the newest controller epoch
  log,       \* [epoch -> log of its controller, a sequence of entries]
  start,     \* [epoch -> entries that its controller inherited]
  hw,        \* [epoch -> high watermark, as its controller knows it: the last committed offset]
  limit,     \* [epoch -> high watermark that its controller can ever reach, once deposed]
  gen,       \* [epoch -> generation of its log]
  chosen,    \* [generation -> last committed offset, known to a controller or not]
  lao,       \* [epoch -> highest LAO so far]
  minKnown,  \* [epoch -> highest minimum of the known LAO of its members so far]
  inc,       \* [broker -> number of its present process]
  down,      \* brokers that are dead for good
  seen,      \* [process -> highest controller epoch accepted]
  applied,   \* [process -> offset of its newest image]
  told,      \* [process -> [l |-> highest LAO received, e |-> the epoch that sent it]]
  known,     \* [process -> the same, of the LAO that it has applied: readers have it]
  reported,  \* [process -> [epoch -> its newest report to that controller: offset applied, LAO known]]
  lease,     \* [process -> epoch that granted its read lease; 0: none is in force]
  token      \* [g |-> generation, o |-> offset] of the client's last read

controllers == <<newest, log, start, hw, limit, gen, chosen>>
trackers    == <<lao, minKnown>>
processes   == <<inc, down>>
views       == <<seen, applied, told, known, reported>>
vars == <<controllers, trackers, processes, views, lease, token>>

Epochs == 1..MaxEpoch
Generations == 1..(MaxRestores + 1)
Processes == Brokers \X (1..(MaxRestarts + 1))
Id(p) == p[1]
Present(b) == <<b, inc[b]>>
Alive(p) == p = Present(Id(p)) /\ Id(p) \notin down
Unheard == -1   \* a lease that no later controller waits for: granted without a round
None == [a |-> 0, k |-> 0]
Nothing == [l |-> 0, e |-> 0]

Max(x, y) == IF x > y THEN x ELSE y
Min(x, y) == IF x < y THEN x ELSE y
Least(S) == CHOOSE x \in S : \A y \in S : x <= y
Greatest(S) == CHOOSE x \in S : \A y \in S : y <= x
(* A function that was joined with itself is a table to TLC: one that changes often is slow else. *)
Table(f) == f @@ f

-----------------------------------------------------------------------------
(* Logs. An entry has its kind t, the epoch e of its writer, and the image at its offset: for each
   broker id its registered process, the broker epoch r (the offset of the registration), and the
   epoch that unfenced it (0: fenced). Kinds: "first"; "lead" begins an epoch; "w" is a write;
   "reg", "unf", "fen" register, unfence and fence a broker. *)

Unfencer(l, n, p) ==
  LET it == l[n].image[Id(p)] IN IF it.p = p THEN it.by ELSE 0
BrokerEpoch(l, n, p) ==
  LET it == l[n].image[Id(p)] IN IF it.p = p THEN it.r ELSE 0
Holder(l, b) == l[Len(l)].image[b].p
(* How many entries of a kind the controllers have written: each of them behind its start. *)
Count(t) ==
  LET written == UNION {{e} \X ((start[e] + 1)..Len(log[e])) : e \in 1..newest}
  IN Cardinality({x \in written : log[x[1]][x[2]].t = t})

Also(l, t, e) == Append(l, [t |-> t, e |-> e, image |-> l[Len(l)].image])
With(l, t, e, p) ==
  LET it == l[Len(l)].image[Id(p)]
      new == CASE t = "reg" -> [p |-> p, r |-> Len(l) + 1, by |-> 0]
               [] t = "unf" -> [it EXCEPT !.by = e]
               [] t = "fen" -> [it EXCEPT !.by = 0]
  IN Append(l, [t |-> t, e |-> e, image |-> [l[Len(l)].image EXCEPT ![Id(p)] = new]])

Chosen(g) == LET e == Greatest({e \in 1..newest : gen[e] = g}) IN SubSeq(log[e], 1, chosen[g])

-----------------------------------------------------------------------------
(* The tracker of a controller (LaoTracker). *)

(* A member is a registration that is unfenced in ANY image from the high watermark w to the log
   end: each of these images may be the one that a broker, or the next controller, acts on. *)
Members(l, w) ==
  LET images == CASE Off = "the tail counts" -> {w, Len(l)}
                  [] Off = "fencing counts when committed" -> {Len(l)}
                  [] Off = "unfencing counts when proposed" -> {w}
                  [] OTHER -> w..Len(l)
  IN UNION {{l[n].image[b] : b \in {b \in Brokers : l[n].image[b].by > 0}} : n \in images}

(* The report that counts at the controller of e of a registration m, the newest that its process has
   made under e. It counts under the same controller epoch and broker epoch alone, and once both
   offsets are known to be committed here: until then it is parked. A registration that was replaced
   keeps its report as long as it is a member. `r` has the newest report of each process and epoch. *)
Made(r, p, e) ==
  CASE Off = "reports of this epoch" /\ r[p][e] = None ->
         LET made == {d \in 1..(e - 1) : r[p][d] # None}
         IN IF made = {} THEN None ELSE r[p][Greatest(made)]
    [] Off = "broker epoch" /\ p[2] > 1 /\ r[p][e] = None -> r[<<p[1], p[2] - 1>>][e]
    [] OTHER -> r[p][e]
Report(e, w, reports, m) ==
  LET r == Made(reports, m.p, e)
  IN IF /\ Id(m.p) \notin Legacy
        /\ m.r <= w
        /\ IF Off = "reports wait for their commit" THEN r.a <= Len(log[e])
           ELSE w > start[e] /\ Max(r.a, r.k) <= w
     THEN r ELSE None

(* The reports that count of the members at e. *)
Heard(e, l, w, r) == {Report(e, w, r, m) : m \in Members(l, w)}

(* Both minima advance with each change of the log, the high watermark or the reports. *)
Advance(e, l, w, r) ==
  LET heard == Heard(e, l, w, r)
      counted == IF Off = "all have reported" THEN {h \in heard : h.a > 0} ELSE heard
  IN /\ lao' = [lao EXCEPT ![e] =
          IF counted = {} THEN @ ELSE Max(@, Least({h.a : h \in counted}))]
     /\ minKnown' = [minKnown EXCEPT ![e] =
          IF heard = {} THEN @ ELSE Max(@, Least({h.k : h \in heard}))]

(* What the controller announces: LAO is unknown until every member has reported in this epoch. *)
LaoOf(e) ==
  IF Off # "all have reported" /\ \E h \in Heard(e, log[e], hw[e], reported) : h.a = 0
  THEN 0 ELSE lao[e]

(* Two promises that are about one controller alone: LAO is committed, and it is unknown while a
   broker that reports no offset is a member. *)
Committed(e) == lao[e] > 0 => start[e] < hw[e] /\ lao[e] <= hw[e]
Hidden(e) == (\E m \in Members(log[e], hw[e]) : Id(m.p) \in Legacy) => LaoOf(e) = 0

(* Unfencing p now keeps every promise made so far: it has applied LAO and the first record of the
   epoch, and knows a LAO that covers all that may have been answered `visible`. *)
JoinsWith(e, m, r) ==
  /\ r.a > 0 /\ (Off = "broker epoch" \/ r.a >= m.r)
  /\ Off = "joins at LAO" \/ r.a >= lao[e]
  /\ Off = "joins at the epoch's start" \/ r.a >= start[e] + 1
  /\ \/ Off = "joins with a known LAO"
     \/ lao[e] = 0
     \/ r.k >= (IF Members(log[e], hw[e]) = {} THEN lao[e] ELSE minKnown[e])
MayJoin(e, p) ==
  LET m == log[e][Len(log[e])].image[Id(p)]
  IN Id(p) \in Legacy \/ (m.p = p /\ JoinsWith(e, m, Report(e, hw[e], reported, m)))

-----------------------------------------------------------------------------
(* What a broker shows (View, ReadGate, Fencing). *)

GenOf(p) == IF seen[p] = 0 THEN 0 ELSE gen[seen[p]]
Image(p) == IF GenOf(p) = gen[newest] THEN log[newest] ELSE log[seen[p]]   \* both have what is committed
By(p) == Unfencer(Image(p), applied[p], p)

(* A broker serves if its own image shows its own registration unfenced, and if it was told no LAO
   above what it has applied: then it is not counted. *)
Serves(p) ==
  /\ Alive(p) /\ GenOf(p) # 0
  /\ By(p) > 0
  /\ Off = "fenced by a LAO above applied" \/ told[p].l <= applied[p]

(* The offset of a plain repeatable read; 0: LAO is not known. Only a LAO from the epoch that
   unfenced the broker, or a later one, counts. *)
Repeatable(p) ==
  LET lowest == IF Off = "fenced by a LAO above applied" THEN told[p] ELSE known[p]
  IN IF Off # "LAO of the unfencing epoch" /\ lowest.e < By(p) THEN 0 ELSE lowest.l

(* What a read with a token shows at p, if it need not wait: the image at LAO, or a newer one. *)
WithToken(p) ==
  IF Off = "token" \/ token.o <= Repeatable(p) THEN Repeatable(p)
  ELSE IF token.o <= applied[p] THEN token.o ELSE 0

(* A strict read takes what is applied at a moment under the lease as its floor, and waits until a
   LAO covers that. *)
StrictFloor(p) == IF Off = "strict reads wait for LAO" THEN Repeatable(p) ELSE applied[p]

-----------------------------------------------------------------------------
Init ==
  /\ newest = 1
  /\ \E unfenced \in {s \in SUBSET Brokers : Cardinality(s) \in AtFirst} :
       log = Table([e \in Epochs |-> IF e > 1 THEN <<>> ELSE Also(<<[t |-> "first", e |-> 1, image |->
         Table([b \in Brokers |->
           [p |-> <<b, 1>>, r |-> 1, by |-> IF b \in unfenced THEN 1 ELSE 0]])]>>, "lead", 1)])
  /\ start = Table([e \in Epochs |-> IF e = 1 THEN 1 ELSE 0]) /\ hw = start /\ limit = start
  /\ gen = Table([e \in Epochs |-> 1])
  /\ chosen = Table([g \in Generations |-> 1])
  /\ lao = Table([e \in Epochs |-> 0]) /\ minKnown = lao
  /\ inc = Table([b \in Brokers |-> 1]) /\ down = {}
  /\ seen = Table([p \in Processes |-> 0]) /\ applied = Table([p \in Processes |-> 1]) /\ lease = seen
  /\ told = Table([p \in Processes |-> Nothing]) /\ known = told
  /\ reported = Table([p \in Processes |-> Table([e \in Epochs |-> None])])
  /\ token = [g |-> 0, o |-> 0]

(* The controller of e appends an entry: proposed, and not yet committed. A deposed controller may
   go on: a later leader may have what it appends, as long as one can come. *)
Proposes(e) == e = newest \/ (e < newest /\ newest < MaxEpoch /\ gen[e] = gen[newest])
Propose(e, l) ==
  /\ log' = [log EXCEPT ![e] = l]
  /\ Advance(e, l, hw[e], reported)
  /\ UNCHANGED <<newest, start, hw, limit, gen, chosen, processes, views, lease, token>>

(* A client writes. *)
Write(e) ==
  /\ Proposes(e) /\ Count("w") < MaxWrites
  /\ Propose(e, Also(log[e], "w", e))

(* A session has ended, the broker lags, or it asks for it. Never while a lease may be in force: a
   new controller begins all sessions afresh, and so waits for the leases of all earlier ones. *)
Fence(e, b) ==
  LET p == Holder(log[e], b)
  IN /\ Proposes(e) /\ Unfencer(log[e], Len(log[e]), p) > 0
     /\ Off = "fencing waits for the lease" \/ lease[p] \notin 1..e
     /\ ~Alive(p) \/ Count("fen") < MaxFences
     /\ Off = "the dead are fenced" => Alive(p)
     /\ Propose(e, With(log[e], "fen", e, p))

(* Decided at each report: a broker is unfenced as soon as it may join. *)
UnfenceIn(e, l, b) ==
  LET p == Holder(l, b)
  IN /\ Proposes(e) /\ Unfencer(l, Len(l), p) = 0
     /\ Alive(p) /\ BrokerEpoch(l, Len(l), p) > 0
     /\ MayJoin(e, p)
     /\ Propose(e, With(l, "unf", e, p))
Unfence(e, b) == UnfenceIn(e, log[e], b)

(* A new process, or one whose registration a restore has lost, registers. The process that held the
   id is gone. *)
RegisterIn(e, l, b) ==
  LET p == Present(b)
  IN /\ Proposes(e) /\ Alive(p)
     /\ GenOf(p) \in {0, gen[e]} /\ BrokerEpoch(l, Len(l), p) = 0
     /\ Propose(e, With(l, "reg", e, p))
Register(e, b) == RegisterIn(e, log[e], b)

(* A majority has the newest controller's log on disk up to n, and it covers a record of its own
   epoch (Raft 5.4.2). *)
CommitUpTo(n, l) ==
  /\ hw' = [hw EXCEPT ![newest] = n]
  /\ chosen' = [chosen EXCEPT ![gen[newest]] = n]
  /\ log' = [log EXCEPT ![newest] = l]
  /\ Advance(newest, l, n, reported)
  /\ UNCHANGED <<newest, start, limit, gen, processes, views, lease, token>>
Uncommitted == (Max(hw[newest], start[newest]) + 1)..Len(log[newest])
Commit == \E n \in Uncommitted : CommitUpTo(n, log[newest])

(* A deposed controller learns late that entries were committed before its successor was elected. *)
Learn(e) ==
  /\ e < newest
  /\ \E n \in (Max(hw[e], start[e]) + 1)..limit[e] :
       /\ hw' = [hw EXCEPT ![e] = n]
       /\ Advance(e, log[e], n, reported)
  /\ UNCHANGED <<newest, log, start, limit, gen, chosen, processes, views, lease, token>>

(* The next controller begins with the first entries of the log l of the controller of c. *)
Begin(c, l, kept, w, reached, g) ==
  /\ newest' = newest + 1
  /\ log' = [log EXCEPT ![c] = l, ![newest + 1] = Also(SubSeq(l, 1, kept), "lead", newest + 1)]
  /\ start' = [start EXCEPT ![newest + 1] = kept]
  /\ hw' = [hw EXCEPT ![newest + 1] = w]
  /\ limit' = [limit EXCEPT ![newest] = reached]
  /\ gen' = [gen EXCEPT ![newest + 1] = g]
  /\ UNCHANGED <<trackers, processes, views, lease, token>>

(* A new controller: its log has all that is committed, and any part (up to `kept`) of a tail behind it.
   More may be committed than the newest controller knows, as a majority has it on disk and nobody has
   counted: that is up to `secret`, and the deposed controller may still learn it. *)
ElectWith(c, l, kept) ==
  LET g == gen[newest]
  IN /\ newest < MaxEpoch /\ gen[c] = g
     /\ kept >= chosen[g] /\ SubSeq(log[c], 1, chosen[g]) = Chosen(g)
     /\ \E secret \in {chosen[g]} \cup (IF c = newest THEN (start[c] + 1)..kept ELSE {}) :
          /\ secret >= chosen[g]
          /\ Begin(c, l, kept, hw[c], secret, g)
          /\ chosen' = [chosen EXCEPT ![g] = secret]
Elect == \E c \in 1..newest : \E kept \in 1..Len(log[c]) : ElectWith(c, log[c], kept)

(* An unsafe recovery or a restore: a log of a new generation. It may lack what was committed, and
   may have what was not: all of it is committed from now on. *)
RestoreWith(c, l, kept) ==
  LET g == gen[newest]
  IN /\ newest < MaxEpoch /\ gen[c] = g /\ g <= MaxRestores
     /\ Begin(c, l, kept, kept, chosen[g], g + 1)
     /\ chosen' = [chosen EXCEPT ![g + 1] = kept]
Restore == \E c \in 1..newest : \E kept \in 1..Len(log[c]) : RestoreWith(c, log[c], kept)

(* A broker receives an answer of the controller of e: committed records, as many as it applies of
   them, and a LAO. It ignores controllers below the highest epoch that it has seen. It applies the
   records first. A LAO above what it has applied is kept, and known when it is applied. *)
Hear(e, p, n, announced) ==
  LET heard == IF announced >= Max(told[p].l, 1) THEN [l |-> announced, e |-> e] ELSE told[p]
  IN /\ applied' = [applied EXCEPT ![p] = n]
     /\ told' = [told EXCEPT ![p] = heard]
     /\ known' = [known EXCEPT ![p] =
          IF heard.l \in 1..n THEN heard ELSE IF told[p].l \in 1..n THEN told[p] ELSE @]
Follow(e, p) == \E n \in applied[p]..Max(applied[p], hw[e]) : Hear(e, p, n, LaoOf(e))
(* An answer of a log of another generation: the broker begins anew. It uses no such answer to a
   heartbeat, and its own heartbeats do not count there: it would report what it has applied of the
   old log. *)
BeginAnew(p) ==
  /\ applied' = [applied EXCEPT ![p] = 1]
  /\ told' = [told EXCEPT ![p] = Nothing]
  /\ known' = [known EXCEPT ![p] = Nothing]
Answer(e, p) ==
  /\ Alive(p)
  /\ e >= seen[p] \/ (Off = "the deposed are ignored" /\ gen[e] = GenOf(p))
  /\ IF GenOf(p) \in {0, gen[e]}
     THEN seen' = [seen EXCEPT ![p] = e] /\ Follow(e, p)
     ELSE \/ seen' = [seen EXCEPT ![p] = e] /\ BeginAnew(p)
          \/ Off = "heartbeats name the generation" /\ UNCHANGED <<seen, applied, told, known>>
  /\ reported' = [reported EXCEPT ![p][e] = [a |-> applied'[p], k |-> known'[p].l]]
  /\ <<seen'[p], applied'[p], told'[p], known'[p], reported'[p][e]>>
       # <<seen[p], applied[p], told[p], known[p], reported[p][e]>>   \* something is new to it or of it
  /\ Advance(e, log[e], hw[e], reported')
  /\ UNCHANGED <<controllers, processes, lease, token>>

(* A new process of a broker; the former one is gone, with its lease. *)
Restart(b) ==
  /\ b \notin down /\ inc[b] <= MaxRestarts
  /\ inc' = [inc EXCEPT ![b] = @ + 1]
  /\ lease' = [lease EXCEPT ![Present(b)] = 0]
  /\ UNCHANGED <<controllers, trackers, down, views, token>>

Die(b) ==
  /\ MayDie /\ b \notin down /\ Cardinality(down) + 1 < Cardinality(Brokers)
  /\ down' = down \cup {b}
  /\ lease' = [lease EXCEPT ![Present(b)] = 0]
  /\ UNCHANGED <<controllers, trackers, inc, views, token>>

(* A heartbeat gets a lease from a controller that a read-index round has confirmed, which began
   after the heartbeat arrived: no later controller was elected before. The broker must be unfenced
   in EVERY image that may survive. *)
Grant(e, b) ==
  LET p == Holder(log[e], b)
      images == IF Off = "lease needs every image" THEN {hw[e]} ELSE hw[e]..Len(log[e])
  IN /\ Strict /\ Alive(p) /\ hw[e] > start[e]
     /\ e = newest \/ Off = "lease needs a round"
     /\ \A n \in images : Unfencer(log[e], n, p) > 0
     /\ lease' = [lease EXCEPT ![p] = IF e = newest THEN e ELSE Unheard]
     /\ UNCHANGED <<controllers, trackers, processes, views, token>>
LeaseEnds(p) ==
  /\ lease[p] # 0
  /\ lease' = [lease EXCEPT ![p] = 0]
  /\ UNCHANGED <<controllers, trackers, processes, views, token>>

(* A client reads with the token of its last read. A broker of another generation refuses it. *)
Read(p) ==
  LET checked == Off # "generation of the token"
  IN /\ Tokens /\ Serves(p)
     /\ token.g \in {0, GenOf(p)} \/ ~checked
     /\ IF token.g = 0 \/ checked THEN WithToken(p) > 0 ELSE Repeatable(p) > 0
     /\ token' = IF checked THEN [g |-> GenOf(p), o |-> WithToken(p)] ELSE [g |-> 1, o |-> Repeatable(p)]
     /\ UNCHANGED <<controllers, trackers, processes, views, lease>>

Next ==
  \/ \E e \in 1..newest : Write(e)
  \/ \E e \in 1..newest : Learn(e)
  \/ \E e \in 1..newest, b \in Brokers : Fence(e, b)
  \/ \E e \in 1..newest, b \in Brokers : Unfence(e, b)
  \/ \E e \in 1..newest, b \in Brokers : Register(e, b)
  \/ \E e \in 1..newest, b \in Brokers : Grant(e, b)
  \/ \E e \in 1..newest, p \in Processes : Answer(e, p)
  \/ Commit \/ Elect \/ Restore
  \/ \E b \in Brokers : Restart(b) \/ Die(b)
  \/ \E p \in Processes : LeaseEnds(p) \/ Read(p)
(* A behaviour begins as Init says, and goes on by steps of Next, one at a time. *)
Spec == Init /\ [][Next]_vars
Symmetry == Permutations(Brokers)   \* brokers are interchangeable

-----------------------------------------------------------------------------
(* The promises. They are of the newest generation: a restore may lose what was promised before. *)

Living == {Present(b) : b \in Brokers \ down}
Now == {e \in 1..newest : gen[e] = gen[newest]}
(* The brokers that the promises are about: unfenced in what is committed, by their present
   registration, and of a build that reports. *)
Unfenced ==
  {p \in Living : Id(p) \notin Legacy /\ Unfencer(log[newest], chosen[gen[newest]], p) > 0}
Serving == {p \in Unfenced : Serves(p) /\ GenOf(p) = gen[newest]}
(* Writes up to these offsets may have been answered `acknowledged`, `visible`. *)
Acknowledged == Greatest({lao[e] : e \in Now})
Visible == Greatest({minKnown[e] : e \in Now})

(* The image of p has the first n entries of the newest log. The first one is in all logs. *)
Has(p, n) ==
  \/ n <= 1
  \/ /\ n <= applied[p]
     /\ \/ GenOf(p) = gen[newest]
        \/ SubSeq(log[seen[p]], 1, n) = SubSeq(log[newest], 1, n)
LaoNeverAhead == (\A e \in Now : Committed(e)) /\ \A p \in Unfenced, e \in Now : Has(p, lao[e])
LaoNeverFalls == \A d, e \in Now : d < e /\ lao[e] > 0 => lao[d] <= lao[e]
RepeatableRead == \A p \in Serving, q \in Unfenced : Repeatable(p) <= applied[q]
ReadAfterAcknowledged == LET floor == Acknowledged IN \A p \in Serving : applied[p] >= floor
ReadAfterVisible ==
  LET floor == Visible IN \A p \in Serving : Repeatable(p) > 0 => Repeatable(p) >= floor
(* A strict read that begins now shows all that was acknowledged, and all that any strict read may
   have shown: that was at a LAO which its broker knew. *)
StrictReadLinearizable ==
  \A p \in Living : lease[p] # 0 /\ Serves(p) /\ GenOf(p) = gen[newest] =>
    /\ StrictFloor(p) >= Acknowledged
    /\ \A q \in Processes : GenOf(q) = GenOf(p) => StrictFloor(p) >= known[q].l
(* The levels of reads refine each other, also at a broker that does not know yet that it was fenced:
   what is shown at LAO is applied, and what is applied is committed. *)
ReadLevels ==
  \A p \in Living : Serves(p) /\ GenOf(p) = gen[newest] =>
    /\ Repeatable(p) <= applied[p]
    /\ applied[p] <= chosen[gen[newest]]
LegacyHidesLao == \A e \in Now : Hidden(e)

(* One client's reads never go back within a generation, whichever brokers answer. *)
MonotoneToken == [][token'.g # token.g \/ token'.o >= token.o]_token

(* A dead broker does not hold LAO back for ever: once nothing disturbs the cluster any more, LAO
   reaches the end of the log. (Without members it stands still: nobody reads.) *)
Fairness ==
  /\ WF_vars(Commit)
  /\ \A e \in Epochs, b \in Brokers : WF_vars(e = newest /\ b \in down /\ Fence(e, b))
  /\ \A e \in Epochs, p \in Processes : WF_vars(e = newest /\ Answer(e, p))
FairSpec == Spec /\ Fairness
LaoCatchesUp == <>[](LaoOf(newest) = Len(log[newest]) \/ Members(log[newest], hw[newest]) = {})

-----------------------------------------------------------------------------
(* Situations that must be reached, else the promises would be empty: each of these is false. *)
NeverVisibleInTwoEpochs == ~(\E d, e \in Now : d < e /\ minKnown[d] > 0 /\ minKnown[e] > minKnown[d])
NeverToldAboveApplied == \A p \in Processes : told[p].l <= applied[p]
NeverUnfencedByTheSecond == \A p \in Serving : By(p) < 2 \/ Repeatable(p) = 0
NeverVisibleAfterRestore == gen[newest] = 1 \/ Visible = 0
NeverVisibleAfterRestart == \A p \in Serving : p[2] = 1 \/ Repeatable(p) = 0
NeverLearnedLate == \A e \in Now : e = newest \/ limit[e] = 0 \/ hw[e] < limit[e] \/ lao[newest] = 0
NeverLeasedAcrossEpochs == ~(\E p \in Serving : lease[p] = 1 /\ newest = 2 /\ hw[2] > start[2])
NeverLegacyLeft == ~(\E e \in Now : LaoOf(e) > 0 /\ \E i \in 2..Len(log[e]) :
  log[e][i].t = "fen" /\ \E b \in Legacy : log[e][i].image[b] # log[e][i - 1].image[b])
=============================================================================
