// leases: what ours.py measures, step by step, with etcd's client and its recipes.
// Prints one JSON object, with ours.py's names.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

const (
	ttlS, ttlMinS                 = 10, 2
	inFlight                      = 64
	contenders, contendingClients = 50, 10
	deaths                        = 5
	keptEvery                     = ttlS * time.Second / 3 // as the client library does
)

var (
	endpoints = flag.String("endpoints", "", "with commas between")
	pidsFlag  = flag.String("pids", "", "of the servers, with commas between")
	seconds   = flag.Float64("seconds", 5, "of each step")
	count     = flag.Int("leases", 3000, "kept alive")
	many      = flag.Int("clients", 100, "that share them in the second step")
	ctx       = context.Background()
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func dial(n int) []*clientv3.Client {
	all := strings.Split(*endpoints, ",")
	clients := make([]*clientv3.Client, n)
	for i := range clients {
		c, err := clientv3.New(clientv3.Config{
			Endpoints: []string{all[i%len(all)]}, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
		})
		must(err)
		clients[i] = c
	}
	return clients
}

func closeAll(clients []*clientv3.Client) {
	for _, c := range clients {
		_ = c.Close()
	}
}

// burnt: CPU of the servers and of this process since it was made.
type burnt struct {
	servers, own float64
	begun        time.Time
}

func cpuNow() (servers, own float64) {
	for _, pid := range strings.Split(*pidsFlag, ",") {
		b, err := os.ReadFile("/proc/" + pid + "/stat")
		must(err)
		s := string(b)
		f := strings.Fields(s[strings.LastIndexByte(s, ')')+2:])
		u, _ := strconv.ParseFloat(f[11], 64)
		k, _ := strconv.ParseFloat(f[12], 64)
		servers += (u + k) / 100
	}
	var ru syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &ru))
	return servers, float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e9
}

func newBurnt() burnt {
	servers, own := cpuNow()
	return burnt{servers, own, time.Now()}
}

func (b burnt) usEach(n float64) map[string]float64 {
	servers, own := cpuNow()
	return map[string]float64{"servers": (servers - b.servers) / n * 1e6, "client": (own - b.own) / n * 1e6}
}

func ms(taken []time.Duration) map[string]float64 {
	s := append([]time.Duration(nil), taken...)
	sort.Slice(s, func(i, j int) bool { return s[i] < s[j] })
	at := func(p float64) float64 {
		i := int(p*float64(len(s))+0.9999999) - 1
		return float64(s[max(0, min(len(s)-1, i))].Nanoseconds()) / 1e6
	}
	return map[string]float64{"p50": at(.5), "p99": at(.99), "max": at(1)}
}

// each does it for 0 to n-1, inFlight at a time: how long each has taken.
func each(n int, work func(int)) []time.Duration {
	var next atomic.Int64
	taken := make([]time.Duration, n)
	var wg sync.WaitGroup
	for range inFlight {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				begun := time.Now()
				work(i)
				taken[i] = time.Since(begun)
			}
		}()
	}
	wg.Wait()
	return taken
}

func keptAlive(clients []*clientv3.Client) map[string]any {
	ids := make([]clientv3.LeaseID, *count)
	var kept, ended, lost atomic.Int64
	hold, letGo := context.WithCancel(ctx)
	defer letGo()
	b := newBurnt()
	grants := each(*count, func(i int) {
		c := clients[i%len(clients)]
		granted, err := c.Grant(ctx, ttlS)
		must(err)
		ids[i] = granted.ID
		// As a session: somebody takes what the channel says.
		said, err := c.KeepAlive(hold, granted.ID)
		must(err)
		go func() {
			for range said {
				kept.Add(1)
			}
			ended.Add(1)
		}()
	})
	grantedS, grantUs := time.Since(b.begun).Seconds(), b.usEach(float64(*count))
	time.Sleep(keptEvery)
	b = newBurnt()
	before := kept.Load()
	time.Sleep(max(time.Duration(*seconds*1e9), 2*keptEvery))
	keptUs := b.usEach(float64(kept.Load() - before))
	least := float64(ttlS)
	var mu sync.Mutex
	for range 5 {
		each(*count, func(i int) {
			left, err := clients[i%len(clients)].TimeToLive(ctx, ids[i])
			must(err)
			mu.Lock()
			least = min(least, float64(left.TTL))
			mu.Unlock()
		})
	}
	lost.Store(ended.Load())
	b = newBurnt()
	revocations := each(*count, func(i int) {
		if _, err := clients[i%len(clients)].Revoke(ctx, ids[i]); err == rpctypes.ErrLeaseNotFound {
			lost.Add(1)
		} else {
			must(err)
		}
	})
	return map[string]any{
		"leases": *count, "clients": len(clients),
		"grants_per_s": float64(*count) / grantedS, "grant_ms": ms(grants), "cpu_us_per_grant": grantUs,
		"cpu_us_per_keep_alive": keptUs,
		// In whole seconds, as etcd tells it.
		"least_left_s":      least,
		"lost":              lost.Load(),
		"revocations_per_s": float64(*count) / time.Since(b.begun).Seconds(), "revocation_ms": ms(revocations),
	}
}

