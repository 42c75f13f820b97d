package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
)

// fetchProfile writes the CPU profile of the next seconds, from the pprof handlers at addr.
func fetchProfile(ctx context.Context, addr, file string, seconds int) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", addr, seconds), nil)
	if err != nil {
		return err
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("run: profile of %s: %s", addr, a.Status)
	}
	w, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, a.Body); err != nil {
		w.Close()
		return err
	}
	return w.Close()
}
