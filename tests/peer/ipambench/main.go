// Command ipambench measures Calico's own IPAM client: allocate and release, on one node, on etcd.
//
// The node and an IP pool must be stored. It prints one JSON object and leaves the store as it was,
// but for the node's blocks.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/calico/libcalico-go/lib/ipam"

	"tortie.test/peer/calico"
)

const patience = 10 * time.Minute

type report struct {
	Allocations   int     `json:"allocations"`
	Callers       int     `json:"callers"`
	HostLock      bool    `json:"host_lock"`
	Failed        int64   `json:"failed"`
	FirstError    string  `json:"first_error,omitempty"`
	Seconds       float64 `json:"seconds"`
	PerSecond     float64 `json:"allocations_per_s"`
	RoundTrips    float64 `json:"round_trips_per_allocation"`
	RoundTripsOut float64 `json:"round_trips_per_release"`
	CycleSeconds  float64 `json:"mean_cycle_s"`
}

// bench is a run: callers take numbers until there are none, and each is assigned and released.
type bench struct {
	client   ipam.Interface
	node     string
	hostLock bool
	lock     sync.Mutex
	next     atomic.Int64
	failed   atomic.Int64
	first    sync.Once
	err      error
}

func main() {
	endpoints := flag.String("endpoints", "", "etcd's URLs, separated by commas; the first one's calls are counted")
	node := flag.String("node", "node-1", "the Calico node to allocate for")
	callers := flag.Int("callers", 16, "how many allocate at once")
	count := flag.Int("count", 1000, "how many allocations")
	hostLock := flag.Bool("host-lock", false, "one assignment at a time, as Calico's CNI plugin does by a lock file")
	flag.Parse()
	for name, value := range map[string]string{"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": *endpoints} {
		if err := os.Setenv(name, value); err != nil {
			log.Fatal(err)
		}
	}
	client, err := calico.IPAM()
	if err != nil {
		log.Fatal(err)
	}
	one := &bench{client: client, node: *node, hostLock: *hostLock}
	if err := one.cycle(-1); err != nil { // the node's first block, which is no steady state
		log.Fatal(err)
	}
	url := strings.Split(*endpoints, ",")[0]
	assigned, released, err := one.trips(url)
	if err != nil {
		log.Fatal(err)
	}
	seconds := one.run(*callers, *count)
	found := report{
		Allocations:   *count,
		Callers:       *callers,
		HostLock:      *hostLock,
		Failed:        one.failed.Load(),
		Seconds:       seconds,
		PerSecond:     float64(*count-int(one.failed.Load())) / seconds,
		RoundTrips:    assigned,
		RoundTripsOut: released,
		CycleSeconds:  seconds * float64(*callers) / float64(*count),
	}
	if one.err != nil {
		found.FirstError = one.err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		log.Fatal(err)
	}
	if found.Failed > 0 {
		os.Exit(1)
	}
}

// run does all cycles and says how long they took, in seconds.
func (b *bench) run(callers, count int) float64 {
	b.next.Store(0)
	start := time.Now()
	var wait sync.WaitGroup
	for range callers {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for number := b.next.Add(1); number <= int64(count); number = b.next.Add(1) {
				if err := b.cycle(number); err != nil {
					b.failed.Add(1)
					b.first.Do(func() { b.err = err })
				}
			}
		}()
	}
	wait.Wait()
	return time.Since(start).Seconds()
}

func (b *bench) cycle(number int64) error {
	handle := fmt.Sprintf("ipambench.%d", number)
	if err := b.assign(handle); err != nil {
		return err
	}
	return b.release(handle)
}

func (b *bench) assign(handle string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if b.hostLock {
		b.lock.Lock()
		defer b.lock.Unlock()
	}
	got, _, err := b.client.AutoAssign(ctx, ipam.AutoAssignArgs{
		Num4:        1,
		HandleID:    &handle,
		Attrs:       map[string]string{"namespace": "bench", "node": b.node, "pod": handle},
		Hostname:    b.node,
		IntendedUse: v3.IPPoolAllowedUseWorkload,
	})
	if err != nil {
		return err
	}
	return got.PartialFulfillmentError()
}

func (b *bench) release(handle string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return b.client.ReleaseByHandle(ctx, handle)
}

// trips counts the calls that etcd served for one undisturbed assignment and for its release.
func (b *bench) trips(url string) (assigned, released float64, err error) {
	const handle = "ipambench.counted"
	var before, between, after float64
	for _, step := range []struct {
		count *float64
		work  func(string) error
	}{{&before, b.assign}, {&between, b.release}, {&after, nil}} {
		if *step.count, err = calls(url); err != nil {
			return 0, 0, err
		}
		if step.work != nil {
			if err = step.work(handle); err != nil {
				return 0, 0, err
			}
		}
	}
	return between - before, after - between, nil
}

var started = regexp.MustCompile(`(?m)^grpc_server_started_total\{.*grpc_service="etcdserverpb\.KV".*\} (\S+)$`)

// calls is how many calls of its key-value service an etcd has begun to serve.
func calls(url string) (float64, error) {
	reply, err := http.Get(url + "/metrics")
	if err != nil {
		return 0, err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		return 0, err
	}
	total := 0.0
	for _, found := range started.FindAllSubmatch(text, -1) {
		number, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			return 0, err
		}
		total += number
	}
	return total, nil
}
