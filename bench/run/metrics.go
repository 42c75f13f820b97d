package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
)

// metrics reads values of the server's metrics, each named with its labels.
func (s *system) metrics(ctx context.Context, names ...string) ([]float64, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.profile+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		return nil, err
	}
	if a.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("run: the server's metrics: %s: %s", a.Status, text)
	}
	values := make([]float64, len(names))
	for i, name := range names {
		found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindSubmatch(text)
		if found == nil {
			return nil, fmt.Errorf("run: the server's metrics lack %s", name)
		}
		if values[i], err = strconv.ParseFloat(string(found[1]), 64); err != nil {
			return nil, err
		}
	}
	return values, nil
}