func session(c *clientv3.Client, ttl int) *concurrency.Session {
	s, err := concurrency.NewSession(c, concurrency.WithTTL(ttl))
	must(err)
	return s
}

// uncontended: with one session for all, as etcd's documents have it, or with one for each.
func uncontended(c *clientv3.Client, own bool) map[string]any {
	var acquired, released []time.Duration
	b := newBurnt()
	shared := session(c, ttlS)
	for time.Since(b.begun).Seconds() < *seconds {
		s := shared
		begun := time.Now()
		if own {
			s = session(c, ttlS)
		}
		lock := concurrency.NewMutex(s, "/alone")
		must(lock.Lock(ctx))
		has := time.Now()
		if own {
			must(s.Close())
		} else {
			must(lock.Unlock(ctx))
		}
		acquired, released = append(acquired, has.Sub(begun)), append(released, time.Since(has))
	}
	us := b.usEach(float64(len(acquired)))
	must(shared.Close())
	return map[string]any{"acquire_ms": ms(acquired), "release_ms": ms(released), "cpu_us_per_lock": us}
}

func handedOver(clients []*clientv3.Client) map[string]any {
	var taken []time.Duration
	var releasedAt time.Time
	b, rounds := newBurnt(), 0
	for time.Since(b.begun).Seconds() < *seconds {
		rounds++
		s := session(clients[0], ttlS)
		first := concurrency.NewMutex(s, "/contended")
		must(first.Lock(ctx))
		var wg sync.WaitGroup
		for i := range contenders {
			wg.Add(1)
			go func() {
				defer wg.Done()
				mine := session(clients[i%len(clients)], ttlS)
				lock := concurrency.NewMutex(mine, "/contended")
				must(lock.Lock(ctx))
				taken = append(taken, time.Since(releasedAt))
				releasedAt = time.Now()
				must(mine.Close())
			}()
		}
		for {
			found, err := clients[0].Get(ctx, "/contended/", clientv3.WithPrefix(), clientv3.WithCountOnly())
			must(err)
			if found.Count > contenders {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(200 * time.Millisecond)
		releasedAt = time.Now()
		must(s.Close())
		wg.Wait()
	}
	return map[string]any{
		"contenders": contenders, "hand_over_ms": ms(taken),
		"cpu_us_per_lock": b.usEach(float64(rounds * (contenders + 1))),
	}
}

func died(c *clientv3.Client) map[string]any {
	var taken []time.Duration
	leads := session(c, ttlMinS)
	must(concurrency.NewElection(leads, "/deaths").Campaign(ctx, "0"))
	for i := range deaths {
		next := session(c, ttlMinS)
		done := make(chan struct{})
		go func() {
			must(concurrency.NewElection(next, "/deaths").Campaign(ctx, strconv.Itoa(i+1)))
			close(done)
		}()
		time.Sleep(time.Duration(ttlMinS * (1 + float64(i)/deaths) * 1e9))
		begun := time.Now()
		leads.Orphan()
		<-done
		taken = append(taken, time.Since(begun))
		leads = next
	}
	must(leads.Close())
	return map[string]any{"ttl_s": ttlMinS, "dead_until_led_ms": ms(taken)}
}

func main() {
	flag.Parse()
	found := map[string]any{}
	one := dial(1)
	found["one client"] = keptAlive(one)
	all := dial(*many)
	found["many clients"] = keptAlive(all)
	closeAll(all)
	found["lock"] = uncontended(one[0], true)
	found["lock of a session"] = uncontended(one[0], false)
	found["election"] = died(one[0])
	closeAll(one)
	clients := dial(contendingClients)
	found["hand-over"] = handedOver(clients)
	closeAll(clients)
	must(json.NewEncoder(os.Stdout).Encode(found))
}
