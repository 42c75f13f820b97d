package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
)

// Addresses are those of the server's doors, as host and port. Somebody may have them already:
// another example in another terminal, or a server.
type Addresses struct {
	All   []*string
	Fixed bool // the user has named some: they are these or none
}

// settle takes free ports for all, if one is taken, and says so.
func (a Addresses) settle(out io.Writer) error {
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
	_, err := fmt.Fprintf(out, "another program listens on %s, so that this server takes other ports\n", taken)
	return err
}

// Serve starts a server and returns when its models can be asked. args gives its arguments
// for the addresses, of which admin is one. Whoever takes an address between the
// look and the start has it: then others are tried.
func Serve(ctx context.Context, out io.Writer, addrs Addresses, admin *string, args func() []string) (*Process, error) {
	const tries = 3
	for try := 1; ; try++ {
		if err := addrs.settle(out); err != nil {
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
