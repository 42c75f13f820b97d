package container

import "context"

// ServeWith is Serve with another way to look up hosts.
func ServeWith(ctx context.Context, m Model, resolve lookup, addrs ...string) error {
	return serve(ctx, m, resolve, addrs)
}
