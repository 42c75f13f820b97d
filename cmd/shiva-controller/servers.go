package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	askTimeout = 5 * time.Second // for one server
	maxStatus  = 64 << 20        // bytes of its answer
)

// servers asks the admin doors of servers for the load of their models. All methods may be called
// from any goroutine.
type servers struct {
	client http.Client
	lookup func(ctx context.Context, host string) ([]string, error)
	fresh  time.Duration // lifetime of an answer, which many Models share

	mu    sync.Mutex
	asked map[string]*answer // by admin address
}

// An answer is the combined answer of all servers behind an address.
type answer struct {
	mu    sync.Mutex // one goroutine asks, the others wait
	at    time.Time
	loads map[id]float64 // in replicas, summed over the servers; nil: no server answered
	err   error          // why some servers, or all, are missing
}

type id struct{ model, version string }

func newServers(fresh time.Duration) *servers {
	return &servers{client: http.Client{Timeout: askTimeout}, lookup: net.DefaultResolver.LookupHost, fresh: fresh, asked: map[string]*answer{}}
}

// needed returns the number of replicas that a model needs for the load of all servers behind an
// address; of all its versions if version is "". If complete is false, err tells why some servers
// are missing: number is then too low, or 0. A model that no server knows needs one replica, whose
// registration makes it known.
func (s *servers) needed(ctx context.Context, address, model, version string) (number int32, complete bool, err error) {
	s.mu.Lock()
	a := s.asked[address]
	if a == nil {
		a = &answer{}
		s.asked[address] = a
	}
	s.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.at) >= s.fresh {
		a.loads, a.err = s.ask(ctx, address)
		a.at = time.Now()
	}
	if a.loads == nil {
		return 0, false, a.err
	}
	sum, known := 0.0, false
	for of, load := range a.loads {
		if of.model == model && (version == "" || of.version == version) {
			sum, known = sum+load, true
		}
	}
	if !known {
		return 1, a.err == nil, a.err
	}
	return int32(min(math.Ceil(sum-1e-9), math.MaxInt32)), a.err == nil, a.err
}

// ask asks all servers behind an address at once.
func (s *servers) ask(ctx context.Context, address string) (map[id]float64, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("admin: expected host:port, got %q: %w", address, err)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	hosts, err := s.lookup(ctx, host)
	if err == nil && len(hosts) == 0 {
		err = fmt.Errorf("the name %s has no address", host)
	}
	if err != nil {
		return nil, err
	}
	type got struct {
		loads map[id]float64
		err   error
	}
	hosts = slices.Compact(slices.Sorted(slices.Values(hosts)))
	results := make([]got, len(hosts))
	var all sync.WaitGroup
	for i, h := range hosts {
		all.Go(func() { results[i].loads, results[i].err = s.askOne(ctx, net.JoinHostPort(h, port)) })
	}
	all.Wait()
	var sum map[id]float64
	var faults []error
	for _, r := range results {
		if r.err != nil {
			faults = append(faults, r.err)
			continue
		}
		if sum == nil {
			sum = map[id]float64{}
		}
		for of, load := range r.loads {
			sum[of] += load
		}
	}
	return sum, errors.Join(faults...)
}

// askOne asks one server.
func (s *servers) askOne(ctx context.Context, hostPort string) (map[id]float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+hostPort+"/v1/status", nil)
	if err != nil {
		return nil, err
	}
	token, err := shownToken()
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var status struct {
		Error  string
		Models []struct {
			Name, Version string
			Load          *float64
		}
	}
	err = json.NewDecoder(http.MaxBytesReader(nil, response.Body, maxStatus)).Decode(&status)
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s: %s", hostPort, response.Status, cmp.Or(status.Error, "no reason"))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", hostPort, err)
	}
	loads := map[id]float64{}
	for _, m := range status.Models {
		switch {
		case m.Version == "": // an application
		case m.Load == nil:
			return nil, fmt.Errorf("%s does not report the load of %s/%s: that server is older than 0.1.0", hostPort, m.Name, m.Version)
		default:
			loads[id{m.Name, m.Version}] = *m.Load
		}
	}
	return loads, nil
}

// shownToken returns the token in $SHIVA_TOKEN, or the current content of the file
// $SHIVA_TOKEN_FILE.
func shownToken() (string, error) {
	if token := strings.TrimSpace(os.Getenv("SHIVA_TOKEN")); token != "" {
		return token, nil
	}
	path := os.Getenv("SHIVA_TOKEN_FILE")
	if path == "" {
		return "", nil
	}
	text, err := os.ReadFile(path)
	return strings.TrimSpace(string(text)), err
}
