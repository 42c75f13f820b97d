package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
)

// Addresses are those of the server's doors, as host and port. Another program may use them
// already: a server, or another example.
type Addresses struct {
	All   []*string
	Fixed bool // the user has given addresses: use these or fail
}

// avoidTaken replaces all ports by free ones if one is taken, and prints that.
func (a Addresses) avoidTaken(out io.Writer) error {
	var held []net.Listener
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	taken := ""
	for _, addr := range a.All {
		l, err := net.Listen("tcp", *addr)
		if err != nil {
			taken = *addr
			break
		}
		held = append(held, l)
	}
	if a.Fixed || taken == "" {
		return nil
	}
	for _, addr := range a.All {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		held = append(held, l)
		*addr = l.Addr().String()
	}
	_, err := fmt.Fprintf(out, "another program listens on %s, so this server uses other ports\n", taken)
	return err
}

// Serve starts a server and returns once it is ready. args returns its arguments for the addresses,
// of which admin is one. If another program takes an address between the check and the start, Serve
// tries other ports.
func Serve(ctx context.Context, out io.Writer, addrs Addresses, admin *string, args func() []string) (*Process, error) {
	const tries = 3
	for try := 1; ; try++ {
		if err := addrs.avoidTaken(out); err != nil {
			return nil, err
		}
		p, err := Start("bin/shivad", nil, args()...)
		if err != nil {
			return nil, err
		}
		if err = p.WaitReady(ctx, *admin); err == nil {
			return p, nil
		}
		select {
		case <-p.done:
			if !addrs.Fixed && try < tries {
				continue
			}
			return nil, err
		default:
			return nil, errors.Join(err, p.Stop())
		}
	}
}
