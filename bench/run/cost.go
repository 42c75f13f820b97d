package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/shivad/shivad/bench/internal/ratio"
)

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

// cost measures what a server of another configuration costs at the Shiva door: its rate of small
// requests against that of a server without, in turns.
func (b *bench) cost(ctx context.Context, name, config, what string) (findings, error) {
	with := setup{name: name, config: config}
	all, err := b.turns(ctx, []setup{inGo, with}, []*workload{deep})
	r := ratio.Ratio{What: what + " on / off: rate, " + deep.name, Bound: ratio.AtLeast, Limit: 0.97}
	return one(over(r, all[name][deep], all[inGo.name][deep], rate), err)
}

// guarded measures the cost of identities and quotas.
func guarded(ctx context.Context, b *bench) (findings, error) {
	return b.cost(ctx, "guarded", identities(100), "identities and quotas")
}

// traced measures the cost of tracing one of a hundred requests, including the way to a collector
// that discards all spans, whose time is part of the cost, since it is in this process.
func traced(ctx context.Context, b *bench) (f findings, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return f, err
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
	f, err = b.cost(ctx, "traced", fmt.Sprintf("[traces]\nendpoint = \"http://%s\"\none_in = 100\n", l.Addr()), "traces of 1 %")
	if err == nil && spans.Load() == 0 {
		err = errors.New("traced: the collector got no span")
	}
	return f, err
}
