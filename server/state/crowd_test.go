package state_test

import (
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/server/state/statetest"
	"github.com/shivad/shivad/shiva/budgettest"
)

var crowd = flag.Int("crowd", 4, "servers of TestRedisOfManyServers")

// TestRedisOfManyServers counts the work of a Redis that many servers share. Each server polls four
// times a second; an update is one script, and a message to each server. With -crowd 200 -v the
// test shows the processor time that Redis needs for polls and for updates.
func TestRedisOfManyServers(t *testing.T) {
	t.Parallel() // it waits
	r := statetest.NewRedis(t)
	var stores []state.Store
	for range *crowd {
		stores = append(stores, open(t, r.Target(), quick))
	}
	number := func(section, pattern string) float64 {
		t.Helper()
		m := regexp.MustCompile(pattern).FindStringSubmatch(r.Do(t, "INFO", section))
		if m == nil {
			return 0
		}
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	calls := func(command string) float64 { return number("commandstats", `cmdstat_`+command+`:calls=(\d+)`) }
	cpu := func() float64 {
		return number("cpu", `used_cpu_user:([0-9.]+)`) + number("cpu", `used_cpu_sys:([0-9.]+)`)
	}
	statetest.Put(t, stores[0], "k", "0") // the scripts are known from now on
	// The time begins before the first count and ends after the last: each count is a process,
	// which may take a while. A busy machine may have delayed up to three earlier polls of each
	// server.
	const looks = 10
	began := time.Now()
	asked, published, busy := calls("hmget"), calls("publish"), cpu()
	budgettest.Until(t, "all servers have looked ten times", func() bool {
		return calls("hmget")-asked >= looks*float64(*crowd)
	})
	n, took := calls("hmget")-asked, time.Since(began).Seconds()
	if published = calls("publish") - published; n > (4*took+3)*float64(*crowd) || published > 0 {
		t.Errorf("in %.1f s in which nothing changes %d servers ask %.0f times, and %.0f messages are sent", took,
			*crowd, n, published)
	}
	t.Logf("a look takes Redis %.1f µs", 1e6*(cpu()-busy)/n)
	const updates = 100
	scripts := calls("evalsha")
	asked, published, busy = calls("hmget"), calls("publish"), cpu()
	for i := range updates {
		statetest.Put(t, stores[i%len(stores)], "k", fmt.Sprint(i))
	}
	for _, s := range stores {
		budgettest.Until(t, "all servers have the last change", func() bool {
			return statetest.Has(s, "k", fmt.Sprint(updates-1))
		})
	}
	scripts, published = calls("evalsha")-scripts, calls("publish")-published
	if scripts < updates || published != updates { // a mirror that is behind causes another try
		t.Errorf("%d updates are %.0f scripts and %.0f messages", updates, scripts, published)
	}
	t.Logf("an update takes Redis %.1f µs with %d servers, in %.1f scripts, with %.1f looks beside it",
		1e6*(cpu()-busy)/updates, *crowd, scripts/updates, (calls("hmget")-asked-scripts)/updates)
}
