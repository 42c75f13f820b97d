package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/shivad/shivad/bench/internal/ratio"
)

// configurations are the configuration files of shivads by system. Other systems have none.
var configurations = func() map[string]string {
	all := map[string]string{"hostile": hostileConfig, "guarded": identities(100), "slow": slowConfig, greedy: greedyConfig, readLog: logConfig, stoppedLog: logConfig}
	for _, a := range attacks {
		all[a.name] = attackedConfig
	}
	return all
}()

// identities declares n identities, each with a token and rights by pattern, and gives anonymous
// the rights that the load and its container need. The server looks up both kinds in the same way,
// once for each connection, and checks the right to each model. Each request is charged to two
// payers with all quotas, none of which is reached: the identity, and the address.
func identities(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "[[identity]]\nname = \"client-%d\"\ntoken_sha256 = \"%x\"\nmay = [\"infer:model-%d-*\", \"feedback\"]\n",
			i, sha256.Sum256(fmt.Append(nil, i)), i)
	}
	const quota = "requests_per_second = 10000000\nbytes_per_second = \"1TiB\"\nrequests_in_flight = 1000000\nbytes_in_flight = \"1TiB\"\nunread_bytes = \"1TiB\"\n"
	b.WriteString("[[identity]]\nname = \"anonymous\"\nmay = [\"infer:small\", \"infer:image\", \"serve:*\"]\n[identity.quota]\nconnections = 1000000\n" + quota)
	b.WriteString("[limits.per_address]\n" + quota + "[server]\nlimit_loopback = true\n")
	return b.String()
}

// configure writes the configuration of a system, if it has one, and returns the arguments for it.
func configure(name, bin string) ([]string, error) {
	text, ok := configurations[name]
	if !ok {
		return nil, nil
	}
	path := filepath.Join(bin, name+".toml")
	return []string{"--config", path}, os.WriteFile(path, []byte(text), 0o600)
}

// cost measures what a server of another configuration costs at the Shiva door: its rate of small
// requests against that of a server without, in turns.
func cost(ctx context.Context, o options, bin, name, what string) (r ratio.Ratio, err error) {
	r = ratio.Ratio{What: what + " on / off: rate, " + workloads[deep].name, Bound: ratio.AtLeast, Limit: 0.97}
	all, err := systems(ctx, o, bin, []string{"go", name}, workloads[deep:deep+1])
	if err != nil {
		return r, err
	}
	for round, with := range all[name][0] {
		r.Rounds = append(r.Rounds, with.rate/all["go"][0][round].rate)
	}
	return r, nil
}

// guarded measures the cost of identities and quotas.
func guarded(ctx context.Context, o options, bin string) (ratio.Ratio, error) {
	return cost(ctx, o, bin, "guarded", "identities and quotas")
}

// followed is the system that traces one of a hundred requests.
const followed = "traced"

// traced measures the cost of tracing one of a hundred requests, including the way to a collector
// that discards all spans, whose time is part of the cost, since it is in this process.
func traced(ctx context.Context, o options, bin string) (r ratio.Ratio, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return r, err
	}
	page := make([]byte, 1<<20)
	var spans atomic.Int64 // bytes of spans
	collector := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		// The one client sends page after page. Through io.Discard's 8 KiB buffer, reading a page
		// would take fifty pieces, on the processors that are measured.
		for {
			n, err := q.Body.Read(page)
			spans.Add(int64(n))
			if err != nil {
				return
			}
		}
	})}
	go func() { _ = collector.Serve(l) }() // until Close
	defer collector.Close()
	configurations[followed] = fmt.Sprintf("[traces]\nendpoint = \"http://%s\"\none_in = 100\n", l.Addr())
	r, err = cost(ctx, o, bin, followed, "traces of 1 %")
	if err == nil && spans.Load() == 0 {
		err = errors.New("run: traced: the collector got no span")
	}
	return r, err
}
