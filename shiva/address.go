package shiva

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/shiva/unixsocket"
)

// An address is where a server can be reached.
type address struct {
	text    string // as users write it
	network string // "tcp" or "unix"
	target  string // host:port, or the path of a socket
	name    string // of the server, as in its certificate; "": no TLS
}

// parseAddress parses one of the addresses that [Dial] takes.
func parseAddress(text string, withTLS bool) (address, error) {
	if err := unixsocket.CheckAddress(text); err != nil {
		return address{}, fmt.Errorf("shiva: %q: %w", text, err)
	}
	host, encrypted := cutTLS(text)
	if withTLS && !encrypted {
		return address{}, fmt.Errorf("shiva: expected tls://host:port with WithTLS, got %q", text)
	}
	if path, unix := unixsocket.Cut(text); unix {
		return address{text: text, network: "unix", target: path}, nil
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
		host = net.JoinHostPort(host, strconv.Itoa(DefaultPort))
	}
	a := address{text: host, network: "tcp", target: host}
	if encrypted {
		a.text, a.name = tlsScheme+"//"+host, name
	}
	return a, nil
}

// parseAddresses parses addresses with commas between them.
func parseAddresses(text string, withTLS bool) (list []address, err error) {
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one == "" && strings.Contains(text, ",") {
			continue
		}
		a, err := parseAddress(one, withTLS)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("shiva: expected addresses with commas between them, got %q", text)
	}
	return list, nil
}

// A source is one of the addresses that a client was given, and the servers that it stands for.
type source struct {
	address
	host, port string // of a name to look up; "": the address itself is the server

	spread bool      // it has stood for several servers
	found  []address // nil: never looked up
}

func newSource(a address, lookup lookup) *source {
	s := &source{address: a}
	if a.network != "tcp" || lookup == nil {
		return s
	}
	host, port, _ := net.SplitHostPort(a.target)
	if _, err := netip.ParseAddr(host); err != nil && host != "" {
		s.host, s.port = host, port
	}
	return s
}

// lookup finds the addresses of a host, as [net.Resolver.LookupNetIP] does.
type lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)

// lookUp finds out which servers the source stands for. If that fails, they stay the same.
//
// A name with several addresses of one family stands for that many servers. A name with a single
// address, or with one of each family, is dialed by name, which tries both.
func (s *source) lookUp(ctx context.Context, find lookup) error {
	if s.host == "" {
		s.found = []address{s.address}
		return nil
	}
	ips, err := find(ctx, "ip", s.host)
	if err == nil && len(ips) == 0 {
		err = errors.New("the name has no address")
	}
	if err != nil {
		return fmt.Errorf("shiva: looking up %s: %w", s.host, err)
	}
	var v4, v6 []netip.Addr
	for _, ip := range ips {
		if ip = ip.Unmap(); ip.Is4() {
			v4 = append(v4, ip)
		} else {
			v6 = append(v6, ip)
		}
	}
	if len(v4) == 0 {
		v4 = v6
	}
	slices.SortFunc(v4, netip.Addr.Compare)
	v4 = slices.Compact(v4)
	if len(v4) == 1 && !s.spread {
		s.found = []address{s.address}
		return nil
	}
	s.spread, s.found = true, nil
	for _, ip := range v4 {
		a := s.address
		a.target = net.JoinHostPort(ip.String(), s.port)
		if a.text = a.target; a.name != "" {
			a.text = tlsScheme + "//" + a.target
		}
		s.found = append(s.found, a)
	}
	return nil
}
