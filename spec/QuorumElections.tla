--------------------------- MODULE QuorumElections ---------------------------
(***************************************************************************)
(* Elections of the quorum when timeouts are long: with pre-votes, with     *)
(* nodes that are dead and links that are cut. Quorum lets a node time out  *)
(* at any moment, which is right for what must never happen. Here it times  *)
(* out only if it has reason to, so that one can ask what happens at last.  *)
(*                                                                          *)
(* The assumption on time: a node that is linked to a live leader hears it; *)
(* a campaign that can be won is won before others begin one; and of two    *)
(* nodes that could campaign one lets the other go first (`outranks` and    *)
(* `hints` in campaign.py). Crashes, resignations and changes of the voter  *)
(* set still happen at any moment, as often as the constants say.           *)
(***************************************************************************)
EXTENDS Quorum

CONSTANTS
  Dead,  \* nodes that take no steps, though the others do not know it
  Cut    \* pairs of nodes that cannot talk to each other

Live == Nodes \ Dead
Linked(m, n) == m \in Live /\ n \in Live /\ {m, n} \notin Cut
Reached(n) == {m \in Nodes : m = n \/ Linked(m, n)}

(* A leader that n hears, or would hear if it asked. *)
HasLeader(n) == \E l \in Live : Linked(l, n) /\ role[l] = "leader" /\ vote[l].e >= vote[n].e

(* The campaign of m can be won: a majority that it reaches has voted for it, or may. *)
CanWin(m) ==
  /\ role[m] = "candidate"
  /\ LET e == vote[m].e
         mayVote(v) == \/ v = m \/ vote[v] = Ballot(e, m)
                       \/ /\ UpToDate(LastEpoch(log[m]), Len(log[m]), log[v])
                          /\ \/ vote[v].e < e
                             \/ vote[v] = Ballot(e, Nobody) /\ leader[v] = Nobody
     IN Majority({v \in Reached(m) : mayVote(v)}, Voters(m))
Pending(n) == \E m \in Reached(n) : CanWin(m)

(* Of two that ask for pre-votes the one with the longer log goes first, then the lower id. *)
Precedes(m, n) ==
  \/ LastEpoch(log[m]) > LastEpoch(log[n])
  \/ LastEpoch(log[m]) = LastEpoch(log[n]) /\ Len(log[m]) > Len(log[n])
  \/ LastEpoch(log[m]) = LastEpoch(log[n]) /\ Len(log[m]) = Len(log[n]) /\ m < n
Yields(n) ==
  \E m \in Live : /\ Linked(m, n) /\ role[m] = "prospective" /\ vote[m].e = vote[n].e
                  /\ Participates(m) /\ Precedes(m, n) /\ Majority(Reached(m), Voters(m))

-----------------------------------------------------------------------------
(* The steps of Quorum, when there is reason for them. *)

LearnInTime(n) == \E m \in Live : Linked(m, n) /\ Learn(n, vote[m].e)
TimeOutInTime(n) == TimeOut(n) /\ ~HasLeader(n) /\ ~Pending(n)
DoubtInTime(n) == Doubt(n) /\ ~(HasLeader(n) /\ leader[n] # Nobody /\ Linked(leader[n], n) /\ Leads(leader[n], vote[n].e))
FallBackInTime(n) ==
  /\ FallBack(n) /\ Off # "a lost pre-vote ends"
  /\ HasLeader(n) \/ ~Majority(Supporters(n) \cap Reached(n), Voters(n))
CampaignInTime(n) ==
  /\ Campaign(n, vote[n].e + 1)
  /\ PreVotes => Majority(Supporters(n) \cap Reached(n), Voters(n))
  /\ ~HasLeader(n) /\ ~Pending(n) /\ ~Yields(n)
GrantPreVoteInTime(n) ==
  \E a \in asks : Linked(n, a.n) /\ role[a.n] = "prospective" /\ vote[a.n].e = a.e /\ GrantPreVote(n, a)
GrantInTime(n) == \E a \in asks : Linked(n, a.n) /\ Grant(n, a)
PullInTime(n) == \E l \in Live : Linked(l, n) /\ Pull(n, l)
CommitInTime(n) == \E k \in 1..Len(log[n]) : FlushAndCommit(n, k)

(* Check-quorum: a leader from which no majority can fetch resigns. *)
ResignAlone(n) ==
  /\ role[n] = "leader" /\ ~Majority(Reached(n), Voters(n))
  /\ Off # "a leader without a majority resigns"
  /\ Become(n, "resigned", Nobody) /\ Forget(n)
  /\ UNCHANGED <<vote, dvote, logs, snapshots, messages, history, spent>>

(* A voter is added only after it has fetched all that was committed (admission.py, upkeep.py). *)
ChangeInTime(n) ==
  \E set \in SUBSET Nodes :
    /\ ChangeVoters(n, set)
    /\ \A m \in set \ Voters(n) : acked[n][m] >= hw[n] \/ Off = "a voter that has caught up is added"

Progress(n) ==
  \/ LearnInTime(n) \/ DoubtInTime(n) \/ GrantPreVoteInTime(n) \/ GrantInTime(n)
  \/ PersistAndWin(n) \/ PullInTime(n) \/ CommitInTime(n) \/ ResignAlone(n) \/ SnapshotStored(n)
Disturbance(n) ==
  \/ Write(n) \/ ChangeInTime(n) \/ Resign(n)
  \/ \E l \in Left(n), w \in {dvote[n], vote[n]} : Restart(n, l, w, FALSE)

EInit ==
  /\ Init
  /\ Begin = "calm" => \A n \in Nodes : role[n] = "leader" => \A m \in Configured : n <= m
ENext ==
  \E n \in Live :
    \/ Progress(n) \/ TimeOutInTime(n) \/ FallBackInTime(n) \/ CampaignInTime(n)
    \/ Disturbance(n)
ESpec == EInit /\ [][ENext]_vars

(* A node that can go on does so. A pre-vote may be lost and asked for again without end, so to
   campaign must not be missed for ever though it is possible again and again. *)
FairSpec ==
  /\ ESpec
  /\ \A n \in Live :
       /\ WF_vars(Progress(n)) /\ WF_vars(TimeOutInTime(n)) /\ WF_vars(FallBackInTime(n))
       /\ SF_vars(CampaignInTime(n))

-----------------------------------------------------------------------------
(* What must never happen if timeouts are long. *)

(* A voter that cannot win does not force others into a new epoch. *)
EpochStays == \A n \in Nodes : vote[n].e <= 1

(* What happens at last. *)

(* A leader that a majority of its voters follow, and that has committed all of its log. *)
InOffice(n) ==
  /\ n \in Live /\ role[n] = "leader" /\ hw[n] = Len(log[n])
  /\ Majority({v \in Reached(n) : leader[v] = n /\ vote[v].e = vote[n].e}, Voters(n))
LeaderIsElected == <>[](\E n \in Live : InOffice(n))

(* What was acknowledged is read at that leader. *)
AcknowledgedStaysReadable ==
  <>[](\E n \in Live : InOffice(n) /\ Prefix(committed, SubSeq(log[n], 1, hw[n])))

(* No change of the voter set waits for ever: it is committed, or in nobody's log any more. *)
ReconfigurationEnds == <>[](\A n \in Live : SetAt(log[n]) <= hw[n])

NobodyIsStuckInAPreVote == \A n \in Live : []<>(role[n] # "prospective")
=============================================================================
