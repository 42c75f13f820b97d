//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// resident returns the memory of the server's process, in MiB.
func (s *shivad) resident() (mib int) {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			_, _ = fmt.Sscan(rest, &mib)
		}
	}
	return mib >> 10
}

// Twenty clients each request 256 answers of 1 MiB and read none: they are disconnected, and until
// then take no more memory than each may.
func TestE2EUnreadAnswers(t *testing.T) {
	const clients, asked, each = 20, 256, 8
	s := start(t, "[tcp]\nstall_timeout = \"3s\"\n")
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- container.Serve(ctx, container.Model{
			Name: "large", Version: "1", MaxBatch: 8,
			Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Int64, Shape: tensor.Shape{-1, 1}}},
			Outputs: []tensor.Spec{{Name: "y", DType: tensor.Uint8, Shape: tensor.Shape{-1, 1 << 20}}},
			Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
				rows := b.Inputs[0].Shape[0]
				y, err := tensor.FromSlice(tensor.Shape{rows, 1 << 20}, make([]uint8, rows<<20))
				return []tensor.Tensor{y}, err
			},
		}, s.containers)
	}()
	defer func() {
		cancel()
		<-served
	}()
	s.waitReplicas("large", 1)
	x, err := tensor.FromSlice(tensor.Shape{1, 1}, []int64{1})
	if err != nil {
		t.Fatal(err)
	}
	ask, err := shiva.AppendMessage(nil, &shiva.Message{Namespace: "large", Tensors: []tensor.Tensor{x}})
	if err != nil {
		t.Fatal(err)
	}
	before := s.resident()
	for range clients {
		c, err := net.Dial("tcp", s.tcp)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.(*net.TCPConn).SetReadBuffer(64 << 10)
		if _, err := c.Write(slices.Repeat(ask, asked)); err != nil {
			t.Fatal(err)
		}
	}
	most := before
	closed := func() bool {
		most = max(most, s.resident())
		return s.shows(`shivad_connections_closed_total{door="tcp",reason="stalled"} `) == clients
	}
	budgettest.Until(t, "the clients to be closed", closed)
	t.Logf("%d MiB before, %d at most", before, most)
	// The memory that they may have, as much again for the collector, and a few batches in flight.
	if grown := most - before; grown > 2*clients*each+100 {
		t.Errorf("%d clients that do not read took %d MiB, where each may have %d", clients, grown, each)
	}
}

// 500 open connections at the admin door, without a request, with half of one, or after a whole
// one, do not keep /livez from answering.
func TestE2ELivezUnderSiege(t *testing.T) {
	s := start(t, "")
	for i := range 500 {
		c, err := net.Dial("tcp", s.admin)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, []string{"", "GET /livez HTTP/1.1\r\nHo", "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"}[i%3])
	}
	best := time.Hour
	for range 5 {
		began := time.Now()
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
		resp, err := client.Get("http://" + s.admin + "/livez")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		best = min(best, time.Since(began))
	}
	if t.Logf("/livez took %v", best); best > 100*time.Millisecond {
		t.Errorf("/livez took %v at best", best)
	}
}
