// Package metrics reads the metrics of a server that is measured.
package metrics

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// Text returns all metrics of the server whose admin door is at addr, as Prometheus' text.
func Text(ctx context.Context, addr string) (string, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return "", err
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return "", err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode != http.StatusOK {
		err = fmt.Errorf("the server's metrics: %s: %s", a.Status, text)
	}
	return string(text), err
}
