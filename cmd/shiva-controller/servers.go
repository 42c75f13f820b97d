package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
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

// servers asks the admin APIs of servers for the load of their models, and only those that the
// controller's operator has named: whoever may create a Model chooses an address, but neither who
// gets the controller's token, nor which hosts of the cluster it reads. All methods may be called
// from any goroutine.
type servers struct {
	lookup func(ctx context.Context, host string) ([]string, error)
	fresh  time.Duration // lifetime of an answer, which many Models share
	first  string        // for Models that name no address; "" if there is none
	doors  map[string]*door
}

// A door is an address that may be asked, with the combined answer of all servers behind it.
type door struct {
	host, port string
	scheme     string // of URLs
	client     http.Client

	mu    sync.Mutex // one goroutine asks, the others wait
	at    time.Time
	loads map[id]float64 // in replicas, summed over the servers; nil: no server answered
	err   error          // why some servers, or all, are missing
}

type id struct{ model, version string }

// errNotAllowed is the error for an address that the controller was not told to ask.
var errNotAllowed = errors.New("the controller may not ask it")

// newServers takes addresses, "host:port" or "tls://host:port": first is for Models that name none
// and may be "", others are those that Models may name besides. roots verify certificates; nil
// means those of the system. A certificate must be for the host as it is written here.
func newServers(first string, others []string, roots *x509.CertPool, fresh time.Duration) (*servers, error) {
	s := &servers{lookup: net.DefaultResolver.LookupHost, fresh: fresh, doors: map[string]*door{}}
	for i, address := range append([]string{first}, others...) {
		if i == 0 && address == "" {
			continue
		}
		hostPort, encrypted := strings.CutPrefix(address, "tls://")
		host, port, err := net.SplitHostPort(hostPort)
		if err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("expected host:port or tls://host:port of an admin API, got %q", address)
		}
		if s.doors[hostPort] != nil {
			return nil, fmt.Errorf("the address %s is given twice", hostPort)
		}
		d := &door{host: host, port: port, scheme: "http"}
		if encrypted {
			d.scheme = "https"
		}
		d.client = http.Client{
			Timeout: askTimeout,
			// The token is for this server alone.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			// No proxy of the environment either. Each address of a host is asked by itself, so the
			// name in certificates is set to that of the host.
			Transport: &http.Transport{TLSClientConfig: &tls.Config{ServerName: host, RootCAs: roots},
				IdleConnTimeout: time.Minute},
		}
		s.doors[hostPort] = d
		if i == 0 {
			s.first = hostPort
		}
	}
	return s, nil
}

// needed returns the number of replicas that a model needs for the load of all servers behind an
// address; of all its versions if version is "". If complete is false, err tells why some servers
// are missing: number is then too low, or 0. A model that no server knows needs one replica, whose
// registration makes it known.
//
// An address that newServers was not given is errNotAllowed; "" is the first one.
func (s *servers) needed(ctx context.Context, address, model, version string) (number int32, complete bool, err error) {
	d := s.doors[cmp.Or(address, s.first)]
	switch {
	case d == nil && address == "":
		return 0, false, fmt.Errorf("%w: spec.admin is missing, and so is --admin", errNotAllowed)
	case d == nil:
		return 0, false, fmt.Errorf("%w: spec.admin is %q, which neither --admin nor --allow-admin names",
			errNotAllowed, address)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.at) >= s.fresh {
		d.loads, d.err = s.ask(ctx, d)
		d.at = time.Now()
	}
	if d.loads == nil {
		return 0, false, d.err
	}
	sum, known := 0.0, false
	for of, load := range d.loads {
		if of.model == model && (version == "" || of.version == version) {
			sum, known = sum+load, true
		}
	}
	if !known {
		return 1, d.err == nil, d.err
	}
	return int32(min(math.Ceil(sum-1e-9), math.MaxInt32)), d.err == nil, d.err
}

// ask asks all servers behind an address at once.
func (s *servers) ask(ctx context.Context, d *door) (map[id]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	hosts, err := s.lookup(ctx, d.host)
	if err == nil && len(hosts) == 0 {
		err = fmt.Errorf("the name %s has no address", d.host)
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
		all.Go(func() { results[i].loads, results[i].err = d.askOne(ctx, net.JoinHostPort(h, d.port)) })
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

// askOne asks one server. Errors, which everybody reads who may read the Model, have nothing of
// what the server wrote but its status.
func (d *door) askOne(ctx context.Context, hostPort string) (map[id]float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.scheme+"://"+hostPort+"/v1/status", nil)
	if err != nil {
		return nil, err
	}
	token, err := shownToken()
	if err != nil {
		return nil, err
	}
	if token != "" {
		if ip := net.ParseIP(d.host); d.scheme != "https" && !(ip != nil && ip.IsLoopback()) {
			return nil, fmt.Errorf("the token is not sent to %s without TLS: name it tls://%s",
				net.JoinHostPort(d.host, d.port), net.JoinHostPort(d.host, d.port))
		}
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := d.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	switch code := response.StatusCode; code {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, fmt.Errorf("%s answers %d %s: expected a token with the right admin:read", hostPort, code,
			http.StatusText(code))
	default:
		return nil, fmt.Errorf("%s answers %d %s, expected 200", hostPort, code, http.StatusText(code))
	}
	var status struct {
		Models []struct {
			Name, Version string
			Load          *float64
		}
	}
	if json.NewDecoder(http.MaxBytesReader(nil, response.Body, maxStatus)).Decode(&status) != nil {
		return nil, fmt.Errorf("%s does not answer as a shivad does: is that the port of its admin API?", hostPort)
	}
	loads := map[id]float64{}
	for _, m := range status.Models {
		switch {
		case m.Version == "": // an application
		case m.Load == nil:
			return nil, fmt.Errorf("%s does not report the load of its models: that server is older than 0.1.0", hostPort)
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
